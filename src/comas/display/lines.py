"""A run or an evaluation in words: for logs, pipes and notebooks, and on terminals with a live line
below; and where a call from Python is looked on at all.

Leaves out: discussions, curves (`comas view`).
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from comas.display.discussions import clean, span
from comas.evaluation.report import label
from comas.hooks import Hook, Progress, Stage, hooks_of
from comas.stats import Interval
from comas.storage.run import Run
from comas.team.build import Team
from comas.types import Episode

NAMES: dict[Stage, str] = {
    "estimating": "estimating memory",
    "loading": "loading the models",
    "before": "measuring accuracy before training",
    "playing": "playing",
    "learning": "learning",
    "validation": "measuring validation accuracy",
    "after": "measuring accuracy after training",
    "saving": "saving",
}

STEPS = 3
"""After so many it is said how long the rest will take."""
GAMES = 16
"""The same of an evaluation."""


def amount(progress: Progress) -> str:
    """How much of a stage is done: `12 of at most 20 replies`; empty where nothing is counted."""
    if progress.stage == "learning":
        if not progress.rows_due:
            return ""
        learnt = f"{progress.rows_learnt} of {progress.rows_due} rows learnt"
        reading = progress.rows_read and not progress.rows_learnt
        return f"{learnt}, {progress.rows_read} read" if reading else learnt
    if progress.stage in ("estimating", "loading", "saving"):
        return ""
    kind = "replies" if progress.stage == "playing" else "answers"
    if progress.apart:
        kind += f" and {progress.apart} to monitors"
    if progress.expected is None:
        return f"{progress.replies} {kind}"
    sure = "" if progress.certainty == "exactly" else f"{progress.certainty} "
    return f"{progress.replies} of {sure}{progress.expected} {kind}"


def speed(progress: Progress) -> str:
    """Tokens of the stage, and how many per second now."""
    if not progress.tokens:
        return ""
    now = f", {progress.speed:,.0f}/s" if progress.speed is not None else ""
    return f"{progress.tokens:,} tokens{now}"


def lost(replies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Per role what was cut or could not be read, where there is any: `scoring 3 of 8 cut, 5 of 8
    unreadable`.
    """
    roles: dict[str, Counter[str]] = {}
    for row in replies:
        total = roles.setdefault(row["role"], Counter())
        for kind in ("turns", "cut", "unreadable"):
            total[kind] += row[kind] or 0  # None where the game does not say
    lines: list[str] = []
    for role, total in roles.items():
        kinds = [kind for kind in ("cut", "unreadable") if total[kind]]
        if kinds:
            parts = [f"{total[kind]} of {total['turns']} {kind}" for kind in kinds]
            lines.append(f"{role} {', '.join(parts)}")
    return lines


def ties(metrics: Mapping[str, Any]) -> str:
    """Near-ties of a step beside how many are expected; empty where nobody expects any, or where
    there are no more than chance explains.
    """
    policies = metrics.get("policies", {}).values()
    expected = [stats["near_ties_expected"] for stats in policies if "near_ties_expected" in stats]
    if not expected:
        return ""
    found = metrics.get("counts", {}).get("near_ties") or 0
    mean = sum(expected)
    # counts scatter by the root of their mean
    if found <= mean + 4 * max(1.0, mean) ** 0.5:
        return ""
    return f"near-ties {found}, expected {mean:.1f}"


class Quiet(Hook):
    """Notes only."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        self.console.print(Text(clean(line, 2000)), soft_wrap=True)


class Lines(Quiet):
    """A line every `every` seconds at most, and one per measurement: for logs and pipes."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        super().__init__(console)
        self.every = every
        self.said = time.monotonic()
        """When there was news of a step or stage."""
        self.total = 0
        self.began = time.monotonic()
        self.finished_any = False
        self.steps: list[float] = []
        """Seconds of those of this process."""
        self.tokens: int | None = None
        """With which the run ends."""

    def begin(self, run: Run, team: Team, start: int) -> None:
        config = team.config
        self.total = config.steps
        self.tokens = config.tokens
        self.began = self.said = time.monotonic()
        method = f"{config.method}/{config.preset or '-'}"
        self._say(f"{len(team.members)} agents, {method}, in {run.path}")
        for role, what in team.method.pays.items():
            self._say(f"{role} is paid {what}")

    def working(self, progress: Progress) -> None:
        # told once: nothing is counted there
        if progress.stage in ("estimating", "loading") and not self.total:
            self._say(NAMES[progress.stage])
        if time.monotonic() - self.said < self.every:
            return
        self.said = time.monotonic()
        line = NAMES[progress.stage]
        if progress.stage in ("playing", "learning"):
            line = f"step {progress.step + 1}/{self.total}, {line}"
        details = ", ".join(filter(None, (amount(progress), speed(progress))))
        if details:
            line += f": {details}"
        self._say(f"{line}; {span(self.said - self.began)}")

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self.steps.append(metrics["seconds"])
        if self.finished_any and time.monotonic() - self.said < self.every:
            return
        self.finished_any = True
        self.said = time.monotonic()
        done = f"step {metrics['step'] + 1}/{self.total}"
        tokens = f"{metrics['tokens']:,} tokens"
        seconds = metrics.get("spent", {}).get("sampling")
        if seconds:
            tokens += f" ({metrics['step_tokens'] / seconds:,.0f}/s)"
        rewards = metrics.get("rewards", {}).items()
        reward = " ".join(f"{role} {value:+.2f}" for role, value in rewards)
        parts = [f"{tokens}; reward {reward}", *lost(metrics.get("replies", ())), ties(metrics)]
        left = self._left(metrics)
        if len(self.steps) >= STEPS and left:
            parts.append(f"left {span(left)}")
        facts = "; ".join(filter(None, parts))
        self._say(f"{done}: {span(self.said - self.began)}, {facts}")

    def _left(self, metrics: Mapping[str, Any]) -> float:
        """Seconds that the rest may take, as the steps so far did; tokens may end it earlier."""
        steps = self.total - metrics["step"] - 1
        if self.tokens:
            steps = min(steps, (self.tokens - metrics["tokens"]) / max(1, metrics["step_tokens"]))
        return max(0.0, steps) * sum(self.steps) / len(self.steps)

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        self.said = time.monotonic()
        accuracy = found if found else "unknown: nothing could be judged"
        self._say(f"step {step}: accuracy {name} {accuracy}")


def _bars(console: Console, **options: Any) -> Bars:
    """A live line: what goes on, how much of it is done as a bar and in words, for how long."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[details]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=4,
        **options,
    )


class Display(Lines):
    """On a terminal: a line per step, and below them a live one of the stage that goes on."""

    def __init__(self, console: Console, redirect: bool = True) -> None:
        """`redirect`: what others print to standard output meanwhile appears above the live line,
        on its console.
        """
        super().__init__(console, every=0.0)
        self.left = ""
        """How long the rest takes, in words."""
        self.stage: tuple[str, int] | None = None
        self.bars = _bars(console, transient=True, redirect_stdout=redirect)
        self.row = self.bars.add_task("", total=None, details="")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def working(self, progress: Progress) -> None:
        if self.stage != (progress.stage, progress.step):
            self.stage = (progress.stage, progress.step)
            self.bars.reset(self.row)
        name = NAMES[progress.stage]
        if progress.stage in ("playing", "learning"):
            name = f"step {progress.step + 1}/{self.total}, {name}"
        learning = progress.stage == "learning"
        details = filter(None, (amount(progress), speed(progress), self.left))
        self.bars.update(
            self.row,
            description=name,
            total=(progress.rows_due if learning else progress.expected) or None,
            completed=progress.rows_learnt if learning else progress.replies,
            details=", ".join(details),
        )

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        super().step(metrics, episodes)
        left = self._left(metrics)
        self.left = f"about {span(left)} for the other steps" if left else ""


# --- an evaluation


class ExamLines(Quiet):
    """An evaluation for logs and pipes: a line every `every` seconds at most; with `quiet` none."""

    def __init__(self, console: Console, quiet: bool = False, every: float = 10.0) -> None:
        super().__init__(console)
        self.quiet = quiet
        self.every = every
        self.games = 0
        self.done = 0
        self.fresh = 0
        self.failed = 0
        self.tokens = 0
        """Of games that have ended."""
        self.what = ""
        self.began = self.said = 0.0
        """When the first game could begin: loading is not counted."""

    def planned(self, folder: Path, games: int, done: int) -> None:
        if self.games == 0:
            self.done = done
            there = f"; {done} are there already" if done else ""
            self._say(f"{games:,} games, in {folder}{there}")
        self.games = games

    def cell(self, system: str, task: str, setup: str) -> None:
        self.what = clean(f"{label(system)} {task} {setup}")
        self.began = self.began or time.monotonic()
        self.said = self.said or self.began

    def working(self, progress: Progress) -> None:
        if progress.stage == "loading":
            self._say(NAMES["loading"])
            return
        # the first game may end late
        self._tell(self.rate() if self.fresh else speed(progress))

    def game(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.fresh += 1
        self.failed += record["verdict"] == "failed"
        self.tokens += sum(t["tokens"] for t in record["turns"])
        self._tell(self.rate())

    def _tell(self, rate: str) -> None:
        """Say how far the cell has come, once in a while."""
        if time.monotonic() - self.said <= self.every:
            return
        self.said = time.monotonic()
        left = self.left()
        rest = f", left {left}" if left else ""
        self._say(f"{self.what}: {self.done}/{self.games} games, {rate}{rest}")

    def rate(self) -> str:
        """Games and tokens per second, and how many failed."""
        passed = max(1e-9, time.monotonic() - self.began)
        games = self.fresh / passed
        tokens = self.tokens / passed
        rate = f"{games:,.1f} games/s, {tokens:,.0f} tokens/s"
        return f"{rate}, {self.failed} failed" if self.failed else rate

    def left(self) -> str:
        """How long the rest may take; empty before enough games have ended: they are played at
        once, and the first says little of the others.
        """
        if self.fresh < max(1, min(GAMES, self.games - self.done)):
            return ""
        per_game = (time.monotonic() - self.began) / self.fresh
        return span((self.games - self.done) * per_game)

    def _say(self, line: str) -> None:
        if not self.quiet:
            super()._say(line)


class Bar(ExamLines):
    """An evaluation on a terminal: how far, how fast, how much longer, what failed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, every=math.inf)
        self.bars = _bars(console)
        self.row = self.bars.add_task("loading", start=False, total=None, details="")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def planned(self, folder: Path, games: int, done: int) -> None:
        super().planned(folder, games, done)
        self._show("")

    def cell(self, system: str, task: str, setup: str) -> None:
        super().cell(system, task, setup)
        self.bars.start_task(self.row)
        self._show("")

    def working(self, progress: Progress) -> None:
        super().working(progress)
        if progress.tokens and not self.fresh:
            self._show(f"{progress.tokens:,} tokens")

    def game(self, record: Mapping[str, Any]) -> None:
        super().game(record)
        left = self.left()
        self._show(self.rate() + (f", left {left}" if left else ""))

    def _show(self, rate: str) -> None:
        details = ", ".join(filter(None, (f"{self.done}/{self.games}", rate)))
        what = self.what or "loading"
        self.bars.update(
            self.row, description=what, total=self.games, completed=self.done, details=details
        )


# --- a call from Python


@contextmanager
def shown(hooks: Sequence[Hook] | None) -> Iterator[Sequence[Hook]]:
    """Yield `hooks`, or where they are None one that shows progress where a person looks on, on a
    terminal lines with a live one below, in a notebook lines; without any, only notes are told (as
    warnings).

    Nothing is printed where nobody looks on: to files and pipes, from threads and child processes.
    """
    place = None if hooks is not None else onlooker()
    if place is None:
        checked = hooks if hooks is not None else []
        hooks_of(checked)
        yield checked
        return
    if place == "notebook":
        yield [Lines(Console(file=sys.stdout, force_jupyter=False, force_terminal=False))]
        return
    # standard output is the script's own
    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield [Lines(console)]
        return
    with Display(console, redirect=sys.stdout.isatty()) as display:
        yield [display]


def onlooker() -> Literal["terminal", "notebook"] | None:
    """Where a person can be expected to look on; None where none can."""
    if (
        threading.current_thread() is not threading.main_thread()
        or multiprocessing.parent_process() is not None
    ):
        return None  # one of several, which would draw over one another
    if _kernel():
        return "notebook"
    try:
        return "terminal" if sys.stderr.isatty() else None
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return None


def _kernel() -> bool:
    """Whether this is an IPython kernel, as notebooks have them (an IPython on a terminal is a
    terminal).
    """
    ipython = sys.modules.get("IPython")
    shell = (
        ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    )
    return getattr(shell, "kernel", None) is not None
