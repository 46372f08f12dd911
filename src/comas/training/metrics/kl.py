"""Mean KL to the policy at the start of the run, per role."""

from __future__ import annotations

from comas.training.metrics.record import StepRecord, mean_by_role


def metric(step: StepRecord) -> dict[str, float]:
    """Role -> mean over its paid turns of the mean log-ratio of their tokens, in nats."""
    known = [turn for turn in step.paid if "kl" in turn.info]
    return mean_by_role(known, lambda turn: turn.info["kl"])
