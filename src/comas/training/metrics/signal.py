"""What there is to learn from: whether rewards that are compared differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from comas.training.metrics.record import StepRecord
from comas.types import Turn


def metric(step: StepRecord) -> dict[str, dict[str, float]]:
    """`signal` of the paid turns."""
    return signal(step.paid)


def signal(paid: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Role -> the number of groups whose rewards are compared (`groups`), of those in which all are
    equal (`flat`), and the standard deviation of all its rewards (`spread`). Without a group of its
    own, a turn is compared with its policy's others.
    """
    groups: dict[str, dict[tuple[str, str | None], list[float]]] = {}
    for turn in paid:
        groups.setdefault(turn.role, {}).setdefault((turn.policy, turn.group), []).append(
            turn.reward or 0.0
        )
    found: dict[str, dict[str, float]] = {}
    for role, compared in sorted(groups.items()):
        rewards = [reward for group in compared.values() for reward in group]
        flat = sum(max(group) == min(group) for group in compared.values())
        found[role] = {"groups": len(compared), "flat": flat, "spread": statistics.pstdev(rewards)}
    return found
