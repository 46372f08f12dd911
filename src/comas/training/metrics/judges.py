"""Whether judges tell right work from wrong, against the task's labels: their balanced accuracy,
and of judges whose score is expected the area under the curve, which no threshold moves.

For reports only: no method sees it. On by default where the task says that its verifier is `quick`.
Leaves out: judgements of questions (`rating`, `assess`), evaluations that no program reads, such as
those of comas, whose scores are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comas.game.judgements import accepts, work_judged
from comas.game.roles import JUDGES
from comas.stats import auc
from comas.training.metrics.record import Figures, StepRecord, mean
from comas.types import Turn

Judgement = tuple[bool, bool]
"""Whether the work was accepted, and whether it is right."""


def metric(step: StepRecord) -> dict[str, Figures] | None:
    """Role -> `balanced` of its judgements that can be read, of work whose verdict is known."""
    verdicts: dict[str, list[Judgement]] = {}
    beliefs: dict[str, list[tuple[float, bool]]] = {}
    for turn, right in _judgements(step):
        verdict = accepts(turn)
        belief = turn.info.get("belief")
        if verdict is not None:
            verdicts.setdefault(turn.role, []).append((verdict, right))
        if belief is not None:
            beliefs.setdefault(turn.role, []).append((belief, right))
    found = {role: balanced(verdicts[role]) for role in sorted(verdicts)}
    for role, pairs in beliefs.items():
        area = auc(pairs)
        if area is not None:
            found[role]["auc"] = area
    return found or None


def _judgements(step: StepRecord) -> Iterator[tuple[Turn, bool]]:
    """Each turn of a judge on work whose label is known, and whether the work is right."""
    turns = {turn.id: turn for turn in step.turns}
    for turn in step.turns:
        right = label_of_work(turn, turns, step.labels) if turn.role in JUDGES else None
        if right is not None:
            yield turn, right


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
