"""Watching a run on a terminal: gathers what there is to see, and has it drawn a few times per
second.

The event loop tells, a thread of rich draws: one lock between them. Leaves out: where on the screen
(`display.layout`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from comas.display.board import Board, Measured, Shown
from comas.display.layout import draw
from comas.display.lines import Quiet
from comas.evaluation.accuracy import by_agent
from comas.hooks import Progress
from comas.stats import Interval
from comas.storage.run import Run
from comas.team.build import Team
from comas.types import Episode, Question, Task, Turn

HOLD = 3.0
"""Seconds for which finished discussions stay in view, before those that go on are shown."""
FOLLOWED = 4
"""Discussions of a step that are shown, where there is room."""


class Display(Quiet):
    """Discussions, accuracy, rewards, speed and time left, redrawn a few times per second."""

    def __init__(self, console: Console, redirect: bool = True) -> None:
        """`redirect`: what others print to standard output meanwhile appears above the display, on
        its console.
        """
        super().__init__(console)
        self.config: Any = None
        self.board = Board()
        self.run: Run | None = None
        self.task: Task | None = None
        self.roles: tuple[str, ...] = ()
        """In the order in which they are shown."""
        self.start = 0
        self.tokens_before = 0
        self.began = time.monotonic()
        self.loop_began = 0.0
        self.finished_at = -math.inf
        self.finished: list[Shown] = []
        self.following: dict[str, Shown] = {}
        self._lock = threading.RLock()
        self.live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=4,
            redirect_stdout=redirect,
        )  # renders at once: comes last

    def __enter__(self) -> Display:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self.board.ended = "stopped" if kind else "done"
        self.live.stop()

    def begin(self, run: Run, team: Team, start: int) -> None:
        with self._lock:
            self.config = team.config
            self.run = run
            self.task = team.task
            self.start = start
            self.board.steps = team.config.steps
            self.board.done = start
            self.board.pays = team.method.pays
            self.roles = team.method.paid
            self.board.changes += 1
            record = run.read_eval("before") if start else None
            if record and record["accuracy"]:
                accuracy = Interval(**record["accuracy"])
                self._measured("before", 0, accuracy, by_agent(record["answers"]))
            for metrics in run.metrics():  # of the part that was run before
                self.tokens_before = metrics["tokens"]
                self._account(metrics)

    def working(self, progress: Progress) -> None:
        with self._lock:
            before = self.board.progress
            self.board.progress = progress
            entered = (progress.stage, progress.step) != (before.stage, before.step)
            if progress.stage == "playing" and entered:
                self._follow(progress.step, progress.questions)
            elif progress.stage == "learning":
                for shown in self.following.values():
                    shown.paid = True

    def _follow(self, step: int, questions: Sequence[Question]) -> None:
        """Show the first questions of a step from when they are asked."""
        self.loop_began = self.loop_began or time.monotonic()
        self.following = {f"{step}/{q.id}/0": Shown(q) for q in questions[:FOLLOWED]}
        samples = getattr(self.config, "samples", None) or 1
        self.board.discussions = len(questions) * samples

    def turn(self, turn: Turn) -> None:
        with self._lock:
            episode = turn.id.rsplit("/", 1)[0]
            shown = self.following.get(episode)
            if shown is None:
                if len(self.following) >= FOLLOWED:
                    return
                shown = self.following[episode] = Shown(None)
            # a discussion that is played again
            shown.turns = [told for told in shown.turns if told.id != turn.id]
            shown.turns.append(turn)
            self._read(shown, turn)

    def _read(self, shown: Shown, turn: Turn) -> None:
        """The answer that the task reads in a solution: which of its tries counts."""
        if self.task is None or shown.question is None:
            return
        if turn.role != "solution" or not turn.finished:
            return
        answer = self.task.extract(shown.question, turn.text)
        if isinstance(answer, str):
            shown.answers[turn.id] = answer

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        with self._lock:
            self._account(metrics)
            self.loop_began = self.loop_began or time.monotonic() - metrics["seconds"]
            tokens = self.board.tokens - self.tokens_before
            seconds = time.monotonic() - self.loop_began
            self.board.pace = tokens / max(1e-9, seconds)
            if time.monotonic() - self.finished_at > HOLD:
                self.finished = self._of_step(episodes)
                self.finished_at = time.monotonic()
            self.following = {}

    def _of_step(self, episodes: Sequence[Episode]) -> list[Shown]:
        """The discussions that were followed, as they came out."""
        chosen = [e for e in episodes if e.id in self.following] or list(episodes[:FOLLOWED])
        found: list[Shown] = []
        for episode in chosen:
            shown = Shown(episode.question, list(episode.turns), paid=True, error=episode.error)
            for turn in episode.turns:
                self._read(shown, turn)
            found.append(shown)
        return found

    def _account(self, metrics: Mapping[str, Any]) -> None:
        """Take over the numbers of a step."""
        board = self.board
        board.changes += 1
        board.done = metrics["step"] + 1
        board.tokens = metrics["tokens"]
        board.metrics = metrics
        rewards = metrics.get("rewards", {})
        for role in sorted(rewards, key=self._place):
            board.rewards.setdefault(role, []).append((board.done, rewards[role]))
        if validation := metrics.get("validation"):
            agents = metrics.get("validation_by_agent", {})
            self._measured("validation", board.done, Interval(**validation), agents)

    def _place(self, role: str) -> int:
        return self.roles.index(role) if role in self.roles else len(self.roles)

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        with self._lock:
            if found is None or name == "validation":  # which comes with the metrics of its step
                return
            record = self.run.read_eval(name) if self.run is not None else None
            self._measured(name, step, found, by_agent(record["answers"]) if record else {})

    def _measured(self, name: str, step: int, found: Interval, agents: Mapping[str, float]) -> None:
        self.board.measured.append(Measured(name, step, found, dict(agents)))
        self.board.changes += 1

    def render(self) -> RenderableType:
        """The whole display."""
        with self._lock:
            now = time.monotonic()
            board = self.board
            board.shown = list(self.following.values())
            if self.finished and (now - self.finished_at <= HOLD or not self.following):
                board.shown = self.finished
            board.seconds = now - self.began
            elapsed = now - self.loop_began if self.loop_began else 0.0
            share = self._share()
            board.left = elapsed * (1 - share) / share if share else None
            size = self.console.size
            return draw(board, size.width, size.height, self.console)

    def _share(self) -> float:
        """How much of this process's work is done: of the steps, or of the token budget where that
        ends first.
        """
        if not self.config or self.board.done == self.start:
            return 0.0
        steps = self.config.steps - self.start
        share = (self.board.done - self.start) / max(1, steps)
        if self.config.tokens:
            budget = self.config.tokens - self.tokens_before
            of_budget = (self.board.tokens - self.tokens_before) / max(1, budget)
            share = max(share, of_budget)
        return min(1.0, share)
