"""Watching a run: a live display on a terminal, plain lines elsewhere.

Model text is hostile: it is shown as text, never as markup, and without control characters. Leaves out: anything that a
run depends on.
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from comas.estimate import estimate
from comas.exam import Observer
from comas.report import label
from comas.stats import Interval
from comas.store import Run
from comas.team import Team
from comas.train import Watch
from comas.types import Episode, Turn

LONGEST = 400
"""Characters of a turn that are shown at most."""
HOLD = 3.0
"""Seconds for which a finished discussion stays in view."""
BARS = "▁▂▃▄▅▆▇█"
COLOURS = {"solution": "cyan", "evaluation": "yellow", "scoring": "magenta", "verdict": "magenta"}


def clean(text: str, limit: int = LONGEST) -> str:
    """Printable text on one line: no control, format or private characters."""
    seen = text[: 10 * limit]  # of a megabyte no more is looked at: this runs at every redraw
    flat = "".join(c if c.isprintable() else " " for c in seen if unicodedata.category(c) not in ("Cf", "Co", "Cs"))
    flat = " ".join(flat.split())
    return flat if len(flat) <= limit and len(seen) == len(text) else flat[:limit] + " …"


def discussion(question: str, turns: Sequence[Turn], paid: bool = True, limit: int = LONGEST) -> RenderableType:
    """A discussion as a table: who said what in which role (of each turn `limit` characters), and what it was paid."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for turn in turns:
        pay = "" if not paid else "unpaid" if turn.reward is None else f"{turn.reward:+.2f}"
        colour = "green" if (turn.reward or 0) > 0 else "red" if (turn.reward or 0) < 0 else "dim"
        table.add_row(
            Text(clean(turn.agent), "bold"), Text(turn.role, COLOURS.get(turn.role, "white")),
            Text(clean(turn.text, limit) + ("" if turn.finished else " [cut]")), Text(pay, colour),
        )
    return Group(Text(clean(question), "bold"), table)


def fitting(question: str, turns: Sequence[Turn], paid: bool, width: int, rows: int) -> RenderableType:
    """A discussion in a panel of about `rows` lines: first turns get shorter, then the last ones are left out and counted."""
    room = max(1, rows - 3 - min(LONGEST, len(question)) // width)  # frame and question
    shown = turns if len(turns) <= room else turns[: max(1, room - 1)]
    per_line = max(20, width - 30)  # beside agent, role and pay
    body = discussion(question, shown, paid, min(LONGEST, max(1, room // max(1, len(shown))) * per_line - 8))
    more = [Text(f"and {len(turns) - len(shown)} more turns", "dim")] if len(shown) < len(turns) else []
    return Panel(Group(body, *more), title="a discussion", title_align="left")


def span(seconds: float) -> str:
    """`75` -> `1:15`."""
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


class Quiet(Watch):
    """Notes only."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        self.console.print(Text(clean(line, 2000)), soft_wrap=True)


class Lines(Quiet):
    """A line every `every` seconds at most, and one per measurement: for logs and pipes."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        super().__init__(console)
        self.every, self.said, self.total, self.began = every, 0.0, 0, time.monotonic()

    def begin(self, run: Run, team: Team, start: int) -> None:
        self.total, self.began = team.config.steps, time.monotonic()
        need = estimate(team.config, team.method, team.task).get("bytes on disk")
        room = f"; it will take about {need / 1e9:.2f} GB of disk" if need else ""
        self._say(f"{len(team.members)} agents, {team.config.method}/{team.config.preset or '-'}, in {run.path}{room}")

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        if time.monotonic() - self.said < self.every:
            return
        self.said = time.monotonic()
        rewards = " ".join(f"{r} {v:+.2f}" for r, v in metrics["rewards"].items())
        done = f"step {metrics['step'] + 1}/{self.total}  {span(self.said - self.began)}"
        self._say(f"{done}  {metrics['tokens']:,} tokens  {rewards}")

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        self._say(f"step {step}: accuracy {name} {found if found else 'unknown: nothing could be judged'}")


class Display(Quiet):
    """Discussion, accuracy, rewards, speed and time left, redrawn a few times per second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.config: Any = None
        self.stage = "starting"
        self.done, self.start, self.tokens, self.generated, self.tokens_before = 0, 0, 0, 0, 0
        self.rewards: Mapping[str, float] = {}
        self.curve: list[tuple[str, Interval]] = []
        self.following: str | None = None
        self.heard: list[Turn] = []
        self.shown: tuple[str, list[Turn]] | None = None
        self.shown_at, self.began, self.loop_began = 0.0, time.monotonic(), 0.0
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4)  # renders at once: comes last

    def __enter__(self) -> Display:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stage = "stopped" if kind else "done"
        self.live.stop()

    def begin(self, run: Run, team: Team, start: int) -> None:
        self.config, self.start, self.done = team.config, start, start
        self.stage = "training" if start else "measuring accuracy before training"
        if start and (record := run.read_eval("before")) and record["accuracy"]:
            self.curve.append(("before", Interval(**record["accuracy"])))
        for metrics in run.metrics():  # of the part that was run before
            self.tokens = self.tokens_before = metrics["tokens"]
            if found := metrics.get("validation"):
                self.curve.append(("validation", Interval(**found)))

    def turn(self, turn: Turn) -> None:
        self.generated += turn.tokens
        episode = turn.id.rsplit("/", 1)[0]
        if self.following is None:
            self.following = episode
        if episode == self.following:
            self.heard.append(turn)

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        self.done, self.tokens, self.rewards, self.stage = metrics["step"] + 1, metrics["tokens"], metrics["rewards"], "training"
        self.loop_began = self.loop_began or time.monotonic() - metrics["seconds"]
        if time.monotonic() - self.shown_at > HOLD:
            followed = next((e for e in episodes if e.id == self.following), episodes[0])
            self.shown, self.shown_at = (followed.question.prompt, followed.turns), time.monotonic()
        self.following, self.heard = None, []
        if self.done == self.config.steps or self.tokens >= (self.config.tokens or math.inf):
            self.stage = "measuring accuracy after training"

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        if found is not None:
            self.curve.append((name, found))

    def render(self) -> RenderableType:
        """The whole display."""
        total = self.config.steps if self.config else 1
        elapsed = time.monotonic() - self.loop_began if self.loop_began else 0.0
        share = self._share()
        left = elapsed * (1 - share) / share if share else None
        facts = Table.grid(padding=(0, 2))
        facts.add_row("accuracy", self._curve())
        facts.add_row("mean reward", Text("   ".join(f"{r} {v:+.2f}" for r, v in self.rewards.items())))
        speed = f"{self.generated / elapsed:,.0f}/s" if elapsed else ""
        facts.add_row("tokens", Text(f"{self.tokens:,}   {speed}"))
        facts.add_row("time", Text(span(time.monotonic() - self.began) + (f"   left {span(left)}" if left is not None else "")))
        bar = Table.grid(padding=(0, 1))
        progress = ProgressBar(total=max(1, total), completed=self.done, width=40)
        bar.add_row(Text(f"step {self.done}/{total}"), progress, Text(self.stage))
        question, turns = self.shown or ("", [])
        if self.shown is None and self.heard:
            turns = list(self.heard)
        width, height = self.console.size
        paid = self.shown is not None
        panels = [fitting(question, turns, paid, width, height - 6)] if turns else []  # what stands below takes five lines
        return Group(*panels, facts, bar)

    def _share(self) -> float:
        """How much of this process's work is done: of the steps, or of the token budget where that ends first."""
        if not self.config or self.done == self.start:
            return 0.0
        share = (self.done - self.start) / max(1, self.config.steps - self.start)
        if self.config.tokens:
            share = max(share, (self.tokens - self.tokens_before) / max(1, self.config.tokens - self.tokens_before))
        return min(1.0, share)

    def _curve(self) -> Text:
        if not self.curve:
            return Text("…")
        marks = "".join(BARS[min(7, int(found.mean * 8))] for _, found in self.curve[-60:])
        first, last = self.curve[0], self.curve[-1]
        return Text(f"{marks}  {first[1].mean:.2f} -> {last[1].mean:.2f} ({last[0]})")


class ExamLines(Observer):
    """An evaluation for logs and pipes: a line every `every` seconds at most; with `quiet` none."""

    def __init__(self, console: Console, quiet: bool = False, every: float = 10.0) -> None:
        self.console, self.quiet, self.every = console, quiet, every
        self.games, self.done, self.fresh, self.failed, self.tokens, self.what = 0, 0, 0, 0, 0, ""
        self.began = self.said = 0.0
        """When the first game could begin: loading is not counted."""

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, folder: Path, games: int, done: int) -> None:
        if self.games == 0:
            self.done = done
            self._say(f"{games:,} games, in {folder}" + (f"; {done} are there already" if done else ""))
        self.games = games

    def cell(self, system: str, task: str, setup: str) -> None:
        self.what = clean(f"{label(system)} {task} {setup}")
        self.began = self.began or time.monotonic()
        self.said = self.said or self.began

    def game(self, record: Mapping[str, Any]) -> None:
        self.done, self.fresh = self.done + 1, self.fresh + 1
        self.failed += record["verdict"] == "failed"
        self.tokens += sum(t["tokens"] for t in record["turns"])
        if time.monotonic() - self.said > self.every:
            self.said = time.monotonic()
            left = (self.games - self.done) * (self.said - self.began) / self.fresh
            self._say(f"{self.what}: {self.done}/{self.games} games, {self.rate()}, left {span(left)}")

    def rate(self) -> str:
        """Games and tokens per second, and how many failed."""
        passed = max(1e-9, time.monotonic() - self.began)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.fresh / passed:,.1f} games/s, {self.tokens / passed:,.0f} tokens/s{failed}"

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(clean(line, 2000)), soft_wrap=True)


class Bar(ExamLines):
    """An evaluation on a terminal: how far, how fast, how much longer, what failed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, every=math.inf)
        columns = (TextColumn("{task.fields[what]}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self.progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self.row = self.progress.add_task("", start=False, total=None, what="loading", rate="")

    def __enter__(self) -> Observer:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, folder: Path, games: int, done: int) -> None:
        super().begin(folder, games, done)
        self.progress.update(self.row, total=games, completed=self.done)

    def cell(self, system: str, task: str, setup: str) -> None:
        super().cell(system, task, setup)
        self.progress.start_task(self.row)
        self.progress.update(self.row, what=self.what)

    def game(self, record: Mapping[str, Any]) -> None:
        super().game(record)
        self.progress.update(self.row, completed=self.done, what=self.what, rate=self.rate())
