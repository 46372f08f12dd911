"""The pulse of a run: at every change of stage, and a few times per second between, its hooks are
told how far the work has come.

Counts are pulled from the hosts' meters, so that engines and learners do nothing but count. Leaves
out: how it is shown (`display`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from comas.config.policies import Resolved
from comas.config.rehearsal import Rehearsal, rehearse
from comas.hooks import Hook, Progress, Stage
from comas.types import Host, Meter, Question, Turn

EVERY = 0.25
"""Seconds between two reports."""
WINDOW = 5.0
"""Seconds over which the speed is averaged."""
ENOUGH = 1.0
"""Seconds of a stage before which no speed is told."""

Certainty = Literal["exactly", "at most", "about"]


@dataclass(frozen=True)
class Counts:
    """What all hosts have done so far."""

    replies: int = 0
    tokens: int = 0
    rows_due: int = 0
    rows_read: int = 0
    rows_learnt: int = 0


class Pulse:
    """Tells a hook how far the present stage has come."""

    def __init__(self, hook: Hook, hosts: Mapping[str, Host], resolved: Resolved) -> None:
        self.hook = hook
        self.samples = resolved.config.samples or 1
        self.rehearsal = rehearse(resolved)
        self._per_question: float | None = None
        """Replies per question in the last step that was played here."""
        self._own: dict[str, Meter] = {}
        """Meters of hosts that count nothing themselves: their replies are counted when they are
        complete.
        """
        self._meters: dict[str, Meter] = {}
        for name, host in hosts.items():
            if host.meter is None:
                self._own[name] = Meter()
            self._meters[name] = host.meter or self._own[name]
        self._stage = Progress("loading")
        self._began = time.monotonic()
        self._before = Counts()
        self._apart = 0
        """Replies of this stage that hosts counted and that are no part of it."""
        self._lately: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def play(self, step: int, questions: Sequence[Question]) -> None:
        """Begin to play a step."""
        count = len(questions)
        expected, certainty = expected_replies(
            self.rehearsal, count * self.samples, count, self._per_question
        )
        self.turn_to("playing", step, expected, certainty, questions)

    def turn_to(
        self,
        stage: Stage,
        step: int,
        expected: int | None = None,
        certainty: Certainty = "exactly",
        questions: Sequence[Question] = (),
    ) -> None:
        """Begin a stage, and tell of it at once."""
        if self._stage.questions:
            played = self._count().replies - self._before.replies - self._apart
            self._per_question = played / len(self._stage.questions)
        self._stage = Progress(
            stage, step, expected=expected, certainty=certainty, questions=tuple(questions)
        )
        self._began = time.monotonic()
        self._before = self._count()
        self._apart = 0
        self._lately.clear()
        self.hook.working(self.progress())

    def heard_apart(self, turn: Turn) -> None:
        """Count a complete reply that is no part of the step."""
        if turn.policy.partition("/")[0] not in self._own:
            self._apart += 1

    def heard(self, turn: Turn) -> None:
        """Count a complete reply where its host does not, and hand on those of discussions."""
        meter = self._own.get(turn.policy.partition("/")[0])
        if meter is not None:
            meter.replies += 1
            meter.tokens += turn.tokens
        if self._stage.stage == "playing":
            self.hook.turn(turn)

    def progress(self) -> Progress:
        """How far the present stage has come."""
        now = time.monotonic()
        counts = self._count()
        replies = counts.replies - self._before.replies - self._apart
        expected = self._stage.expected
        return Progress(
            self._stage.stage,
            self._stage.step,
            now - self._began,
            replies,
            # a discussion that is played again asks more
            None if expected is None else max(expected, replies),
            self._stage.certainty,
            counts.tokens - self._before.tokens,
            self._speed(now, counts.tokens),
            counts.rows_due - self._before.rows_due,
            counts.rows_read - self._before.rows_read,
            counts.rows_learnt - self._before.rows_learnt,
            self._stage.questions,
            self._apart,
        )

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Within it, the running event loop tells the hook a few times per second."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(EVERY, self._beat, loop)
        try:
            yield
        finally:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.hook.working(self.progress())
        self._timer = loop.call_later(EVERY, self._beat, loop)

    def _count(self) -> Counts:
        meters = list(self._meters.values())
        return Counts(
            sum(m.replies for m in meters),
            sum(m.tokens for m in meters),
            sum(m.rows_due for m in meters),
            sum(m.rows_read for m in meters),
            sum(m.rows_learnt for m in meters),
        )

    def _speed(self, now: float, tokens: int) -> float | None:
        self._lately.append((now, tokens))
        while now - self._lately[0][0] > WINDOW:
            self._lately.popleft()
        then, before = self._lately[0]
        return (tokens - before) / (now - then) if now - then >= ENOUGH else None


def expected_replies(
    rehearsal: Rehearsal | None, games: int, questions: int, per_question: float | None
) -> tuple[int | None, Certainty]:
    """How many replies a step of so many games will ask for, and how sure that is.

    As many as in the rehearsal of a discussion; where there is none, as many per question as in the
    step before (`per_question`).
    """
    if rehearsal is not None:
        return games * rehearsal.replies, "exactly" if rehearsal.exactly else "at most"
    if per_question is None:
        return None, "about"
    return round(questions * per_question), "about"
