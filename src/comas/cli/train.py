"""`comas train`, `comas resume` and `comas report`: read the config, train, watch, and say what a
run came to.

Leaves out: training (`training.start`), curves (`comas view`), what an evaluation came to
(`cli.evaluate`), what is averaged of its figures (`training.result`).
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console

from comas.cli import evaluate
from comas.cli.discussions import LIMIT, ONLY, Wanted, print_discussions
from comas.cli.output import Json, Outlet, print_json, print_note, print_stopped, settings_typed
from comas.config.schema import Config, read
from comas.display import span, watcher
from comas.evaluation.runner import PLAN, EvaluationRun
from comas.exit_codes import ALARMED, CLOSED, STOPPED
from comas.hooks import Hook
from comas.program import command, named_or_latest
from comas.stats import interval_record, spelt
from comas.storage.records import without_none
from comas.storage.run import Run
from comas.sync import run_sync
from comas.team.spending import cost_lines
from comas.training.result import FIGURES, LAST, Result, result_of
from comas.training.start import resume_async, train_async
from comas.types import UserMistake

Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [KEY=VALUE]...", help="CONFIG.toml steps=20 ... (see docs/config.md)"
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [KEY=VALUE]...",
        help="A run or evaluation (default: the latest run), steps=300 ...",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Measure memory and time with a few discussions; write nothing."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Of a dry run also the resolved config.")]
Name = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run or an evaluation; default: the latest run."),
]


def train(
    ctx: typer.Context,
    arguments: Pairs = None,
    json_: Json = False,
    dry_run: DryRun = False,
    full: Full = False,
) -> None:
    """Train a team; without arguments the embedded default.

    \b
    Keys that most runs set (all: comas list keys):
      base=MODEL          hub name, folder, GGUF file, tiny, smollm2
      task=NAME           gsm8k, jsonl, pick, ./FILE.py (comas list tasks)
      data=PATH           a file or folder of questions
      method=NAME         comas, ttrl, ./FILE.py (comas list methods)
      agents=4            how many discuss
      steps=50            or tokens=1_000_000
      questions=24        of a step
      samples=8           discussions of each question
      lr=1e-4             learning rate
      temperature=0.8     of replies
      room.solution=512   tokens of a reply in this role
      preset=stable       named settings of the method
      out=runs/mine       a new folder

    \b
    Examples:
      comas train steps=20
      comas train task=jsonl data=mine.jsonl base=./my-model lr=1e-4
      comas train method=ttrl task=gsm8k base=smollm2 --dry-run
    """
    config = read_config(arguments)
    if not dry_run:
        _watch(ctx, lambda hook: train_async(config, hook), json_)
        return
    from comas.training.dry_run import dry_run as measured

    trial = run_sync(measured(config, print_note))
    if json_:
        print_json(ctx, trial.data)
        return
    print("\n".join(trial.lines), end="\n\n")
    print(tomli_w.dumps(without_none(trial.config.model_dump())) if full else "config: --full")


def read_config(arguments: list[str] | None) -> Config:
    """Read `[CONFIG] [KEY=VALUE]...`."""
    pairs = list(arguments or [])
    path = pairs.pop(0) if pairs and "=" not in pairs[0] else None
    return read(path, settings_typed(pairs))


def resume(ctx: typer.Context, arguments: Changes = None, json_: Json = False) -> None:
    """Go on with a run or an evaluation.

    A run goes on from its last commit; steps, tokens, budgets and bounds of memory may change.
    """
    words = list(arguments or [])
    name = None
    if words and ("=" not in words[0] or Path(words[0]).is_dir()):
        name = words.pop(0)
    folder = named_or_latest(name)
    changes = settings_typed(words)
    if (Path(folder) / PLAN).is_file():
        evaluate.go_on(ctx, EvaluationRun.open(folder, changes), json_, words)
        return

    def run(hook: Hook) -> Coroutine[Any, Any, Result]:
        return resume_async(folder, hook, changes=changes)

    _watch(ctx, run, json_, Path(folder), words)


def _watch(
    ctx: typer.Context,
    run: Callable[[Hook], Coroutine[Any, Any, Result]],
    as_json: bool,
    folder: Path | None = None,
    changes: Sequence[str] = (),
) -> None:
    """Let a run go on, show how it goes, and what it came to; `folder` is that of one that has
    begun before, `changes` what it goes on with.
    """
    display = watcher(as_json)
    outlet = Outlet(display)
    try:
        with display:
            result = run_sync(run(outlet))
    except KeyboardInterrupt:
        # what a second Ctrl-C cut short is no news
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        with suppress(OSError):  # the terminal may be gone
            print_stopped(display.path or folder, changes)
        sys.exit(CLOSED if outlet.gone else STOPPED)
    if as_json:
        print_json(ctx, result_json(result))
    else:
        print_summary(display.console, result)
    if outlet.gone and not as_json:  # the console is silent by now
        sys.exit(CLOSED)
    if result.ended_by_alarm:
        sys.exit(ALARMED)


def report(
    ctx: typer.Context,
    name: Name = None,
    discussions: Annotated[
        bool, typer.Option("--discussions", help="The discussions of a run, with rewards.")
    ] = False,
    step: Annotated[
        int | None, typer.Option(min=1, help="Of discussions: from 1; the last one unless named.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="Only of questions whose id or text contains this.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help=f"Only discussions with such a turn: {', '.join(ONLY)}."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Discussions at most.", show_default=str(LIMIT))
    ] = None,
    json_: Json = False,
) -> None:
    """Show what a run or an evaluation has come to.

    With --discussions its discussions. Nothing is computed.
    """
    folder = Path(named_or_latest(name))
    wanted = Wanted(step, question, only, limit)
    if discussions:
        print_discussions(ctx, Run.open(folder), wanted, json_)
        return
    if wanted != Wanted():
        raise UserMistake("--step, --question, --only and --limit are of --discussions: add it")
    if (folder / PLAN).is_file():
        evaluate.show_again(ctx, folder, json_)
        return
    result = result_of(Run.open(folder))
    if json_:
        print_json(ctx, result_json(result))
    else:
        print_summary(Console(), result)


# --- what a run came to


def print_summary(console: Console, result: Result) -> None:
    """Print accuracies, figures against labels, costs, and what may be done next."""
    lines = [
        "",
        *_accuracies(result),
        *_fallen(result),
        *figure_lines(result),
        *_unmoved(result),
        *(f"alarm in step {alarm['step'] + 1}: {alarm['text']}" for alarm in result.alarms),
        _cost(result),
        *cost_lines(result.api),
        f"run:  {result.run}",
        *(f"next: {command()} {rest}" for rest in _next(result)),
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _accuracies(result: Result) -> Iterator[str]:
    """The gain first, where it was measured, then what it is the difference of."""
    over = "mean over agents, 95 % intervals over questions"
    before, after = (result.accuracy.get(name) for name in ("before", "after"))
    if result.gain and before and after:
        gain = spelt(*result.gain[:3], "+.3f")
        yield f"held-out accuracy {before.mean:.3f} -> {after.mean:.3f}: gain {gain} ({over})"
    else:
        yield f"held-out accuracy, {over}:"
    for name, interval in result.accuracy.items():
        yield f"  {name:7s} {interval or 'not measured'}"


def _unmoved(result: Result) -> Iterator[str]:
    """Policies that fewer than half of the steps changed: such a run may have learnt nothing."""
    for policy, steps in result.moved.items():
        if 2 * steps < result.steps:
            yield f"{policy}: moved {steps} of {result.steps} steps"


FALLEN = 0.1
"""By how much an agent's accuracy has to fall for the agents to be shown one by one."""


def _fallen(result: Result) -> Iterator[str]:
    """Each agent's accuracy before and after, where that of one fell: the mean may hide it."""
    before, after = (result.agents.get(name, {}) for name in ("before", "after"))
    both = sorted(before.keys() & after.keys()) if result.gain else []
    if len(both) > 1 and any(before[agent] - after[agent] >= FALLEN for agent in both):
        changes = [f"{agent} {before[agent]:.3f} to {after[agent]:.3f}" for agent in both]
        yield f"  an agent fell: {', '.join(changes)}"


def _cost(result: Result) -> str:
    parts = ", ".join(f"{kind} {span(seconds)}" for kind, seconds in result.spent.items())
    amount = f"{result.steps} steps, {result.tokens:,} generated tokens"
    return f"cost: {amount}, {span(result.step_seconds)} ({parts})"


def _next(result: Result) -> Iterator[str]:
    """The three commands that fit what was done: look at it, measure it, and go on with what was
    stopped or show what it learnt.
    """
    folder = shlex.quote(str(result.run))
    tokens = result.config.get("tokens")
    yield f"view {folder}"
    yield f"eval {folder}"
    if result.ended_by_alarm:
        yield f"resume {folder} on_alarm=warn"
    elif result.steps >= result.config["steps"]:
        yield f"export {folder} my-team"
    elif tokens is not None and result.tokens >= tokens:
        yield f"resume {folder} tokens={2 * tokens}"
    else:
        yield f"resume {folder}"


def result_json(result: Result) -> dict[str, Any]:
    """A run: `seconds` are of this process, null of a report, which computes nothing;
    `step_seconds` of all steps so far, `last_steps` the means of their figures against labels.
    """
    return {
        "run": str(result.run),
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 3) if result.seconds else None,
        "step_seconds": round(result.step_seconds, 3),
        "accuracy": {name: i and interval_record(i) for name, i in result.accuracy.items()},
        "gain": result.gain and interval_record(result.gain),
        "last_steps": result.figures,
        "moved": result.moved,
        "notes": result.notes,
        "alarms": result.alarms,
        "ended_by_alarm": result.ended_by_alarm,
        "api": result.api,
    }


FIGURE_LABELS = {
    ("judges", "auc"): "area under the curve (chance is 0.50)",
    ("judges", "balanced"): "balanced accuracy",
    ("judges", "accepts_right"): "right work accepted",
    ("judges", "accepts_wrong"): "wrong work accepted",
    ("variety", "distinct"): "different answers to a question",
    ("variety", "entropy"): "entropy in nats per token",
    ("posed", "valid"): "are questions",
    ("posed", "distinct"): "of these different",
    ("posed", "solvable"): "solved",
    ("posed", "frontier"): "solved in .3 to .8 of tries",
}
"""Metric and its figure -> words for it; others are called as in `metrics.jsonl`."""


def figure_lines(result: Result) -> Iterator[str]:
    """The figures in words, a line for each metric and role; nothing where there is none."""
    if not result.figures:
        return
    steps = min(LAST, result.steps)
    over = "the last step" if steps == 1 else f"the last {steps} steps"
    yield f"{over}, against labels where there are any (no method sees these figures):"
    for metric, roles in result.figures.items():
        for role, of_role in roles.items():
            if metric == "pay" and {"accuracy", "auc"} <= of_role.keys():
                yield f"  {_rewarded_rightly(of_role)}"
                continue
            names = [name for name in FIGURES[metric] if name in of_role]
            if metric == "judges" and "auc" in names:  # what is accepted depends on a bound then
                names = ["auc"]
            shown = ", ".join(
                f"{FIGURE_LABELS.get((metric, name), name)} {of_role[name]:.2f}" for name in names
            )
            if shown:
                metric_name = "rewards" if metric == "pay" else metric
                yield f"  {metric_name}{'' if role == 'step' else f' of {role}'}: {shown}"


def _rewarded_rightly(figures: Mapping[str, float]) -> str:
    """Say what rewards are worth against labels, in a sentence or two."""
    auc = figures["auc"]
    more = "more than" if auc > 0.55 else "less than" if auc < 0.45 else "no more than"
    line = f"Right answers are rewarded {more} wrong ones (AUC {auc:.2f}; chance is 0.50)."
    if "precision" in figures:
        line = f"Of rewarded answers {figures['precision']:.0%} are right. {line}"
    return line
