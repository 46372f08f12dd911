"""`comas view`: runs and evaluations in a browser, served from this machine or as one file.

Leaves out: the page (`comas.view`), the terminal (`comas show`, `comas report`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comas.cli.output import Json, print_json, print_note

if TYPE_CHECKING:
    from comas.view.documents import EvaluationDocuments, RunDocuments, Settle

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Runs or evaluations; default: the latest run."),
]
Html = Annotated[
    str | None, typer.Option("--html", help="Write the page to this file instead of serving it.")
]
Steps = Annotated[
    str | None,
    typer.Option(help="With --html: whose discussions, such as 1,5-9; default: what has room."),
]
Only = Annotated[
    str | None, typer.Option(help="With --html: only such discussions, as paid-but-wrong.")
]
Rule = Annotated[
    str | None,
    typer.Option(
        "--settle", help="Show what METHOD[:option=value] would have paid beside what was paid."
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]


def view(
    ctx: typer.Context,
    names: Names = None,
    html: Html = None,
    steps: Steps = None,
    only: Only = None,
    settle: Rule = None,
    port: Port = 0,
    no_browser: NoBrowser = False,
    json_: Json = False,
) -> None:
    """Look at runs: curves, discussions, who was paid for what and whether it was deserved."""
    from comas.program import named_or_latest
    from comas.types import UserMistake
    from comas.view.discussion import KINDS

    if only is not None and only not in KINDS:
        raise UserMistake(f"--only {only}: one of {', '.join(KINDS)}")
    if html is None and (steps or only):
        raise UserMistake("--steps and --only narrow what a file holds: name it with --html FILE")
    folders = [_documents(name, settle) for name in names or [named_or_latest(None)]]
    if html is not None:
        _export(ctx, Path(html), folders, steps, only, json_)
    else:
        _serve(ctx, folders, port, no_browser, json_)


def _documents(name: str, settle: str | None) -> RunDocuments | EvaluationDocuments:
    from comas.types import UserMistake
    from comas.view.documents import (
        EvaluationDocuments,
        RunDocuments,
        check_folder,
        is_evaluation,
    )

    check_folder(name)
    if is_evaluation(name):
        if settle:
            raise UserMistake(
                f"--settle {settle}: {name} is an evaluation, in which nobody is paid: name runs"
                " alone, or leave --settle out"
            )
        return EvaluationDocuments(name)
    return RunDocuments(name, _pays(name), _settlement(name, settle) if settle else None, settle)


def _pays(name: str) -> Mapping[str, str]:
    """Role -> what it is paid for, in the words of the run's method, where that is shipped: a file
    that the folder names is not run.
    """
    from comas.config.plugins import load_plugin
    from comas.storage.run import Run
    from comas.types import UserMistake

    method = Run.open(name).config()["method"]
    if method.endswith(".py"):
        return {}
    try:
        return load_plugin("method", method).pays
    except UserMistake as error:
        print_note(f"{error}; nothing can be said of who is paid for what")
        return {}


def _settlement(name: str, rule: str) -> Settle:
    """What the rule `METHOD[:option=value]...` pays for the discussions of a step."""
    from functools import lru_cache

    from comas.config.plugins import filled, load_plugin
    from comas.config.schema import parse_pair
    from comas.testing.recorded import replay
    from comas.types import UserMistake

    method, *pairs = rule.split(":")
    own = load_plugin("method", method).settle
    options = filled("options", dict(map(parse_pair, pairs)), own)

    @lru_cache(maxsize=16)
    def settled(step: int) -> dict[str, float | None]:
        try:
            episodes = replay(name, step, method=method, **options)
        except KeyError as error:
            raise UserMistake(
                f"--settle {rule}: {name} holds nothing of what it pays by ({error.args[0]}): take"
                " a rule for the same game"
            ) from error
        return {turn.id: turn.reward for episode in episodes for turn in episode.turns}

    return settled


def _export(
    ctx: typer.Context,
    file: Path,
    folders: list[RunDocuments | EvaluationDocuments],
    steps: str | None,
    only: str | None,
    json_: bool,
) -> None:
    from comas.types import UserMistake
    from comas.view.documents import RunDocuments
    from comas.view.export import export, steps_named

    if not file.parent.is_dir():
        raise UserMistake(f"--html {file}: No such file or directory: {file.parent}")
    longest = max((one.steps() for one in folders if isinstance(one, RunDocuments)), default=0)
    chosen = None
    if steps is not None:
        try:
            chosen = steps_named(steps, longest)
        except ValueError as error:
            raise UserMistake(f"--steps {steps}: {error}") from error
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


def _serve(
    ctx: typer.Context,
    folders: list[RunDocuments | EvaluationDocuments],
    port: int,
    no_browser: bool,
    json_: bool,
) -> None:
    import webbrowser

    from comas.view.documents import Several
    from comas.view.server import Server

    with Server(Several(folders), port) as server:
        if json_:
            print_json(ctx, {"url": server.url})
        else:
            print(server.url, flush=True)
            print("Ctrl-C ends it.", file=sys.stderr, flush=True)
        if not no_browser:
            webbrowser.open(server.url)
        server.serve_forever(poll_interval=0.2)
