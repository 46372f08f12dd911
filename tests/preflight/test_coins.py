"""What preflight says of judges that know nothing, and of judges that know something."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from comas.evaluation.preflight import (
    FORMS,
    LEVEL,
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
    found = replace(EMPTY, judges=judges, questions=max(1, 2 * dissenting))
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
    assert preferred([(0.5, 0.5)] * 9)[:3] == (0.5, 0.0, 1.0)
    tied = preferred([(1.0, 0.0)] * 2 + [(1.0, 1.0)] * 38)
    assert tied.low < 0.5 < tied.high


def test_an_exact_interval_is_the_textbooks() -> None:
    # Clopper and Pearson's table: 7 of 20
    found = exact_share(7, 20)
    assert found.low == pytest.approx(0.1539, abs=1e-4)
    assert found.high == pytest.approx(0.5922, abs=1e-4)
    assert exact_share(0, 10)[1:3] == (0.0, pytest.approx(1 - 0.025 ** (1 / 10)))


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75, 1.0])
def test_the_number_that_would_decide_does(share: float) -> None:
    n = pairs_needed(share)
    seen = max(0.6, share)
    assert exact_share(int(seen * n), n, LEVEL).low > 0.5
    assert exact_share(int(seen * (n - 1)), n - 1, LEVEL).low <= 0.5
