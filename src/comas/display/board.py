"""All that a run's display shows, as plain records.

Leaves out: gathering it (`display.train`), drawing it (`display.layout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comas.hooks import Progress
from comas.stats import Interval
from comas.types import Question, Turn


@dataclass
class Shown:
    """A discussion in view."""

    question: Question | None
    turns: list[Turn] = field(default_factory=list)
    paid: bool = False
    """Whether its turns have been paid."""
    error: str | None = None
    answers: dict[str, str] = field(default_factory=dict)
    """Turn id -> the canonical answer in it."""


@dataclass(frozen=True)
class Measured:
    """An accuracy, and that of each agent."""

    name: str
    step: int
    found: Interval
    agents: dict[str, float]


@dataclass
class Board:
    """All that is shown."""

    progress: Progress = field(default_factory=lambda: Progress("loading"))
    ended: str = ""
    """`done` or `stopped`, at the end."""
    steps: int = 0
    done: int = 0
    """Steps that are written."""
    tokens: int = 0
    seconds: float = 0.0
    """Since the display began."""
    left: float | None = None
    """Seconds that the remaining steps may take."""
    pace: float | None = None
    """Tokens per second over all steps of this process, learning included."""
    discussions: int = 0
    """Of a step."""
    shown: list[Shown] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    rewards: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Role -> its mean reward after each step."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Of the last step."""
    pays: Mapping[str, str] = field(default_factory=dict)
    """Role -> for what it is paid."""
    changes: int = 0
    """How often anything but the progress, the time, and what is noted on the turns in view has
    changed.
    """
    drawn: dict[str, tuple[Any, list[Any]]] = field(default_factory=dict)
    """Parts that were drawn: of what, and their lines."""
