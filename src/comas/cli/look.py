"""`comas play` and `comas view`: a new discussion on the terminal, runs and evaluations in a
browser, served from this machine or as one file.

Leaves out: numbers and recorded discussions (`comas report`), the page (`comas.view`).
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from comas.cli.output import Json, is_name, print_json, print_note, settings_typed
from comas.cli.train import read_config
from comas.config.mistakes import current_name
from comas.config.plan import plan
from comas.config.plugins import load_plugin, names_file
from comas.config.schema import learning_policies
from comas.config.systems import is_model, is_run
from comas.display import print_episode
from comas.evaluation.systems import greeted, named
from comas.game.play import own_file
from comas.models.sources import meant, team_file
from comas.program import command, latest_run, named_or_latest
from comas.questions.checked import loaded
from comas.storage.records import episode_record
from comas.storage.run import Run
from comas.sync import run_sync
from comas.team.build import Team
from comas.types import UserMistake
from comas.view.discussion import KINDS
from comas.view.documents import EvaluationDocuments, RunDocuments, Several, is_evaluation
from comas.view.page import export, steps_named

# --- a new discussion


def play(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEAM] [KEY=VALUE]...",
            help="A run, tiny model, TOML or export (default: the latest run).",
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="Ask this instead of a held-out question.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which question and which draws.")] = 0,
    json_: Json = False,
) -> None:
    """Watch one discussion, and the reward of each turn."""
    if question is not None and not question.strip():
        raise UserMistake(
            "--question is empty: give a text, or leave it out for a held-out question"
        )
    team = _team(arguments)
    config = team.config
    try:
        asked = question
        if asked is None:
            options = config.task_options
            held_out = loaded(team.task, "test", path=config.data, limit=1, seed=seed, **options)
            if not held_out:
                raise UserMistake(
                    f"task {config.task} has no held-out question to be played: ask one of your own"
                    ' with --question "..."'
                )
            asked = held_out[0]
        episode = team.discuss(asked, seed)
        if episode.error:
            raise UserMistake(episode.error)
        if json_:
            print_json(ctx, episode_record(episode))
            return

        def judge(answer: str) -> str:
            with own_file(team.task.verify, "verify"):
                return team.task.verify(episode.question, answer)

        print_episode(Console(), episode, judge=judge if question is None else None)
    finally:
        team.close()


def _team(arguments: list[str] | None) -> Team:
    """The team that the arguments name: of a run, a model, an export or a config file; without any,
    of the latest run, or of the default.
    """
    if not arguments and (run := latest_run()) is not None:
        print(f"{run} (the latest run)", file=sys.stderr)
        arguments = [str(run)]
    if arguments and is_name(arguments[0]):
        name, *pairs = arguments
        for text in pairs:
            if "=" not in text:
                raise UserMistake(
                    f"{text!r} is not of the form key=value; a question of your own:"
                    f" --question {shlex.quote(text)}"
                )
        if is_model(name) or is_run(name) or team_file(name) is not None:
            return run_sync(greeted(named(name, settings_typed(pairs)), print_note))
        if not Path(name).is_file():
            raise UserMistake(
                f"{name} is neither a run's folder, nor a team's, nor a config{meant(name)}; see"
                f" {command()} play --help"
            )
    return run_sync(greeted(plan(read_config(arguments), learn=False), print_note))


# --- the page


def view(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs or evaluations; default: the latest run."),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", help="Write the page to this file instead of serving it."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="With --html: whose discussions, as 1,5-9; default: as many as fit."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="With --html: only such discussions, as rewarded-but-wrong.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
    json_: Json = False,
) -> None:
    """Look at curves and discussions of runs.

    The discussions say who was rewarded for what, and whether it was deserved.
    """
    only = only and current_name("--only", only, KINDS)
    if only is not None and only not in KINDS:
        raise UserMistake(f"--only {only}: one of {', '.join(KINDS)}")
    if html is None and (steps or only):
        raise UserMistake("--steps and --only narrow what a file holds: name it with --html FILE")
    folders = [_documents(name) for name in names or [named_or_latest(None)]]
    if html is not None:
        _export(ctx, Path(html), folders, steps, only, json_)
        return
    import webbrowser

    from comas.view.server import ViewServer

    with ViewServer(Several(folders), port) as server:
        if json_:
            print_json(ctx, {"url": server.url})
        else:
            print(server.url, flush=True)
            print("Ctrl-C ends it.", file=sys.stderr, flush=True)
        if not no_browser:
            # one in the terminal (lynx) returns when it ends, and asks this server before
            threading.Thread(target=webbrowser.open, args=[server.url], daemon=True).start()
        server.serve_forever(poll_interval=0.2)


def _documents(name: str) -> RunDocuments | EvaluationDocuments:
    """A folder's documents. What its turns are rewarded for is put in the words of the run's method
    where that is shipped: a file that the folder names is not run.
    """
    if not Path(name).is_dir():
        raise UserMistake(f"{name}: there is no such folder; name a run or an evaluation")
    if not is_evaluation(name):
        config = Run.open(name).config()
        method = config["method"]
        rewarded_for: Mapping[str, str] = {}
        try:
            if not names_file(method):
                rewarded_for = load_plugin("method", method).rewards
        except UserMistake as error:
            print_note(f"{error}; the page does not say what is rewarded")
        return RunDocuments(name, rewarded_for, learning_policies(config.get("agents", {})))
    return EvaluationDocuments(name)


def _export(
    ctx: typer.Context,
    file: Path,
    folders: list[RunDocuments | EvaluationDocuments],
    steps: str | None,
    only: str | None,
    json_: bool,
) -> None:
    """Write the page as one file, and say which discussions are in it."""
    if not file.parent.is_dir():
        raise UserMistake(f"--html {file}: No such file or directory: {file.parent}")
    longest = max((one.steps() for one in folders if isinstance(one, RunDocuments)), default=0)
    chosen = None if steps is None else steps_named(steps, longest)
    included = export(file, folders, chosen, only)
    size = file.stat().st_size
    if json_:
        numbers = [step + 1 for step in included]
        print_json(ctx, {"html": str(file), "bytes": size, "steps": numbers})
        return
    print(f"{file}: {size / 1e6:.1f} MB")
    if longest:
        note = f"discussions of {len(included)} of {longest} steps"
        if chosen is None and only is None and len(included) < longest:
            note += "; name others with --steps"
        print(note)
