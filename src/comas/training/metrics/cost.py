"""Tokens and seconds of waiting, per agent, role and round."""

from __future__ import annotations

from typing import Any

from comas.game.cost import cost
from comas.training.metrics.record import StepRecord


def metric(step: StepRecord) -> list[dict[str, Any]]:
    """Rows of `game.cost`, failed discussions included: they have been paid for."""
    return cost(step.all_turns)
