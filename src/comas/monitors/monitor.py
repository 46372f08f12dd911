"""Monitor: it looks at every step of a run and says, in values from 0 to 1, how bad things are;
hypotheses about these values are tested as the run goes on.

`probes` is `comas.monitors.probes`, `./mine.py` that file; each has a function `watch()` which
makes a `Monitor`. Leaves out: how hypotheses are tested (`evidence`), what becomes of an alarm
(`training.watching`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from comas.game.play import GameContext
from comas.types import Episode, Turn


@dataclass(frozen=True)
class Hypothesis:
    """Something that holds in a healthy run: the mean of some values, all bad when they are great,
    is at most what it was at the start, and `margin` on top.
    """

    name: str
    """In metrics.jsonl, below the name of the monitor."""
    says: str
    """Meaning of a hypothesis that does not hold, in a few words: the alarm."""
    margin: float
    """Fixed before the run."""
    lately: str = "lately"
    """Words of the alarm for the values: `0.42 lately`."""
    before: str = "at the start"
    """Words of the alarm for what they are compared with, where it is no start."""
    scale: int = 1
    """Version of what the values mean: raised where they are read otherwise than before, so that a
    run goes on without a hypothesis whose start was read so.
    """


@dataclass(frozen=True)
class Reading:
    """Values that a monitor sees in one step, for one of its hypotheses."""

    values: Sequence[float]
    """From 0 to 1, independent of each other and of the same mean given all that happened before
    the step: such as one per question (`per_question`), never several of one question.
    """
    start: float | None = None
    """The mean of such values at the start, where the monitor has measured it; None: the mean of
    the first few steps.
    """
    start_count: int = 0
    """How many values `start` is the mean of; 0 where it is known without error."""


@dataclass(frozen=True)
class Seen:
    """A step that was played and learnt from."""

    step: int
    """Counted from 0."""
    played: Sequence[Episode]
    """Failed ones included."""
    policies: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Any])
    """`host/policy` -> statistics of its update."""
    validated: Sequence[float] = ()
    """Per validation question, the share of answers that are right; empty where the step was not
    followed by a measurement.
    """

    @property
    def episodes(self) -> list[Episode]:
        """Discussions that did not fail; mean advantage and mean KL are on the turns that were
        learnt.
        """
        return [episode for episode in self.played if episode.error is None]

    @property
    def turns(self) -> list[Turn]:
        """Turns of all discussions that did not fail."""
        return [turn for episode in self.episodes for turn in episode.turns]


class Expected(NamedTuple):
    """How much will be read of a hypothesis."""

    start: float
    behind: int
    """Values that the start is the mean of."""
    per_step: float
    """Values of a step, on average."""


@dataclass(frozen=True)
class Allowance:
    """Budget of a monitor in a run."""

    tokens: float
    """Generated for it, over the whole run."""
    steps: int
    """Steps of the run."""

    def divide(
        self, start: int, start_cost: float, per_step: float, cost: float
    ) -> tuple[int, float]:
        """How many works it covers at the start, and how many games in each later step.

        `start` and `per_step` are the most that are wanted; `start_cost` and `cost` are the tokens
        of one. At most half of it goes to the start.
        """
        at_start = int(min(start, self.tokens / 2 / max(1.0, start_cost)))
        rest = (self.tokens - at_start * start_cost) / max(1.0, cost)
        return at_start, min(per_step, rest / max(1, self.steps - 1))


def due(rate: float, step: int) -> int:
    """How many games a step has, of `rate` a step on average."""
    return int((step + 1) * rate) - int(step * rate)


def per_question(values: Iterable[tuple[Episode, float]]) -> list[float]:
    """Values of games -> their means per question, in the order in which questions came.

    Games of one question are no independent evidence: what is hard in one is hard in all.
    """
    of_question: dict[str, list[float]] = {}
    for game, value in values:
        of_question.setdefault(game.question.id, []).append(value)
    return [fmean(of_games) for of_games in of_question.values()]


class CannotWatch(Exception):
    """Error of a monitor where this run has nothing that it could watch; its words are shown in a
    line, and it is asked no more.
    """


class Monitor:
    """Watches one thing; every method but `read` may be left as it is."""

    hypotheses: Sequence[Hypothesis] = ()
    """Fixed before the run: each gets an equal part of the run's alpha."""

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        """Values that it has to know later, also in another process: plain, written into every
        checkpoint as JSON.
        """
        self.allowance = Allowance(math.inf, 1_000)
        """Budget that it may spend; a run sets it before `begin`."""

    @property
    def asks(self) -> bool:
        """Whether it asks the team anything, which costs tokens."""
        return type(self).begin is not Monitor.begin or type(self).ask is not Monitor.ask

    async def begin(self, context: GameContext, episodes: Sequence[Episode]) -> None:
        """Prepare when the first step has been played, by the team as it starts, and nobody has
        learnt from it; `episodes` are those that did not fail.
        """

    def expected(self) -> Mapping[str, Expected]:
        """Name of a hypothesis -> what its readings will be, once `begin` has been; what nobody
        knows is left out.
        """
        return {}

    async def ask(self, context: GameContext, step: int, discussions: int) -> None:
        """Ask the team something of one's own while a step of so many discussions is played;
        nothing of it is learnt from. `memory` stays as it is: `read` may write what comes of it.
        """

    def read(self, seen: Seen) -> Mapping[str, Reading]:
        """Name of a hypothesis -> what speaks for and against it in this step; those of which
        nothing is to be seen are left out.
        """
        raise NotImplementedError
