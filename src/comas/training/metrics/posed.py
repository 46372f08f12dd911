"""What the questions that agents posed in a step are like: valid, new, and as hard as they should
be.

Of turns whose game notes `info["posed"]` (the question's text, or None where it was none); nothing
where there is none. How hard they are is told by the task's rules, for reports only, where its
verifier is `quick` and it has `check`. Leaves out: how often they repeat those of earlier steps.
"""

from __future__ import annotations

from collections.abc import Collection

from comas.training.metrics.record import Figures, StepRecord, grouped, mean
from comas.types import Turn

MISSING = 0
"""Where nothing is noted."""
FRONTIER = (0.3, 0.8)
"""Shares of right answers between which there is most to learn from a question."""


def metric(step: StepRecord) -> Figures | None:
    """Of proposals (`n`) the share that are questions (`valid`); of these the share of different
    ones (`distinct`); and of those that were answered the share with a right answer among them
    (`solvable`: others may be, and nobody has found out) and with .3 to .8 of right answers
    (`frontier`).
    """
    proposed = {t.id: t.info["posed"] for t in step.turns if is_proposal(t)}
    if not proposed:
        return None
    texts = [text for text in proposed.values() if text is not None]
    valid = len(texts) / len(proposed)
    found: Figures = {"n": len(proposed), "valid": valid}
    if texts:
        different = set(texts)
        found["distinct"] = len(different) / len(texts)
    if step.task.quick and step.task.check is not None:
        shares = _shares_right(step, proposed)
        if shares:
            found["solvable"] = mean([share > 0 for share in shares])
            found["frontier"] = mean([at_frontier(share) for share in shares])
    return found


def is_proposal(turn: Turn) -> bool:
    """Whether the game notes what question was posed in this turn, or that there is none."""
    return isinstance(turn.info.get("posed", MISSING), str | None)


def _shares_right(step: StepRecord, proposals: Collection[str]) -> list[float]:
    """Per proposal that was answered the share of right ones among its solutions."""
    solutions = [t for t in step.turns if t.role == "solution" and t.id in step.labels]
    about = {turn.id: turn.about for turn in step.turns}
    first = {turn.id: turn.info.get("dialogue", turn.id) for turn in solutions}
    asked = [(about.get(first[turn.id]), step.labels[turn.id]) for turn in solutions]
    outcomes = grouped(pair for pair in asked if pair[0] in proposals)
    return [mean(right) for right in outcomes.values()]


def at_frontier(share: float) -> bool:
    """Whether a question with this share of right answers is neither too easy nor too hard."""
    low, high = FRONTIER
    return low <= share <= high
