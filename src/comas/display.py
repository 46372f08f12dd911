"""Watching what goes on: a run or an evaluation in words, for logs, pipes and notebooks, and on
terminals with a live line below; discussions as people read them; and where a call from Python is
looked on at all.

Model text is hostile: it is shown as text, never as markup, and without control characters. Leaves
out: anything that a run depends on, curves (`comas view`).
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from comas.evaluation.report import label
from comas.hooks import ENOUGH, Hook, Progress, Stage, hooks_of
from comas.stats import Interval
from comas.storage.run import Run
from comas.team.build import Team
from comas.types import Episode, Kind, Turn

# --- discussions

LONGEST = 400
"""Characters of a turn that are shown at most."""
BRIEF = 24
"""Characters of an answer that was read in a turn, and of a role."""
COLOURS: Mapping[Kind, str] = {"answer": "cyan", "spoilt": "red", "judge": "yellow"}
"""By the kind of a role."""


def clean(text: str, limit: int = LONGEST) -> str:
    """Printable text on one line: no control, format or private characters."""
    seen = text[: 10 * limit]  # of a megabyte no more is looked at
    flat = "".join(
        c if c.isprintable() else " "
        for c in seen
        if unicodedata.category(c) not in ("Cf", "Co", "Cs")
    )
    flat = " ".join(flat.split())
    if len(flat) <= limit and len(seen) == len(text):
        return flat
    return flat[:limit] + " …"


def span(seconds: float) -> str:
    """`75` -> `1:15`, `3675` -> `1:01:15`."""
    total = max(0, int(seconds))
    hours = f"{total // 3600}:{total // 60 % 60:02d}" if total >= 3600 else f"{total // 60}"
    return f"{hours}:{total % 60:02d}"


def read_as(turn: Turn) -> str:
    """Say what the game read in a turn, the reason of a reward: `score 3`, `no answer`; empty where
    it says nothing of the kind.
    """
    for fact in ("score", "answer"):
        if fact in turn.info:
            value = turn.info[fact]
            if value is None:
                return f"no {fact}"
            return f"{fact} {clean(str(value), BRIEF)}"
    return "no answer" if turn.info.get("readable") is False else ""


def discussion(question: str, turns: Sequence[Turn], limit: int = LONGEST) -> RenderableType:
    """A discussion as a table: who wrote what in which role (of each turn `limit` characters), and
    its reward.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for turn in turns:
        agent = Text(clean(turn.agent), "bold")
        role = Text(clean(turn.role, BRIEF), COLOURS.get(turn.kind, "white"))
        text = Text(clean(turn.text, limit) + ("" if turn.finished else " [cut]"))
        shown_reward = Text("no reward", "dim")
        if turn.reward is not None:
            colour = "green" if turn.reward > 0 else "red" if turn.reward < 0 else "dim"
            shown_reward = Text(f"{turn.reward:+.2f}", colour)
        table.add_row(agent, role, text, shown_reward)
    return Group(Text(clean(question), "bold"), table)


def print_episode(
    console: Console,
    episode: Episode,
    limit: int = LONGEST,
    judge: Callable[[str], str] | None = None,
) -> None:
    """Print a discussion, what the game read in each turn, and how it ended: with an answer and the
    verdict that `judge` then gives, without one, or by a failure.
    """
    console.print(discussion(episode.question.prompt, episode.turns, limit))
    for turn in episode.turns:
        if read := read_as(turn):
            who = f"{clean(turn.agent)} {clean(turn.role)}"
            console.print(Text(f"{who}: {read}", "dim"), soft_wrap=True)
    end = "answer: none"
    if episode.error:
        end = f"failed: {clean(episode.error)}"
    elif episode.answer is not None:
        end = f"answer: {clean(episode.answer)}"
        end += f" ({judge(episode.answer)})" if judge else ""
    console.print(Text(end, "bold"))


# --- runs and evaluations

NAMES: dict[Stage, str] = {
    "estimating": "estimating memory",
    "loading": "loading the models",
    "asking": "asking",
    "before": "accuracy before training",
    "playing": "playing",
    "learning": "learning",
    "validation": "validation accuracy",
    "after": "accuracy after training",
    "saving": "saving",
}

STEPS = 3
"""Steps of a run after which the remaining time is shown."""
GAMES = 16
"""Games of an evaluation after which the remaining time is shown: they are played at once, and the
first says little of others.
"""


def amount(progress: Progress) -> str:
    """Say how much of a stage is done (`12 of at most 20 replies`); empty if nothing is counted."""
    if progress.stage == "learning":
        if not progress.rows_due:
            return ""
        learnt = f"{progress.rows_learnt} of {progress.rows_due} rows learnt"
        reading = progress.rows_read and not progress.rows_learnt
        return f"{learnt}, {progress.rows_read} read" if reading else learnt
    if progress.stage in ("estimating", "loading", "saving"):
        return ""
    kind = "replies" if progress.stage in ("asking", "playing") else "answers"
    if progress.apart:
        kind += f" and {progress.apart} to monitors"
    if progress.expected is None:
        return f"{progress.replies} {kind}"
    sure = "" if progress.certainty == "exactly" else f"{progress.certainty} "
    return f"{progress.replies} of {sure}{progress.expected} {kind}"


def left_of(progress: Progress) -> str:
    """Say how long the rest of a stage takes; empty where nobody knows."""
    seconds = progress.seconds_left
    if seconds is None or progress.seconds < ENOUGH:
        return ""
    sure = "at most" if progress.certainty == "at most" else "about"
    return f"{sure} {span(seconds)} left"


def speed(progress: Progress) -> str:
    """Tokens of the stage, and how many per second now."""
    if not progress.tokens:
        return ""
    now = f", {progress.speed:,.0f}/s" if progress.speed is not None else ""
    return f"{progress.tokens:,} tokens{now}"


def varied(variety: Mapping[str, float]) -> Iterator[str]:
    """How varied the work of a step was: different answers to a question, nats per token."""
    if "distinct" in variety:
        yield f"{variety['distinct']:.1f} of {variety['answers']:.1f} answers differ"
    if "entropy" in variety:
        yield f"entropy {variety['entropy']:.2f}"


def lost(replies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Per role what was cut or could not be read, where there is any: `scoring 3 of 8 cut, 5 of 8
    unreadable`.
    """
    roles: dict[str, Counter[str]] = {}
    for row in replies:
        # None where the game does not say
        counts = {kind: row[kind] or 0 for kind in ("turns", "cut", "unreadable")}
        roles.setdefault(row["role"], Counter()).update(counts)
    lines: list[str] = []
    for role, total in roles.items():
        kinds = [kind for kind in ("cut", "unreadable") if total[kind]]
        if parts := [f"{total[kind]} of {total['turns']} {kind}" for kind in kinds]:
            lines.append(f"{role} {', '.join(parts)}")
    return lines


class Shown(NamedTuple):
    """A stage as it is shown: what is needed most stands first."""

    name: str
    done: int
    total: int | None
    """None where nobody knows."""
    counted: str
    """How much is done, in words."""
    left: str
    """How long the rest takes, in words."""
    details: str
    """Tokens, speed and the like: cut where a terminal is narrow."""


def bars_of(console: Console, redirect: bool = True) -> Bars:
    """Live lines at the foot of a terminal: name, bar, time left, time since the beginning, and as
    much of the details as fits. `redirect`: what others print to standard output meanwhile appears
    above them, on this console.
    """
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(12),
        TextColumn("{task.fields[left]}", markup=False),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[details]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        console=console,
        expand=True,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=redirect,
    )


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
        self.began = self.last_line_at = time.monotonic()
        """When it began, and when there was news."""
        self.left = ""
        """How long the other steps, or the other games, take."""
        self.later = ""
        """How long the steps after the present one take."""
        self.total = 0
        """Steps of the run."""
        self.tokens: int | None = None
        """With which the run ends."""
        self.room: Mapping[str, int] = {}
        """Role -> tokens that a reply may have, where that is not `longest`."""
        self.longest = 0
        self.steps: list[float] = []
        """Seconds of those of this process."""
        self.games = 0
        """Games of the evaluation; below, how many of them are done, done by this process, and
        failed, and how many replies were cut for want of tokens.
        """
        self.done = 0
        self.fresh = 0
        self.failed = 0
        self.cut = 0
        self.cell_name = ""

    def begin(self, run: Run, team: Team, start: int) -> None:
        config = team.config
        self.total = config.steps
        self.tokens = config.tokens
        self.room = team.plan.room
        self.longest = config.max_tokens
        self.began = self.last_line_at = time.monotonic()
        method = f"{config.method}/{config.preset}" if config.preset else config.method
        self._say(f"{len(team.members)} agents, {method}, in {run.path}")
        for role, what in team.method.rewards.items():
            if role == "evaluation" and config.options.get("evaluate") is False:
                continue  # nobody is asked for one
            self._say(f"{role} is rewarded with {what}")

    def working(self, progress: Progress) -> None:
        # once: nothing is counted there
        if progress.stage in ("estimating", "loading") and not progress.seconds:
            self._say(NAMES[progress.stage])
        if time.monotonic() - self.last_line_at < self.every:
            return
        self.last_line_at = time.monotonic()
        stage = self._stage(progress)
        words = ", ".join(filter(None, [stage.left, stage.counted, stage.details]))
        what = f"{stage.name}: {words}" if words else stage.name
        self._say(f"{what}; {span(self.last_line_at - self.began)}")

    def _stage(self, progress: Progress) -> Shown:
        """Say what goes on."""
        name = NAMES[progress.stage]
        if self.games:
            failed = f"{self.failed} failed" if self.failed else ""
            cut = f"{self.cut} replies cut" if self.cut else ""
            return Shown(
                self.cell_name or NAMES["loading"],
                self.done,
                self.games,
                f"{self.done}/{self.games} games",
                self.left,
                ", ".join(filter(None, [speed(progress), failed, cut])),
            )
        left = self.left
        if progress.stage in ("playing", "learning"):
            name = f"{self._number(progress.step)}, {name}"
            left = self.later
        details = ", ".join(filter(None, [speed(progress), left]))
        counted = amount(progress)
        return Shown(name, progress.done, progress.total, counted, left_of(progress), details)

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self.steps.append(metrics["seconds"])
        left = self._seconds_left(metrics)
        later = left - sum(self.steps) / len(self.steps)
        if len(self.steps) >= STEPS:
            self.left = f"about {span(left)} for the other steps" if left else ""
            self.later = f"about {span(later)} for the steps after it" if later >= 1 else ""
        if len(self.steps) > 1 and time.monotonic() - self.last_line_at < self.every:
            return
        self.last_line_at = time.monotonic()
        done = self._number(metrics["step"])
        budget = f" of {self.tokens:,}" if self.tokens else ""
        tokens = f"{metrics['tokens']:,}{budget} tokens"
        seconds = metrics.get("spent", {}).get("sampling")
        if seconds:
            tokens += f" ({metrics['step_tokens'] / seconds:,.0f}/s)"
        rewards = metrics.get("rewards", {}).items()
        reward = " ".join(f"{role} {value:+.2f}" for role, value in rewards)
        parts = [f"{tokens}; reward {reward}", *varied(metrics.get("variety", {}))]
        parts.append(self._lengths(metrics.get("lengths", {})))
        parts += [*lost(metrics.get("replies", ())), self.left]
        facts = "; ".join(filter(None, parts))
        self._say(f"{done}: {span(self.last_line_at - self.began)}, {facts}")

    def _lengths(self, lengths: Mapping[str, float | None]) -> str:
        """Say how long replies were, beside how long they may be."""
        of_roles = ", ".join(
            f"{role} {mean:,.0f} of {self.room.get(role, self.longest):,}"
            for role, mean in lengths.items()
            if mean is not None
        )
        return f"tokens a reply {of_roles}" if of_roles and self.longest else ""

    def _number(self, step: int) -> str:
        """The number of a step, from 1 on; a run that tokens end has no last one."""
        return f"step {step + 1}" if self.tokens else f"step {step + 1}/{self.total}"

    def _seconds_left(self, metrics: Mapping[str, Any]) -> float:
        """Seconds that the rest may take, as the steps so far did; tokens may end it earlier."""
        steps = self.total - metrics["step"] - 1
        if self.tokens:
            steps = min(steps, (self.tokens - metrics["tokens"]) / max(1, metrics["step_tokens"]))
        return max(0.0, steps) * sum(self.steps) / len(self.steps)

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        self.last_line_at = time.monotonic()
        accuracy = found if found else "unknown: nothing could be judged"
        self._say(f"step {step}: accuracy {name} {accuracy}")

    def planned(self, folder: Path, games: int, done: int) -> None:
        if self.games == 0:
            self.done = done
            already = f"; {done} are there already" if done else ""
            self._say(f"{games:,} games, in {folder}{already}")
        self.games = games

    def cell(self, system: str, task: str, setup: str) -> None:
        if not self.cell_name:  # loading is not counted
            self.began = self.last_line_at = time.monotonic()
        self.cell_name = clean(f"{label(system)} {task} {setup}")

    def game(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.fresh += 1
        self.failed += record["verdict"] == "failed"
        self.cut += sum(not turn["finished"] for turn in record["turns"])
        if self.fresh >= max(1, min(GAMES, self.games - self.done)):
            per_game = (time.monotonic() - self.began) / self.fresh
            self.left = f"about {span((self.games - self.done) * per_game)} left"


class Display(Lines):
    """On a terminal: a line per step, and below them a live one of what goes on: how much of it is
    done, as a bar, how long it takes, and in words.
    """

    def __init__(self, console: Console, redirect: bool = True) -> None:
        """`redirect` is that of `bars_of`."""
        super().__init__(console, every=0.0)
        self.stage: tuple[str, ...] = ()
        self.bars = bars_of(console, redirect)
        self.row = self.bars.add_task("", total=None, left="", details="")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def working(self, progress: Progress) -> None:
        shown = self._stage(progress)
        if self.stage != (progress.stage, shown.name):
            self.stage = (progress.stage, shown.name)
            self.bars.reset(self.row)
        self.bars.update(
            self.row,
            description=shown.name,
            total=shown.total,
            completed=shown.done,
            left=shown.left,
            details=", ".join(filter(None, [shown.counted, shown.details])),
        )


def watcher(as_json: bool) -> Quiet:
    """Choose what shows a run or an evaluation of the command line: lines, on a terminal with a
    live one; notes alone, on stderr, where stdout is for an object.
    """
    if as_json:
        return Quiet(Console(stderr=True))
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return Display(console)
    return Lines(console)


# --- a call from Python


@contextmanager
def shown(hooks: Sequence[Hook] | None) -> Iterator[Sequence[Hook]]:
    """Yield `hooks`, or where they are None one that shows progress where a person looks on, on a
    terminal lines with a live one below, in a notebook lines; without any, only notes are shown (as
    warnings).

    Nothing is printed where nobody looks on: to files and pipes, from threads and child processes.
    """
    medium = onlooker() if hooks is None else None
    if medium is None:
        own_hooks = [] if hooks is None else hooks
        hooks_of(own_hooks)
        yield own_hooks
        return
    if medium == "notebook":
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
    """Find where a person can be expected to look on; None where none can."""
    is_child = multiprocessing.parent_process() is not None
    if is_child or threading.current_thread() is not threading.main_thread():
        return None  # one of several, which would draw over one another
    if "ipykernel" in sys.modules:
        return "notebook"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else None
