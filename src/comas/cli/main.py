"""The command line: assemble and call.

A user's mistake is one line and exit code 2; Ctrl-C says how to go on and exits with 130; where
nobody reads stdout any more (`comas report | head -1`) it is 141, as of other programs. With
`--json` the last line of stdout is one object and nothing else is printed there. Leaves out:
everything that could be a function elsewhere.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comas.cli import evaluate, export
from comas.cli import show as cli_show
from comas.cli.json_output import Json, print_json, result_json
from comas.program import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from comas.config.schema import Config
    from comas.hooks import Hook
    from comas.storage.run import Run
    from comas.team.build import Team
    from comas.training.result import Result

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Teams of language models that teach each other by discussing questions.",
)


Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [KEY=VALUE]...", help="CONFIG.toml steps=20 ... (see docs/config.md)"
    ),
]


CLOSED = 141
"""Exit code where whoever read stdout has read enough (`comas eval ... | head`): what shells give
for it, 128 + SIGPIPE.
"""


def main() -> None:
    """Run the command line; the only place that turns exceptions into exit codes."""
    # their retries and bars, between our lines
    for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    from comas.types import HostFailure, UserMistake

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an old code page lacks the lines of our tables
    if odd := [argument for argument in sys.argv[1:] if not _is_text(argument)]:
        sys.exit(_fail(f"argument {os.fsencode(odd[0])!r} is not UTF-8: write it in UTF-8"))
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # as it is without any (`>&-`)
            sys.stdout.flush()
    except BrokenPipeError:
        code = CLOSED
    except SystemExit as left:
        # rich's word for a closed pipe; nobody else says 1
        code = CLOSED if left.code == 1 else left.code
    except (UserMistake, HostFailure, OSError) as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = _stop()
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C, in the words of older parsers
            code = _stop()
        elif not hasattr(error, "format_message"):  # not one of the parser's own complaints
            raise
        else:
            code = _fail(_with_hint(error.format_message()))  # type: ignore[attr-defined]
    if code == CLOSED and sys.stdout is not None:
        with suppress(OSError):  # what is left to write shall not fail once more while Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code if isinstance(code, int) else 0)


def _stop() -> int:
    """Say that it was stopped, where there is no run to go on with."""
    print("stopped", file=sys.stderr)
    return 130


def _is_text(argument: str) -> bool:
    """Whether the bytes of an argument are UTF-8; Python hands on others as lone surrogates."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _fail(message: str) -> int:
    printable = "".join(c if c.isprintable() else " " for c in message)
    print("error:", " ".join(printable.split()), file=sys.stderr)
    return 2


def _with_hint(message: str) -> str:
    """A complaint of the parser about `--steps`, with what is wanted instead."""
    from comas.config.schema import Config

    option = re.search(r"No such option:? '?--([\w-]+)", message)
    key = option[1].replace("-", "_") if option else ""
    return (
        f"{message} (keys of the config are written without dashes: {key}=...)"
        if key in Config.model_fields
        else message
    )


def _version(show: bool) -> None:
    if show:
        from comas.program import VERSION

        print(VERSION)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _common(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _read(arguments: list[str] | None) -> Config:
    from comas.config.schema import read

    given = list(arguments or [])
    path = given.pop(0) if given and "=" not in given[0] else None
    return read(path, given)


@app.command()
def train(
    ctx: typer.Context,
    arguments: Pairs = None,
    json_: Json = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate memory, disk and time; write nothing.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Of a dry run also the resolved config and the whole estimate."
        ),
    ] = False,
) -> None:
    """Train a team; without arguments the embedded default."""
    from comas.training.start import train_async

    config = _read(arguments)
    if dry_run:
        _dry_run(ctx, config, json_, full)
        return
    _watched(ctx, lambda watch: train_async(config, watch), json_)


@app.command()
def resume(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE]...",
            help="A run or evaluation (default: the latest run), steps=300 ...",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Go on with a run from its last commit, or with an evaluation; steps, tokens, budgets and
    bounds of memory may change.
    """
    from comas.evaluation.folder import PLAN
    from comas.evaluation.runner import Exam
    from comas.program import named_or_latest
    from comas.training.start import resume_async

    changes = list(arguments or [])
    named = (
        changes.pop(0) if changes and ("=" not in changes[0] or Path(changes[0]).is_dir()) else None
    )
    folder = named_or_latest(named)
    if (Path(folder) / PLAN).is_file():
        evaluate.sit(ctx, Exam.open(folder, changes), json_)
        return
    _watched(ctx, lambda watch: resume_async(folder, watch, changes=changes), json_)


def _watched(ctx: typer.Context, work: Any, as_json: bool) -> None:
    from rich.console import Console

    from comas.cli.outlet import Outlet
    from comas.display import Display, Lines, Quiet
    from comas.team.build import run_sync

    console = Console()
    live = console.is_terminal and not console.is_dumb_terminal
    watch = Quiet(Console(stderr=True)) if as_json else Display(console) if live else Lines(console)
    outlet = Outlet(watch)
    try:
        with watch if isinstance(watch, Display) else nullcontext():
            result = run_sync(work(outlet))
    except KeyboardInterrupt:
        # what a second Ctrl-C cut short is no news
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        with suppress(OSError):  # the terminal may be gone
            print(_stopped(watch), file=sys.stderr)
        sys.exit(CLOSED if outlet.gone else 130)
    if as_json:
        print_json(ctx, result_json(result))
    else:
        _summary(console, result)
        if outlet.gone:  # the console is silent by now
            sys.exit(CLOSED)


def _stopped(watch: Hook) -> str:
    if watch.path is None:
        return "stopped before the run began"
    folder = shlex.quote(str(watch.path))
    return f"stopped; go on with: {command()} resume {folder}"


def _summary(console: Console, result: Result) -> None:
    from comas.display import span
    from comas.storage.run import Run
    from comas.team.spending import told

    spent: dict[str, float] = {}
    total = 0.0
    for metrics in Run.open(result.run).metrics():
        total += metrics["seconds"]
        for kind, seconds in metrics["spent"].items():
            spent[kind] = spent.get(kind, 0.0) + seconds
    lines = [
        "",
        "held-out accuracy, mean over agents of single answers, 95 % interval over questions:",
    ]
    lines += [
        f"  {name:7s} {found if found else 'not measured'}"
        for name, found in result.accuracy.items()
    ]
    if result.gain:
        lines.append(
            f"  gain    {result.gain.mean:+.3f} [{result.gain.low:+.3f}, {result.gain.high:+.3f}]"
        )
    parts = ", ".join(f"{kind} {span(seconds)}" for kind, seconds in spent.items())
    whole = f"; this process, with measurements: {span(result.seconds)}" if result.seconds else ""
    lines.append(
        f"cost: {result.steps} steps, {result.tokens:,} generated tokens, {span(total)}"
        f" ({parts}){whole}"
    )
    lines += told(Run.open(result.run).spent())
    lines.append(f"run:  {result.run}")
    lines += [f"next: {command()} {rest}" for rest in _next(Run.open(result.run), result.steps)]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _next(run: Run, steps: int) -> Iterator[str]:
    """Commands that a reader of the summary may want."""
    folder = shlex.quote(str(run.path))
    config = run.config()
    yield f"show {folder}"
    yield f"play {folder}"
    yield f"eval {folder}"
    yield f"export {folder} my-team"
    if steps >= config["steps"]:
        yield f"resume {folder} steps={2 * max(1, steps)}"
    elif config.get("tokens") is not None:
        yield f"resume {folder} tokens={2 * config['tokens']}"
    else:
        yield f"resume {folder}"
    bases = {host["base"] for host in config["hosts"].values()} | {
        a["base"] for a in config["agents"].values() if "base" in a
    }
    if config["task"] == "pick" and bases == {"seed"}:
        yield "train method=ttrl"
        yield "train preset=paper"


def _dry_run(ctx: typer.Context, config: Config, as_json: bool, full: bool) -> None:
    from comas.forecast import overview as dry_run
    from comas.types import UserMistake

    made = dry_run.plan(config)
    if as_json:
        print_json(ctx, dry_run.as_data(made))
    else:
        print("\n".join(dry_run.report(made, full)))
    if made.mistake:
        raise UserMistake(made.mistake)


@app.command()
def play(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEAM] [KEY=VALUE]...",
            help="A run, seed model, TOML or export (default: the latest run).",
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="Ask this instead of a held-out question.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which question and which draws.")] = 0,
    json_: Json = False,
) -> None:
    """Watch one discussion: who says what, and what each turn is paid."""
    from comas.questions.checked import loaded
    from comas.storage.records import episode_record
    from comas.types import UserMistake

    if question is not None and not question.strip():
        raise UserMistake(
            "--question is empty: give a text, or leave it out for a held-out question"
        )
    team = _team(arguments)
    try:
        c = team.config
        asked = (
            question
            or loaded(team.task, "test", path=c.data, limit=1, seed=seed, **c.task_options)[0]
        )
        episode = team.discuss(asked, seed)
        if episode.error:
            raise UserMistake(episode.error)
        if json_:
            print_json(ctx, episode_record(episode))
        else:
            _show(team, episode, question is None)
    finally:
        team.close()


def _show(team: Team, episode: Any, known: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from comas.display import clean, discussion, readings

    console = Console()
    console.print(discussion(episode.question.prompt, episode.turns))
    for reading in readings(episode.turns):
        console.print(reading, soft_wrap=True)
    verdict = (
        f" ({team.task.verify(episode.question, episode.answer)})"
        if known and episode.answer is not None
        else ""
    )
    console.print(
        Text(
            f"answer: {clean(episode.answer) if episode.answer is not None else 'none'}{verdict}",
            "bold",
        )
    )


def _team(arguments: list[str] | None) -> Team:
    from comas.config.resolve import resolve
    from comas.config.systems import found_at, is_model, is_run
    from comas.evaluation.systems import greeted, system_team
    from comas.models.sources import meant, team_file
    from comas.program import latest_run
    from comas.sync import run_sync
    from comas.types import UserMistake

    if not arguments and (run := latest_run()) is not None:
        print(f"{run} (the latest run)", file=sys.stderr)
        arguments = [str(run)]
    if arguments and "=" not in arguments[0]:
        if is_model(arguments[0]):
            return system_team(arguments[0], arguments[1:])
        if is_run(arguments[0]) or team_file(arguments[0]) is not None:
            resolved, weights = found_at(arguments[0], overrides=arguments[1:])
            return run_sync(greeted(resolved, _note, weights))
        if not Path(arguments[0]).is_file():
            neither = (
                f"{arguments[0]} is neither a run's folder, nor a team's, nor a"
                f" config{meant(arguments[0])}"
            )
            raise UserMistake(f"{neither}; see {command()} play --help")
    return run_sync(greeted(resolve(_read(arguments)), _note))


def _note(text: str) -> None:
    print("note:", "".join(c if c.isprintable() else " " for c in text), file=sys.stderr)


@app.command()
def report(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run or an evaluation; default: the latest run."),
    ] = None,
    json_: Json = False,
) -> None:
    """What a run or an evaluation has come to so far; nothing is computed."""
    from rich.console import Console

    from comas.evaluation.folder import PLAN
    from comas.program import named_or_latest
    from comas.storage.run import Run
    from comas.training.result import result_of

    folder = named_or_latest(name)
    if (Path(folder) / PLAN).is_file():
        evaluate.show_again(ctx, Path(folder), json_)
        return
    result = result_of(Run.open(folder), 0.0)
    if json_:
        print_json(ctx, result_json(result))
    else:
        _summary(Console(), result)


app.command("eval")(evaluate.evaluate)
app.command()(cli_show.show)
app.command()(evaluate.compare)
app.command()(export.export)


@app.command()
def doctor(ctx: typer.Context, json_: Json = False) -> None:
    """What is installed, and what would run where."""
    from comas.installed import examine

    found = examine()
    if json_:
        print_json(ctx, found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, said in value.items():
                print(f"  {name:14s} {said}")
        else:
            print(f"{key}: {value}")


if __name__ == "__main__":
    main()
