"""What the questions that agents posed in a step are like: valid, new, and as hard as they should
be.

Of turns whose game notes `info["posed"]` (the question's text, or None where it was none); nothing
where there is none. How hard they are is told by the task's rules, for reports only, where its
verifier is `quick` and it has `check`. Leaves out: how often they repeat those of earlier steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from comas.objective.pay import grams, similarity
from comas.training.metrics.record import StepRecord, mean

FRONTIER = (0.3, 0.8)
"""Shares of right answers between which there is most to learn from a question."""


def metric(step: StepRecord) -> dict[str, float] | None:
    """Of proposals (`n`) the share that are questions (`valid`); of these the share of different
    ones (`distinct`) and `novelty`; and of those that were answered the share with a right answer
    among them (`solvable`: others may be, and nobody has found out) and with .3 to .8 of right
    answers (`frontier`).
    """
    proposals = [turn for turn in step.turns if isinstance(turn.info.get("posed", 0), str | None)]
    if not proposals:
        return None
    texts = [turn.info["posed"] for turn in proposals if turn.info["posed"] is not None]
    found: dict[str, float] = {"n": len(proposals), "valid": len(texts) / len(proposals)}
    if texts:
        found["distinct"] = len(set(texts)) / len(texts)
    if len(texts) > 1:
        found["novelty"] = novelty(texts)
    if step.task.quick and step.task.check is not None:
        shares = _shares_right(step, {turn.id for turn in proposals})
        if shares:
            found["solvable"] = mean([share > 0 for share in shares])
            found["frontier"] = mean([at_frontier(share) for share in shares])
    return found


def _shares_right(step: StepRecord, proposals: set[str]) -> list[float]:
    """Per proposal that was answered the share of right ones among its solutions."""
    outcomes: dict[str, list[bool]] = {}
    for turn in step.turns:
        if turn.role == "solution" and turn.about in proposals and turn.id in step.labels:
            outcomes.setdefault(turn.about, []).append(step.labels[turn.id])
    return [mean(of_proposal) for of_proposal in outcomes.values()]


def at_frontier(share: float) -> bool:
    """Whether a question with this share of right answers is neither too easy nor too hard."""
    low, high = FRONTIER
    return low <= share <= high


def novelty(texts: Sequence[str]) -> float:
    """The mean over texts of 1 - the greatest similarity to another of them (runs of words); two or
    more texts.
    """
    times = Counter(texts)
    counts = {text: grams(text) for text in times}
    news: list[float] = []
    for text in texts:
        if times[text] > 1:
            news.append(0.0)
            continue
        others = [similarity(counts[text], counts[other]) for other in times if other != text]
        news.append(1.0 - max(others))
    return mean(news)
