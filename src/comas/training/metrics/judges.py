"""Whether judges tell right work from wrong, against the task's labels: their balanced accuracy,
and of judges whose score is expected the area under the curve, which no threshold moves.

For reports only: no method sees it. On by default where the task says that its verifier is `quick`.
Leaves out: judgements of questions (`rating`, `assess`), evaluations that no program reads, such as
those of comas, whose scores are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comas.game.judgements import JUDGES, accepts, work_judged
from comas.training.metrics.quality import Pair, auc
from comas.training.metrics.record import Figures, StepRecord, grouped, mean
from comas.types import Turn

Judgement = tuple[bool, bool]
"""Whether the work was accepted, and whether it is right."""


def metric(step: StepRecord) -> dict[str, Figures] | None:
    """Role -> `balanced` of its judgements that can be read, of work whose verdict is known."""
    judgements = grouped(_judgements(step))
    found = {role: balanced(judgements[role]) for role in sorted(judgements)}
    for role, pairs in grouped(_beliefs(step)).items():
        area = auc(pairs)
        if area is not None:
            found[role]["auc"] = area
    return found or None


def _beliefs(step: StepRecord) -> Iterator[tuple[str, Pair]]:
    """Roles with the belief of a judge that work is right, and whether it is."""
    turns = {turn.id: turn for turn in step.turns}
    for turn in step.turns:
        belief = turn.info.get("belief") if turn.role in JUDGES else None
        right = label_of_work(turn, turns, step.labels)
        if belief is not None and right is not None:
            yield turn.role, (belief, right)


def _judgements(step: StepRecord) -> Iterator[tuple[str, Judgement]]:
    """Each with its role."""
    turns = {turn.id: turn for turn in step.turns}
    for turn in step.turns:
        if turn.role not in JUDGES:
            continue
        verdict = accepts(turn)
        if verdict is None:
            continue
        right = label_of_work(turn, turns, step.labels)
        if right is not None:
            yield turn.role, (verdict, right)


def label_of_work(turn: Turn, turns: Mapping[str, Turn], labels: Mapping[str, bool]) -> bool | None:
    """Whether the work is right that a judgement is about; None where that is not known."""
    work = work_judged(turn, turns)
    return labels.get(work.id) if work is not None else None


def balanced(judgements: Sequence[Judgement]) -> Figures:
    """Of judgements (`n`) the shares of right and of wrong work that are accepted, and `balanced`:
    the mean of the shares of either kind that are judged rightly, .5 being chance.

    What would be a mean of nothing is left out.
    """
    found: Figures = {"n": len(judgements)}
    of_right = [accepted for accepted, right in judgements if right]
    of_wrong = [accepted for accepted, right in judgements if not right]
    if of_right:
        found["accepts_right"] = mean(of_right)
    if of_wrong:
        found["accepts_wrong"] = mean(of_wrong)
    if of_right and of_wrong:
        rejects_wrong = 1.0 - found["accepts_wrong"]
        found["balanced"] = (found["accepts_right"] + rejects_wrong) / 2
    return found
