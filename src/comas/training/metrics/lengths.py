"""Mean length of replies, per role."""

from __future__ import annotations

from comas.training.metrics.record import StepRecord, mean_by_role


def metric(step: StepRecord) -> dict[str, float]:
    """Role -> mean number of generated tokens."""
    return mean_by_role(step.turns, lambda turn: turn.tokens)
