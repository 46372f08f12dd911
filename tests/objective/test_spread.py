"""Rewards that differ by rounding are equal, in every credit and in what is counted as flat."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.objective.credit import grpo, reinforce_pp, rloo
from comas.objective.rewards import likeness
from comas.objective.spread import centred, is_flat, standardised
from comas.training.metrics import signal_in
from comas.types import Row, Turn

P_TRUE = [2.670967057821462, 2.670967074206874]
"""Expected marks of the same belief, weighed in two batches of bfloat16."""


def rows(rewards: list[float], role: str = "solution") -> list[Row]:
    """Rows of one group, each of one prompt token and one generated token."""
    return [
        Row(
            f"t{index}",
            role,
            1.0,
            np.array([1, 2]),
            np.array([False, True]),
            np.zeros(2, np.float32),
            group="q",
            reward=reward,
        )
        for index, reward in enumerate(rewards)
    ]


def turns(rewards: list[float]) -> list[Turn]:
    """Paid turns of one group."""
    return [
        Turn(f"t{index}", "a0", "h/a0", "solution", "", "", True, 0, reward=reward, group="q")
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    "values",
    [
        P_TRUE,
        [1 - 2 / 3, 2 / 3 - 1 / 3, 1 / 3],
        [0.1 + 0.2, 0.3] * 4,
        [2 * min(0.3, 0.7), 2 * min(0.7, 1 - 0.7)],
        [-0.5, -0.5 + 3e-8, -0.5 - 3e-8],
        [1e9 / 3, 1e9 / 3 * (1 + 1e-9)],
        [float(np.float32(0.7)), 0.7],
    ],
)
def test_rounding_is_no_difference_to_any_credit(values: list[float]) -> None:
    assert is_flat(values)
    assert not standardised(values).any()
    assert not centred(values).any()
    paid = rows(values)
    for credit in (
        grpo(paid, {}),
        grpo(paid, {}, scale=False),
        rloo(paid, {}),
        reinforce_pp(paid, {}),
        reinforce_pp(paid, {}, normalise="all", min_rows=2)
        if max(map(abs, values)) < 1  # paid as they are, minus a KL that is not there
        else [],
    ):
        normalised = [advantages_T[1] for advantages_T in credit]
        assert len(set(normalised)) <= 1 or not any(normalised)
    counted = signal_in(turns(values))["solution"]
    assert (counted["groups"], counted["flat"]) == (1, 1)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.0, 1.0], [-1.0, 1.0]),
        ([0.70, 0.71], [-1.0, 1.0]),
        ([0.7, 0.7, 0.7001], [-math.sqrt(1 / 2), -math.sqrt(1 / 2), math.sqrt(2)]),
        ([2.0, 2.00001], [-1.0, 1.0]),
    ],
)
def test_small_differences_that_are_real_stay(values: list[float], wanted: list[float]) -> None:
    assert not is_flat(values)
    np.testing.assert_allclose(standardised(values), wanted, rtol=1e-6)
    advantages = [advantages_T[1] for advantages_T in grpo(rows(values), {})]
    np.testing.assert_allclose(advantages, wanted, rtol=1e-6)
    assert signal_in(turns(values))["solution"]["flat"] == 0


NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=9)


@given(NUMBERS, st.randoms(use_true_random=False))
def test_order_changes_nothing(values: list[float], rng) -> None:
    order = rng.sample(range(len(values)), len(values))
    shuffled = standardised([values[index] for index in order])
    assert shuffled.tolist() == [standardised(values)[index] for index in order]


@given(NUMBERS)
def test_mean_zero_and_spread_one_or_nothing(values: list[float]) -> None:
    scaled = standardised(values)
    if is_flat(values):
        assert not scaled.any()
        return
    assert abs(scaled.mean()) < 1e-6
    assert scaled.std() == pytest.approx(1.0)
    np.testing.assert_allclose(
        standardised(values, scale=False), np.subtract(values, np.mean(values)), atol=1e-9
    )


def test_none_and_one_are_flat() -> None:
    assert standardised([]).tolist() == []
    assert standardised([3.0]).tolist() == [0.0]
    assert is_flat([])
    assert is_flat([3.0])


def test_texts_are_alike_from_half_a_likeness_and_counted_among_all() -> None:
    assert likeness(["a b c", "a b d", None, "x"]) == [0.5, 0.5, 0.0, 0.25]
