"""Intervals and paired tests. scipy underneath.

Questions are the unit: several agents' answers to one question are one cluster. Leaves out: multiple comparisons.
"""

# scipy ships no types
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean and its 95 % interval over `n` independent units."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values (cluster means, seeds); infinite for fewer than two."""
    if not values:
        raise ValueError("an interval of no values was asked for")
    array = np.asarray(values, dtype=np.float64)
    mean, n = float(array.mean()), len(array)
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    from scipy import stats  # half a second: not at start-up

    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def wilson(right: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion of independent trials (Wilson 1927)."""
    if n == 0:
        raise ValueError("an interval of no trials was asked for")
    from scipy import stats

    found = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    return Interval(right / n, float(found.low), float(found.high), n)


def accuracy_interval(per_question: Sequence[float]) -> Interval:
    """Mean over questions of each question's share of right answers, clustered by question, clipped to [0, 1].

    Where all questions agree (all right or all wrong) the spread says nothing, and Wilson's interval is used.
    """
    if len(set(per_question)) == 1 and per_question[0] in (0.0, 1.0):
        return wilson(int(sum(per_question)), len(per_question))
    found = mean_interval(per_question)
    return Interval(found.mean, max(0.0, found.low), min(1.0, found.high), found.n)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p of McNemar's exact test (McNemar 1947): of the questions that one system alone got right, is each the
    winner equally often? 1 where there are none."""
    if only_first + only_second == 0:
        return 1.0
    from scipy import stats

    return float(stats.binomtest(only_first, only_first + only_second).pvalue)


def paired_bootstrap(differences: Sequence[float], seed: int = 0, draws: int = 9999, level: float = 0.95) -> tuple[Interval, float]:
    """Mean of paired differences with its percentile interval, and the two-sided p of no difference, over resampled questions
    (Efron and Tibshirani 1993, chapters 13 and 15). Differences that are all 0 give p = 1."""
    array = np.asarray(differences, dtype=np.float64)
    if len(array) < 2:
        raise ValueError(f"a paired comparison of {len(array)} questions was asked for: it takes two or more")
    rng, means = np.random.default_rng(seed), np.empty(draws)
    for i in range(draws):
        means[i] = array[rng.integers(0, len(array), len(array))].mean()
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    beyond = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return Interval(float(array.mean()), float(low), float(high), len(array)), min(1.0, 2 * (beyond + 1) / (draws + 1))
