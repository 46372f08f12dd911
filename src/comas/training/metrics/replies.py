"""How many replies were paid, cut and unreadable, per agent and role."""

from __future__ import annotations

from typing import Any

from comas.game.replies import replies
from comas.training.metrics.record import StepRecord


def metric(step: StepRecord) -> list[dict[str, Any]]:
    """Rows of `game.replies`."""
    return replies(step.turns)
