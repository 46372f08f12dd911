"""Hooks for displays, trackers and notebooks, called as a training run or an evaluation goes on,
and the pulse that tells them how far it has come.

Leaves out: what they do with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comas.stats import Interval
from comas.types import Episode, Host, Meter, Question, Turn, UserMistake

if TYPE_CHECKING:
    from comas.storage.run import Run
    from comas.team.build import Team


Stage = Literal[
    "estimating",
    "loading",
    "asking",
    "before",
    "playing",
    "learning",
    "validation",
    "after",
    "saving",
]
"""Stage of a run: `estimating` is of the memory that it will take; `asking` is a preflight's;
`before`, `validation` and `after` are measurements of accuracy.
"""
Certainty = Literal["exactly", "about", "at most"]
EVERY = 0.25
"""Seconds between two reports of a stage."""
WINDOW = 5.0
"""Seconds over which the speed is averaged."""
ENOUGH = 1.0
"""Seconds of a stage before which no speed is shown."""


@dataclass(frozen=True)
class Progress:
    """How far a stage of a run has come."""

    stage: Stage
    step: int = 0
    """The step that is under way, counted from 0; of a measurement and of saving how many steps lie
    behind.
    """
    seconds: float = 0.0
    """Since the stage began."""
    replies: int = 0
    """Replies that are complete, those included whose discussion waits for others."""
    expected: int | None = None
    """Replies of the whole stage; None where nobody knows."""
    certainty: Certainty = "exactly"
    """Meaning of `expected`: the plan of a measurement, as many as in the step before, or a
    bound.
    """
    tokens: int = 0
    """Generated in this stage, also those of replies that go on, and for monitors."""
    speed: float | None = None
    """Generated tokens per second in the last few seconds; None before there are enough."""
    rows_due: int = 0
    """Rows to learn from in this stage, once per epoch."""
    rows_read: int = 0
    """Rows whose log-probs have been computed before the update."""
    rows_learnt: int = 0
    """Rows whose gradient has been computed."""
    questions: tuple[Question, ...] = ()
    """Under discussion, while the stage is `playing`."""
    apart: int = 0
    """Replies to monitors that are complete, which are none of `replies`."""

    @property
    def done(self) -> int:
        """How many rows or replies of the stage are complete."""
        return self.rows_learnt if self.stage == "learning" else self.replies

    @property
    def total(self) -> int | None:
        """How many there will be; None where nobody knows."""
        return (self.rows_due if self.stage == "learning" else self.expected) or None

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest of the stage takes, if it goes on as it did; None before anything
        is done, and where nobody knows of how much.
        """
        if self.total is None or self.done == 0:
            return None
        return self.seconds * (self.total - self.done) / self.done


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong with a step."""

    step: int
    """Counted from 0."""
    kind: str
    """`unreadable`, `cut`, `unrewarded`, `flat`, `still` (a policy that learns nothing) or
    `calls of <tool>` (that failed); of a monitor `<monitor>.<hypothesis>`.
    """
    roles: tuple[str, ...]
    """Roles that it is about, or the policy; none where it is about the whole step."""
    share: float
    """Share of the replies of a role, or of the groups; for a monitor its mean of late."""
    text: str
    """In words, with a remedy where there is one."""
    start: float | None = None
    """For a monitor: the mean at the start of the run. The next four are for monitors as well."""
    margin: float | None = None
    """Growth of the mean that is allowed."""
    since: int | None = None
    """The step, counted from 0, from which on the readings speak against the hypothesis."""
    evidence: float | None = None
    """The e-value: how much more likely the readings are under change than under the hypothesis, at
    least.
    """
    needed: float | None = None
    """The e-value that makes an alarm."""


class Hook:
    """Called for what happens in a training run or an evaluation; every method may be overridden,
    none needs to be.

    Methods are called from the event loop, which waits for them: be brief. A hook that raises is
    noted and dropped; the run goes on.
    """

    path: Path | None = None
    """The run's folder, once there is one."""

    def locate(self, folder: Path) -> None:
        """Know where the run is."""
        self.path = folder

    def begin(self, run: Run, team: Team, start: int) -> None:
        """A training run is about to start (or to go on) at step `start`."""

    def working(self, progress: Progress) -> None:
        """The run turns to another stage, or goes on with one: called at once, and then about four
        times per second.
        """

    def turn(self, turn: Turn) -> None:
        """A turn is complete; not yet rewarded."""

    def step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """A step is written."""

    def measured(self, name: str, step: int, found: Interval | None) -> None:
        """An accuracy: `before`, `validation` or `after`."""

    def alarm(self, alarm: Alarm) -> None:
        """Something is wrong with a step; its text is a note as well."""

    def note(self, text: str) -> None:
        """Something that its owner should know; where no hook overrides this, it is a warning of
        the logger `comas`.
        """

    def planned(self, folder: Path, games: int, done: int) -> None:
        """An evaluation plans `games` in all, of which `done` were there already; called again when
        more is known.
        """

    def cell(self, system: str, task: str, setup: str) -> None:
        """These games of an evaluation are played now."""

    def game(self, record: Mapping[str, Any]) -> None:
        """One more game of an evaluation has been played and judged."""

    def ended(self, result: Any) -> None:
        """It is over: with a `Result`, the report of an evaluation, or None where it was stopped or
        failed.
        """


class Hooks(Hook):
    """Hands everything on to several hooks; one that raises is noted and dropped."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.hooks = list(hooks)

    def locate(self, folder: Path) -> None:
        """Tell all of them where the run is."""
        self.path = folder
        self._tell("locate", folder)

    def note(self, text: str) -> None:
        if all(type(hook).note is Hook.note for hook in self.hooks):
            logging.getLogger("comas").warning(text)
        self._tell("note", text)

    def _tell(self, event: str, *details: Any) -> None:
        for hook in tuple(self.hooks):
            if hook not in self.hooks:  # dropped while another one was told
                continue
            try:
                getattr(hook, event)(*details)
            except Exception as error:  # noqa: BLE001 - who looks on never ends a run
                self.hooks.remove(hook)
                reason = f"{type(error).__name__}: {error}"
                name = type(hook).__name__
                self.note(f"hook {name} failed in {event} and is not told any more: {reason}")


def _handing_on(event: str) -> Callable[..., None]:
    def tell(self: Hooks, *details: Any) -> None:
        self._tell(event, *details)  # pyright: ignore[reportPrivateUsage]

    return tell


EVENTS = "begin working turn step measured alarm planned cell game ended"
"""Events that are handed on as they come."""
for _event in EVENTS.split():
    setattr(Hooks, _event, _handing_on(_event))


def hooks_of(hooks: Sequence[Hook]) -> Hooks:
    """Combine hooks into one; UserMistake for what is no list of hooks."""
    if isinstance(hooks, Hook) or not all(isinstance(hook, Hook) for hook in hooks):
        raise UserMistake(f"hooks={hooks!r}: a list of comas.Hook instances is wanted")
    if len(hooks) == 1 and isinstance(hooks[0], Hooks):
        return hooks[0]
    return Hooks(hooks)


# --- how far it has come


class Pulse:
    """Tells a hook how far the present stage has come: at every change of stage, and a few times
    per second between.

    Counts are pulled from the hosts' meters, so that engines and learners do nothing but count.
    """

    def __init__(
        self, hook: Hook, hosts: Mapping[str, Host], per_question: float | None = None
    ) -> None:
        """`per_question`: replies to one question, before any is played here."""
        self.hook = hook
        self._per_question = per_question
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
        self._before = Meter()
        self._apart = 0
        """Replies of this stage that hosts counted and that are no part of it."""
        self._lately: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def play(self, step: int, questions: Sequence[Question]) -> None:
        """Begin to play a step."""
        expected = round(len(questions) * self._per_question) if self._per_question else None
        self.turn_to("playing", step, expected, "about", questions)

    def turn_to(
        self,
        stage: Stage,
        step: int = 0,
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

    def count_turn_apart(self, turn: Turn) -> None:
        """Count a complete reply that is no part of the step."""
        if turn.policy.partition("/")[0] not in self._own:
            self._apart += 1

    def count_turn(self, turn: Turn) -> None:
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
        before = self._before.counts()
        done = {count: value - before[count] for count, value in counts.counts().items()}
        done["replies"] -= self._apart
        expected = self._stage.expected
        if expected is not None:  # a discussion that is played again asks more
            expected = max(expected, done["replies"])
        return replace(
            self._stage,
            seconds=now - self._began,
            expected=expected,
            speed=self._speed(now, counts.tokens),
            apart=self._apart,
            **done,
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

    def _count(self) -> Meter:
        """Sum up what all hosts have done so far."""
        total: Counter[str] = Counter()
        for meter in self._meters.values():
            total.update(meter.counts())
        counts: dict[str, Any] = dict(total)
        return Meter(**counts)

    def _speed(self, now: float, tokens: int) -> float | None:
        self._lately.append((now, tokens))
        while now - self._lately[0][0] > WINDOW:
            self._lately.popleft()
        then, before = self._lately[0]
        return (tokens - before) / (now - then) if now - then >= ENOUGH else None
