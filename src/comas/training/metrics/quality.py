"""How well rewards tell right work from wrong, per role: toxicity, gap, and area under the curve.

For reports only: no method sees them. On by default where the task says that its verifier is
`quick`. Work that is paid for being wrong (`sabotage`) has no place here. Leaves out: judges
(`judges`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from comas.game.roles import ANSWERS
from comas.training.metrics.record import Figures, StepRecord, grouped, mean

ACCEPTED = 0.5
"""Reward from which work counts as accepted, where rewards go from 0 to 1."""
Pair = tuple[float, bool]
"""The reward of a piece of work, and whether it is right."""


def metric(step: StepRecord) -> dict[str, Figures] | None:
    """Role -> `quality` of its paid work whose verdict is known."""
    pairs = grouped(_pairs(step))
    return {role: quality(pairs[role]) for role in sorted(pairs)} or None


def _pairs(step: StepRecord) -> Iterator[tuple[str, Pair]]:
    """Each with its role."""
    for turn in step.paid:
        label = step.labels.get(turn.id)
        if turn.role in ANSWERS and label is not None:
            reward = turn.reward or 0.0
            yield turn.role, (reward, label)


def quality(pairs: Sequence[Pair]) -> Figures:
    """Of paid work (`n`), its `accuracy`; `auc`: how likely right work is paid more than wrong,
    equal pay counting half; and where all rewards lie between 0 and 1, `toxicity`: the share of
    accepted work that is wrong, and `gap`: the accuracy of accepted minus that of rejected work.

    What would be a mean of nothing is left out.
    """
    labels = [right for _, right in pairs]
    found: Figures = {"n": len(pairs), "accuracy": mean(labels)}
    if all(0.0 <= reward <= 1.0 for reward, _ in pairs):
        accepted = [right for reward, right in pairs if reward >= ACCEPTED]
        rejected = [right for reward, right in pairs if reward < ACCEPTED]
        if accepted:
            found["toxicity"] = 1.0 - mean(accepted)
        if accepted and rejected:
            found["gap"] = mean(accepted) - mean(rejected)
    area = auc(pairs)
    if area is not None:
        found["auc"] = area
    return found


def auc(pairs: Sequence[Pair]) -> float | None:
    """P(a right piece of work is paid more than a wrong one) + half of P(they are paid the same);
    None without both kinds (Mann and Whitney 1947).
    """
    wrong = sorted(reward for reward, is_right in pairs if not is_right)
    right = [reward for reward, is_right in pairs if is_right]
    if not wrong or not right:
        return None
    below = sum(bisect.bisect_left(wrong, reward) for reward in right)
    up_to = sum(bisect.bisect_right(wrong, reward) for reward in right)
    comparisons = len(wrong) * len(right)
    return (below + up_to) / (2 * comparisons)
