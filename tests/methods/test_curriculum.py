"""The bandit over kinds: its softmax, its draws, its updates."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.methods import sec as curriculum
from comas.types import Question

VALUES = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1)


def questions(**counts: int) -> list[Question]:
    return [
        Question(id=f"{kind}{i}", prompt="p", kind=kind)
        for kind, count in counts.items()
        for i in range(count)
    ]


@given(VALUES, st.floats(0.01, 10))
def test_the_softmax_by_its_definition(values: dict[str, float], temperature: float) -> None:
    found = curriculum.softmax(values, values, temperature)
    weights = {kind: math.exp((value - 1) / temperature) for kind, value in values.items()}
    assert math.fsum(found.values()) == pytest.approx(1)
    if min(weights.values()) > 1e-200:
        total = sum(weights.values())
        assert found == pytest.approx({kind: w / total for kind, w in weights.items()})
    assert curriculum.softmax({}, ["a", "b"], temperature) == {"a": 0.5, "b": 0.5}


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 12), st.integers(0, 99))
def test_draws_are_different_questions_whatever_their_order(
    a: int, b: int, count: int, seed: int
) -> None:
    asked = questions(a=a, b=b)
    drawn = curriculum.drawn({"a": 0.9}, asked, count, random.Random(seed), 0.2)
    assert len(drawn) == min(count, a + b)
    assert len({question.id for question in drawn}) == len(drawn)
    assert curriculum.drawn({"a": 0.9}, asked, count, random.Random(seed), 0.2) == drawn


def test_no_temperature_overflows_and_high_ones_are_uniform() -> None:
    assert curriculum.softmax({"a": 1.0, "b": 0.5}, ["a", "b"], 1e-309) == {"a": 1.0, "b": 0.0}
    asked = questions(a=500, b=500)
    cold = curriculum.drawn({"a": 1.0, "b": 0.0}, asked, 50, random.Random(0), 1e-6)
    assert {question.kind for question in cold} == {"a"}
    hot = curriculum.drawn({"a": 1.0, "b": 0.0}, asked, 400, random.Random(0), 1e9)
    assert 160 < sum(question.kind == "a" for question in hot) < 240


@given(VALUES, st.floats(0.05, 1), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_a_value_goes_its_share_of_the_way(
    values: dict[str, float], rate: float, gains: list[float]
) -> None:
    found = curriculum.moved(values, {"a": gains, "b": []}, rate)
    mean = sum(gains) / len(gains)
    before = values.get("a", 0.0)
    assert found["a"] == pytest.approx((1 - rate) * before + rate * mean)
    others = {kind: value for kind, value in values.items() if kind != "a"}
    assert {kind: value for kind, value in found.items() if kind != "a"} == others
