"""Watching an evaluation: a bar on a terminal, plain lines elsewhere.

Leaves out: training (`display.lines`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from comas.display.discussions import clean, span
from comas.evaluation.report import label
from comas.hooks import Hook


class ExamLines(Hook):
    """An evaluation for logs and pipes: a line every `every` seconds at most; with `quiet` none."""

    def __init__(self, console: Console, quiet: bool = False, every: float = 10.0) -> None:
        self.console = console
        self.quiet = quiet
        self.every = every
        self.games = 0
        self.done = 0
        self.fresh = 0
        self.failed = 0
        self.tokens = 0
        self.what = ""
        self.began = self.said = 0.0
        """When the first game could begin: loading is not counted."""

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        pass

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

    def game(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.fresh += 1
        self.failed += record["verdict"] == "failed"
        self.tokens += sum(t["tokens"] for t in record["turns"])
        if time.monotonic() - self.said > self.every:
            self.said = time.monotonic()
            per_game = (self.said - self.began) / self.fresh
            left = span((self.games - self.done) * per_game)
            games = f"{self.done}/{self.games} games"
            self._say(f"{self.what}: {games}, {self.rate()}, left {left}")

    def rate(self) -> str:
        """Games and tokens per second, and how many failed."""
        passed = max(1e-9, time.monotonic() - self.began)
        games = self.fresh / passed
        tokens = self.tokens / passed
        rate = f"{games:,.1f} games/s, {tokens:,.0f} tokens/s"
        return f"{rate}, {self.failed} failed" if self.failed else rate

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(clean(line, 2000)), soft_wrap=True)


class Bar(ExamLines):
    """An evaluation on a terminal: how far, how fast, how much longer, what failed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, every=math.inf)
        columns = (
            TextColumn("{task.fields[what]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        self.progress = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console
        )
        self.row = self.progress.add_task("", start=False, total=None, what="loading", rate="")

    def __enter__(self) -> Hook:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def planned(self, folder: Path, games: int, done: int) -> None:
        super().planned(folder, games, done)
        self.progress.update(self.row, total=games, completed=self.done)

    def cell(self, system: str, task: str, setup: str) -> None:
        super().cell(system, task, setup)
        self.progress.start_task(self.row)
        self.progress.update(self.row, what=self.what)

    def game(self, record: Mapping[str, Any]) -> None:
        super().game(record)
        self.progress.update(self.row, completed=self.done, what=self.what, rate=self.rate())
