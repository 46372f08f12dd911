"""What preflight says of judges that know nothing, and of judges that know something."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from comas.evaluation.preflight import (
    FORMS,
    LEVEL,
    LITTLE,
    MODES,
    Judgement,
    Preflight,
    advice,
    judged,
    pairs_needed,
    preferred,
)
from comas.stats import exact_share

TRIES = 100


def said_of(
    rng: random.Random, dissenting: int, right: float | None, knows: float, graded: bool
) -> Counter[str]:
    """Verdicts of one preflight on all forms of judging: judges put the majority's work first,
    or with labels the right one, with a probability of `knows`, and work is right at this rate.
    """
    labels: dict[str, bool] = {}
    if right is not None:
        for place in range(dissenting):
            labels |= {f"{place}{side}": rng.random() < right for side in (True, False)}
    judges = []
    for mode in MODES:
        verdicts: list[Judgement] = []
        for place in range(dissenting):
            better = labels.get(f"{place}True", True)
            if labels and better == labels[f"{place}False"]:
                better = rng.random() < 0.5  # nothing to know
            first = better if rng.random() < knows else not better
            high, low = (rng.uniform(0.5, 1), rng.uniform(0, 0.5)) if graded else (1.0, 0.0)
            for side in (True, False):
                value = high if side == first else low
                verdicts.append(Judgement(place, f"{place}{side}", side, value))
        judges.append(judged(mode, verdicts, labels or None))
    truth = {"single": 0.5, "majority": 0.5, "mixed": 0.5} if labels else None
    found = replace(EMPTY, judges=judges, questions=max(1, 2 * dissenting), truth=truth)
    comas = {f"comas {form}" for form in FORMS}
    return Counter(one.verdict for one in advice(found) if one.method in comas)


EMPTY = Preflight(
    team=("base",),
    task="pick",
    questions=48,
    answers=8,
    readable=1.0,
    cut=0.0,
    distinct=3.0,
    majority=0.5,
    dissent=0.5,
    example="",
    judges=(),
    truth=None,
    methods=(),
    tokens=1,
    seconds=1.0,
    step_minutes=1.0,
    notes=(),
)


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("right", [None, 0.1, 0.5])
@pytest.mark.parametrize("dissenting", [1, 2, 3, 8, 48])
def test_a_coin_is_hardly_ever_told_that_it_can_learn(
    dissenting: int, right: float | None, graded: bool
) -> None:
    rng = random.Random(f"{dissenting} {right} {graded}")
    tries = [said_of(rng, dissenting, right, 0.5, graded) for _ in range(TRIES)]
    # of all forms at once; .05 is what is allowed, and .12 is three standard errors above
    assert sum(said["can learn"] > 0 for said in tries) / TRIES < 0.12
    if dissenting <= 16:
        assert sum(said["will not"] > 0 for said in tries) / TRIES < 0.12


@pytest.mark.parametrize("right", [None, 0.5])
def test_judges_that_know_are_found_out(right: float | None) -> None:
    rng = random.Random(0)
    tries = [said_of(rng, 48, right, 0.9, True) for _ in range(40)]
    assert sum(said["can learn"] for said in tries) > 0.8 * 40 * len(FORMS)


def test_unanimous_pairs_have_an_interval() -> None:
    two = preferred([(1.0, 0.0)] * 2)
    assert (two.mean, two.high) == (1.0, 1.0)
    assert two.low < 0.1
    alike = preferred([(0.5, 0.5)] * 9)
    assert alike.mean == 0.5
    assert alike.low == 1 - alike.high
    assert 0.25 < alike.low < 0.5, "what differs may have stayed unseen"
    tied = preferred([(1.0, 0.0)] * 2 + [(1.0, 1.0)] * 38)
    assert tied.low < 0.5 < tied.high


def test_ends_of_an_interval_of_pairs_by_hand() -> None:
    pairs = [(1.0, 0.0)] * 27 + [(0.0, 1.0)] * 3 + [(1.0, 1.0)] * 10
    level = 1 - (1 - LEVEL) / 2  # two intervals, half the error each
    unequal = exact_share(30, 40, level)
    greater = exact_share(27, 30, level)
    found = preferred(pairs)
    low, high = (
        0.5 + share * (bound - 0.5)
        for share, bound in ((unequal.low, greater.low), (unequal.high, greater.high))
    )
    assert found == pytest.approx((0.8, low, high, 40))
    turned = preferred([(less, more) for more, less in pairs])
    assert turned == pytest.approx((0.2, 1 - high, 1 - low, 40))


def test_an_exact_interval_is_the_textbooks() -> None:
    # Clopper and Pearson's table: 7 of 20
    found = exact_share(7, 20)
    assert found.low == pytest.approx(0.1539, abs=1e-4)
    assert found.high == pytest.approx(0.5922, abs=1e-4)
    assert exact_share(0, 10)[1:3] == (0.0, pytest.approx(1 - 0.025 ** (1 / 10)))


@pytest.mark.parametrize(
    ("pairs", "ties", "right"),
    [(11, 0.7, 0.9), (20, 0.5, 1.0), (24, 0.85, 1.0), (40, 0.85, 0.95), (20, 0.0, 0.7)],
)
def test_the_interval_holds_where_pairs_are_equal(pairs: int, ties: float, right: float) -> None:
    """How many are equal is drawn, too: a fifth of such preflights had an interval without the
    truth where that was taken for known.
    """
    rng = random.Random(f"{pairs} {ties}")
    truth = ties / 2 + (1 - ties) * right
    kinds = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
    weights = (ties, (1 - ties) * right, (1 - ties) * (1 - right))
    found = [preferred(rng.choices(kinds, weights, k=pairs)) for _ in range(500)]
    assert sum(each.low <= truth <= each.high for each in found) >= 0.98 * 500
    assert sum(each.high < LITTLE for each in found) <= 0.01 * 500


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75, 1.0])
def test_the_number_that_would_decide_does(share: float) -> None:
    n = pairs_needed(share)
    rng = random.Random(n)
    seen = max(0.6, share)
    right = [sum(rng.random() < seen for _ in range(n)) for _ in range(400)]
    told = [preferred([(1.0, 0.0)] * k + [(0.0, 1.0)] * (n - k)).low > 0.5 for k in right]
    assert sum(told) > 0.73 * 400
    if share == 0.6:
        fewer = [sum(rng.random() < seen for _ in range(n // 2)) for _ in range(400)]
        pairs = [[(1.0, 0.0)] * k + [(0.0, 1.0)] * (n // 2 - k) for k in fewer]
        assert sum(preferred(each).low > 0.5 for each in pairs) < 0.7 * 400


def test_labels_by_which_all_work_is_wrong_are_no_evidence_for_a_judge() -> None:
    sides = [(place, side) for place in range(40) for side in (True, False)]
    verdicts = [Judgement(place, f"{place}{side}", side, float(side)) for place, side in sides]
    wrong = dict.fromkeys((verdict.work for verdict in verdicts), False)
    judges = tuple(judged(mode, verdicts, wrong) for mode in MODES)
    truth = {"single": 0.0, "majority": 0.0, "mixed": 0.0}
    said = advice(replace(EMPTY, judges=judges, truth=truth))
    of_judges = [each for each in said if each.method.startswith("comas ")]
    assert {each.verdict for each in of_judges} == {"not known"}
    assert "can learn" not in {each.verdict for each in said}
