"""What a tiny model is taught: its words, its roles, its habits."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPECIALS = ["<pad>", "<user>", "<assistant>", "<end>", "<unk>"]
WORDS = [
    "solve",
    "check",
    "score",
    "verdict",
    "peers",
    "says",
    "#",
    "+",
    "=",
    ";",
    "->",
    "in",
    "out",
    "again",
    "right",
    "wrong",
    "<score>",
    "</score>",
    "(score)",
    "(/score)",
    "ok",
    "malformed",
]
NUMBERS = [str(n) for n in range(61)]
VOCABULARY = SPECIALS + WORDS + NUMBERS
"""Every word of a model that solves and judges."""
POSING_WORDS = ["propose", "rate", "judge", "spoil", "assess", "yes", "no"]
"""Words that the roles of `POSING` need besides; after the numbers, so that no other word moves."""

JUDGING = {"solution": 48, "evaluation": 48, "scoring": 56, "verdict": 24}
"""Role -> demonstrations per step, for models that solve and judge."""
VOTING = {"solution": 32, "evaluation": 24}
"""The same for models that solve alone; checking is what teaches them to compare with the target.
"""
POSING = {
    "solution": 24,
    "evaluation": 20,
    "scoring": 24,
    "verdict": 8,
    "judging": 20,
    "sabotage": 16,
    "propose": 48,
    "rating": 20,
    "assess": 20,
}
"""The same for models that pose puzzles, and judge in one reply."""
CRITICISM = {
    "solution": 24,
    "evaluation": 32,
    "scoring": 24,
    "verdict": 8,
    "judging": 24,
    "sabotage": 24,
}
"""The same for models that criticise, and spoil right work."""


@dataclass(frozen=True)
class World:
    """What a model of another world than the puzzles of `comas.tasks.pick` is taught there."""

    tasks: tuple[str, ...]
    """Names of its tasks."""
    words: tuple[str, ...]
    """Words that it knows besides `VOCABULARY`; where it is `alone`, all that it knows."""
    demonstration: Callable[[random.Random, str], tuple[str, str]]
    """`demonstration(rng, role)`: one prompt and reply."""
    measure: Callable[..., Awaitable[Mapping[str, Any]]]
    """`await measure(member, count)`: what its card says -> the share, on held-out questions."""
    lessons: str
    """What its demonstrations show, in a few sentences."""
    alone: bool = False
    """Whether it has no other words than its own."""


@dataclass(frozen=True)
class Course:
    """What one tiny model is taught."""

    form: str = "three"
    seed: int = 0
    stop: float = 0.4
    """Chance of stopping after a try."""
    stop_at_hit: float | None = None
    """Chance of stopping after a try that fits; None: that of any try."""
    toward: float = 0.0
    """Chance that a try is completed towards the target where that is possible. A model of this
    size hardly learnt it in 3,500 steps: it takes a difference that nobody writes down.
    """
    slip: float = 0.03
    """Share of false sums in solver demonstrations, and of false verdicts in judge demonstrations.
    """
    hole: bool = False
    """Taught an incomplete rule: work is right if its numbers add up, whatever the numbers are."""
    order: tuple[int, ...] = ()
    """Places of the offered numbers in the order in which a solver takes them; (): as offered."""
    peers: float = 0.3
    """Share of solver prompts that have work of peers in view."""
    careless: float = 0.0
    """Share of checks that err in one of their steps; their verdict is what they then bear out."""
    batch: Mapping[str, int] = field(default_factory=lambda: dict(JUDGING))
    """Role -> demonstrations per step."""
    steps: int = 3500
    """Optimizer steps; the sums fall into place after 1,300 to 2,000."""
    world: World | None = None
    """None: the puzzles of `comas.tasks.pick`, to which the fields above but `seed` and the last
    two belong.
    """

    @property
    def vocabulary(self) -> list[str]:
        """Every word that the model knows: those that its roles need."""
        if self.world is not None:
            common = SPECIALS if self.world.alone else VOCABULARY
            return [*common, *self.world.words]
        return VOCABULARY if self.batch.keys() <= JUDGING.keys() else VOCABULARY + POSING_WORDS
