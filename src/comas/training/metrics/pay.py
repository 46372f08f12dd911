"""Whether pay went to right answers: precision, recall and area under the curve against the task's
labels.

For reports only: no method sees them. On by default where the task says that its verifier is
`quick`. Leaves out: other roles than solutions.
"""

from __future__ import annotations

from comas.objective.pay import earned
from comas.stats import auc
from comas.training.metrics.record import StepRecord, mean

PAID = 0.5
"""Worth from which a solution counts as paid: shipped methods pay from 0 to 1, or compare what
they would pay so.
"""


def metric(step: StepRecord) -> dict[str, float | int | None]:
    """Over paid solutions whose verdict is known (`n`): the share that is right (`accuracy`), the
    share of right ones among those that were worth at least 0.5 (`precision`), the share of right
    ones that got it (`recall`), and how likely right ones are paid more than wrong ones (`auc`);
    None of none.
    """
    solutions = [turn for turn in step.paid if turn.role == "solution" and turn.id in step.labels]
    pairs = [(earned(turn) >= PAID, step.labels[turn.id]) for turn in solutions]
    return {
        "n": len(pairs),
        "accuracy": _share([right for _, right in pairs]),
        "precision": _share([right for paid, right in pairs if paid]),
        "recall": _share([paid for paid, right in pairs if right]),
        "auc": auc([(turn.reward or 0.0, step.labels[turn.id]) for turn in solutions]),
    }


def _share(values: list[bool]) -> float | None:
    return mean(values) if values else None
