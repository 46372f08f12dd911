"""Mean reward per role."""

from __future__ import annotations

from comas.training.metrics.record import StepRecord, mean_by_role


def metric(step: StepRecord) -> dict[str, float]:
    """Role -> mean reward of its paid turns."""
    return mean_by_role(step.paid, lambda turn: turn.reward)
