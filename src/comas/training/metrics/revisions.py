"""What revisions did to answers, against the task's labels: how often right ones stayed right, and
wrong ones became right.

Confidence and critique of arXiv 2412.19513, of each turn that revises another turn of the same
agent, as `comas eval` has them. For reports only: no method sees it. On by default where the task
says that its verifier is `quick`. Leaves out: intervals (`evaluation.teamwork`).
"""

from __future__ import annotations

from comas.evaluation.games import revisions
from comas.training.metrics.record import Figures, StepRecord, mean


def metric(step: StepRecord) -> Figures | None:
    """Of `n` revisions the share of right answers `before` and `after`, `confidence`: P(right after
    | right before), and `critique`: P(right after | wrong before).

    What would be a mean of nothing is left out.
    """
    changes: list[tuple[bool, bool]] = []
    for earlier, later in revisions([vars(turn) for turn in step.turns]):
        before = step.labels.get(earlier["id"])
        after = step.labels.get(later["id"])
        if before is not None and after is not None:
            changes.append((before, after))
    if not changes:
        return None
    found: Figures = {
        "n": len(changes),
        "before": mean([before for before, _ in changes]),
        "after": mean([after for _, after in changes]),
    }
    for name, right in (("confidence", True), ("critique", False)):
        of_these = [after for before, after in changes if before is right]
        if of_these:
            found[name] = mean(of_these)
    return found
