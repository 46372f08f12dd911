"""The command line: assemble and call.

A user's mistake is one line and exit code 2; Ctrl-C says how to go on and exits with 130. With `--json` the last line of
stdout is one object and nothing else is printed there. Leaves out: everything that could be a function elsewhere.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from comas.config import Config
    from comas.evaluate import Answer
    from comas.stats import Interval
    from comas.team import Team
    from comas.train import Result, Watch
    from comas.types import Turn

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Teams of language models that teach each other by discussing questions.")


def _reserve(ctx: typer.Context, wanted: bool) -> bool:
    """With `--json`, stdout is for the object alone: whatever else is printed, by a user's method too, goes to stderr."""
    if wanted:
        ctx.obj = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return wanted


Json = Annotated[bool, typer.Option("--json", callback=_reserve, help="The last line of stdout is one JSON object.")]
Pairs = Annotated[list[str] | None, typer.Argument(help="[CONFIG.toml] key=value ... (see docs/config.md)")]


def main() -> None:
    """Run the command line; the only place that turns exceptions into exit codes."""
    for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):  # their retries and bars, between our lines
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    from comas.types import HostFailure, UserMistake

    try:
        code = app(standalone_mode=False)
    except (UserMistake, HostFailure, OSError) as error:
        code = _fail(str(error))
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C, in the words of older parsers
            code = 130
        elif not hasattr(error, "format_message"):  # not one of the parser's own complaints
            raise
        else:
            code = _fail(error.format_message())  # type: ignore[attr-defined]
    if code == 130:  # where there is no run to go on with
        print("stopped", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> int:
    printable = "".join(c if c.isprintable() else " " for c in message)
    print("error:", " ".join(printable.split()), file=sys.stderr)
    return 2


def _version(show: bool) -> None:
    if show:
        from comas import __version__

        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _common(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _read(arguments: list[str] | None) -> Config:
    from comas.config import read

    given = list(arguments or [])
    path = given.pop(0) if given and "=" not in given[0] else None
    return read(path, given)


@app.command()
def train(
    ctx: typer.Context, arguments: Pairs = None, json_: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the resolved config and an estimate; write nothing.")] = False,
) -> None:
    """Train a team; without arguments the embedded default."""
    from comas.train import train_async

    config = _read(arguments)
    if dry_run:
        _dry_run(ctx, config, json_)
        return
    _watched(ctx, lambda watch: train_async(config, watch), json_)


@app.command()
def resume(
    ctx: typer.Context, run: Annotated[str, typer.Argument(help="The folder of a run.")], json_: Json = False
) -> None:
    """Go on with a run from its last commit."""
    from comas.train import resume_async

    _watched(ctx, lambda watch: resume_async(run, watch), json_)


def _watched(ctx: typer.Context, work: Any, as_json: bool) -> None:
    from rich.console import Console

    from comas.live import Display, Lines, Quiet
    from comas.team import run_sync

    console = Console()
    live = console.is_terminal and not console.is_dumb_terminal
    watch = Quiet(Console(stderr=True)) if as_json else Display(console) if live else Lines(console)
    try:
        with watch if isinstance(watch, Display) else nullcontext():
            result = run_sync(work(watch))
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # what a second Ctrl-C cut short is no news
        print(_stopped(watch), file=sys.stderr)
        sys.exit(130)
    if as_json:
        _print_json(ctx, _result_json(result))
    else:
        _summary(console, result)


def _stopped(watch: Watch) -> str:
    if watch.path is None:
        return "stopped before the run began"
    folder = shlex.quote(str(watch.path))
    return f"stopped; go on with: comas resume {folder}"


def _result_json(result: Result) -> dict[str, Any]:
    found = {name: _interval(i) for name, i in result.accuracy.items()}
    return {
        "run": str(result.run), "steps": result.steps, "tokens": result.tokens, "seconds": round(result.seconds, 3),
        "accuracy": found, "gain": _interval(result.gain),
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    """JSON has no infinity: an open end is null."""
    return {k: v if math.isfinite(v) else None for k, v in found._asdict().items()} if found else None


def _print_json(ctx: typer.Context, record: Any) -> None:
    print(json.dumps(record), file=ctx.obj, flush=True)


def _summary(console: Console, result: Result) -> None:
    from comas.live import span
    from comas.store import Run

    spent: dict[str, float] = {}
    total = 0.0
    for metrics in Run.open(result.run).metrics():
        total += metrics["seconds"]
        for kind, seconds in metrics["spent"].items():
            spent[kind] = spent.get(kind, 0.0) + seconds
    lines = ["", "held-out accuracy, mean over agents of single answers, 95 % interval over questions:"]
    lines += [f"  {name:7s} {found if found else 'not measured'}" for name, found in result.accuracy.items()]
    if result.gain:
        lines.append(f"  gain    {result.gain.mean:+.3f} [{result.gain.low:+.3f}, {result.gain.high:+.3f}]")
    parts = ", ".join(f"{kind} {span(seconds)}" for kind, seconds in spent.items())
    whole = f"this process, with measurements: {span(result.seconds)}"
    lines.append(f"cost: {result.steps} steps, {result.tokens:,} generated tokens, {span(total)} ({parts}); {whole}")
    lines.append(f"run:  {result.run}")
    folder = shlex.quote(str(result.run))
    lines += [f"next: comas play {folder}", f"next: comas eval {folder}"]
    if Run.open(result.run).config()["task"] == "pick":
        lines += ["next: comas train method=ttrl", "next: comas train preset=paper"]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _dry_run(ctx: typer.Context, config: Config, as_json: bool) -> None:
    import tomli_w

    from comas.config import resolve
    from comas.estimate import estimate, memory
    from comas.store import without_none

    resolved, method, task = resolve(config)
    needs = {**estimate(resolved, method, task), **memory(resolved, method, task)}
    if as_json:
        _print_json(ctx, {"config": resolved.model_dump(), "estimate": needs})
        return
    print(tomli_w.dumps(without_none(resolved.model_dump())))
    for key, value in needs.items():
        print(f"# {key}: {value:,}" if isinstance(value, int) else f"# {key}: {value}")


@app.command()
def play(
    ctx: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(help="[RUN or CONFIG.toml] key=value ...")] = None,
    question: Annotated[str | None, typer.Option(help="Ask this instead of a held-out question.")] = None,
    seed: Annotated[int, typer.Option(help="Which question and which draws.")] = 0, json_: Json = False,
) -> None:
    """Watch one discussion: who says what, and what each turn is paid."""
    from comas.config import split_options
    from comas.play import settle_all
    from comas.store import episode_record
    from comas.types import UserMistake

    if question is not None and not question.strip():
        raise UserMistake("--question is empty: give a text, or leave it out for a held-out question")
    team = _team(arguments)
    try:
        c = team.config
        asked = question or team.task.load("test", path=c.data, limit=1, seed=seed, **c.task_options)[0]
        episode = team.discuss(asked, seed)
        if episode.error:
            raise UserMistake(episode.error)
        if question is None or not team.method.supervised:
            settle_all(team.scene(), [episode], split_options(c.options, team.method.settle))
        if json_:
            _print_json(ctx, episode_record(episode))
        else:
            _show(team, episode, question is None)
    finally:
        team.close()


def _show(team: Team, episode: Any, known: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from comas.live import clean, discussion

    console = Console()
    console.print(discussion(episode.question.prompt, episode.turns))
    for line in filter(None, map(_read_as, episode.turns)):
        console.print(Text(line, "dim"), soft_wrap=True)
    verdict = f" ({team.task.verify(episode.question, episode.answer)})" if known and episode.answer is not None else ""
    console.print(Text(f"answer: {clean(episode.answer) if episode.answer is not None else 'none'}{verdict}", "bold"))


def _read_as(turn: Turn) -> str | None:
    """What the game read in a turn: the reason of payments."""
    from comas.live import clean

    for fact in ("score", "answer"):
        if fact in turn.info:
            read = turn.info[fact]
            return clean(f"{turn.agent} {turn.role}: " + (f"no {fact} could be read" if read is None else f"{fact} {read}"))
    if turn.info.get("readable") is False:
        return f"{clean(turn.agent)} {turn.role}: no answer could be read"
    return None


def _team(arguments: list[str] | None) -> Team:
    from comas.config import resolve
    from comas.team import build_team, load
    from comas.types import UserMistake

    if arguments and "=" not in arguments[0]:
        if (Path(arguments[0]) / "config.toml").is_file():
            return load(arguments[0], overrides=arguments[1:])
        if not Path(arguments[0]).is_file():
            raise UserMistake(f"{arguments[0]} is neither a run's folder nor a config: see comas play --help")
    return build_team(*resolve(_read(arguments)), learn=False)


@app.command(name="eval")
def eval_(
    ctx: typer.Context,
    systems: Annotated[list[str], typer.Argument(help="Runs, base models, and key=value of the config.")], json_: Json = False,
) -> None:
    """How often the agents of runs or base models are right on held-out questions, each answering alone."""
    from rich.console import Console
    from rich.table import Table

    from comas.types import UserMistake

    pairs = [s for s in systems if "=" in s]
    names = [s for s in systems if "=" not in s]
    if not names:
        raise UserMistake("eval needs at least one run or base model, such as: comas eval seed")
    cells = [_measured(name, pairs)[0] for name in names]
    if json_:
        _print_json(ctx, {"cells": cells})
        return
    table = Table("system", "n", "right", "wrong", "failed", "accuracy, 95 %", "tokens", title="single held-out answers")
    for column in table.columns[1:]:
        column.no_wrap = True
    for c in cells:
        found = f"{c['accuracy']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" if c["accuracy"] is not None else "nothing judged"
        row = [str(c[k]) for k in ("system", "n", "right", "wrong", "failed")]
        table.add_row(*row, found, f"{c['tokens']:,}")
    Console().print(table)


def _measured(name: str, pairs: list[str]) -> tuple[dict[str, Any], list[Answer], Config]:
    """A cell of `eval`, the answers behind it, and the config."""
    import time

    from comas.config import read, resolve
    from comas.evaluate import accuracy, answer_all
    from comas.team import build_team, load, run_sync

    if (Path(name) / "config.toml").is_file():
        team = load(name, overrides=pairs)
    else:
        team = build_team(*resolve(read(None, ["agents=1", f"hosts.home.base={json.dumps(name)}", "lr=1e-6", *pairs])), learn=False)
    try:
        c, began = team.config, time.monotonic()
        questions = team.task.load("test", path=c.data, limit=c.test_questions or None, seed=c.seed, **c.task_options)
        work = answer_all(
            team.members, team.task, questions, seed=c.seed, occasion="eval", temperature=c.eval_temperature, room=c.room
        )
        answers = run_sync(work)
    finally:
        team.close()
    found = _interval(accuracy(answers)) or {"mean": None, "low": None, "high": None}
    verdicts = {v: sum(a.verdict == v for a in answers) for v in ("right", "wrong", "failed")}
    accuracies = {"accuracy": found["mean"], "low": found["low"], "high": found["high"]}
    cell = {"system": name, "task": c.task, "setup": "single", "n": len(questions), "agents": len(team.members), **verdicts}
    cell |= {**accuracies, "tokens": sum(a.tokens for a in answers), "seconds": round(time.monotonic() - began, 3)}
    return cell, answers, c


@app.command()
def compare(
    ctx: typer.Context, first: Annotated[str, typer.Argument(help="A run or a base model.")],
    second: Annotated[str, typer.Argument(help="Another one: is it better?")],
    pairs: Annotated[list[str] | None, typer.Argument(help="key=value of the config, for both.")] = None, json_: Json = False,
) -> None:
    """Whether the second of two runs or base models is better than the first, on the same held-out questions."""
    from comas import evaluate
    from comas.types import UserMistake

    (cell, answers, config), (_, others, other) = (_measured(name, pairs or []) for name in (first, second))
    if (config.task, config.task_options) != (other.task, other.task_options):
        raise UserMistake(f"{first} is of task {config.task} {config.task_options}, {second} of {other.task} {other.task_options}")
    found = evaluate.compare(answers, others, config.seed)
    if found is None:
        raise UserMistake(f"{first} and {second}: fewer than two questions were judged for both; nothing can be said")
    if json_:
        span = {"difference": found.interval.mean, "low": found.interval.low, "high": found.interval.high}
        facts = {"task": cell["task"], "setup": cell["setup"], "n": found.interval.n, **span, "p": found.p, "test": found.test}
        _print_json(ctx, {"cells": [{**facts, "verdict": found.verdict}]})
        return
    i = found.interval
    print(f"{second} minus {first}: {i.mean:+.3f} [{i.low:+.3f}, {i.high:+.3f}] over {i.n} {cell['task']} questions")
    print(f"p = {found.p:.4f} ({found.test}): {found.verdict}")


@app.command()
def doctor(ctx: typer.Context, json_: Json = False) -> None:
    """What is installed, and what would run where."""
    from comas.estimate import examine

    found = examine()
    if json_:
        _print_json(ctx, found)
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
