"""Intervals and paired tests. scipy underneath.

Questions are the unit: several agents' answers to one question are one cluster. Several runs are a
level of their own. Leaves out: models of the questions' difficulty.
"""

# scipy ships no types
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

ROUNDING = 1e-12
"""How far apart shares and their differences may be that are equal."""

LEVEL = 0.95
"""Probability with which intervals have the truth in them."""


class Interval(NamedTuple):
    """A mean and its 95 % interval over `n` independent units."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return spelt(self.mean, self.low, self.high)

    def within(self, least: float, most: float) -> Interval:
        """The part of it that the quantity can have."""
        return self._replace(low=max(least, self.low), high=min(most, self.high))


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of independent values (cluster means, seeds); infinite for
    fewer than two.
    """
    if not values:
        raise ValueError("an interval of no values was asked for")
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    n = len(array)
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    half = float(_quantile_of_t(0.5 + LEVEL / 2, n - 1) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def _quantile_of_t(p: float, df: float) -> float:
    """The quantile p of Student's t distribution."""
    # not scipy.stats, whose import takes a second
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def seeds_interval(values: Sequence[float]) -> Interval:
    """`mean_interval` of a value per seed, or of payoffs, which have no bounds; where all are equal
    their spread says nothing, and the interval is infinite, as for one.
    """
    interval = mean_interval(values)
    if not _are_equal(values):
        return interval
    return Interval(interval.mean, -math.inf, math.inf, interval.n)


def wilson(right: int, n: int) -> Interval:
    """Wilson's score interval of a proportion of independent trials (Wilson 1927)."""
    if n == 0:
        raise ValueError("an interval of no trials was asked for")
    z2 = NormalDist().inv_cdf(0.5 + LEVEL / 2) ** 2
    share = right / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * share * (1 - share) / n + (z2 / (2 * n)) ** 2) / (1 + z2 / n)
    # where none or all are right the formula gives 0 or 1, but for rounding
    low = middle - half if right > 0 else 0.0
    high = middle + half if right < n else 1.0
    return Interval(share, low, high, n)


def exact_share(right: int, n: int, level: float = LEVEL) -> Interval:
    """The exact interval of a proportion of independent trials (Clopper and Pearson 1934): below
    and above it lies the truth with a probability of at most (1 - level) / 2 each, for any `n`.
    """
    from scipy.special import betaincinv  # not scipy.stats, whose import takes a second

    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    tail = (1 - level) / 2
    low = float(betaincinv(right, n - right + 1, tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, n - right, 1 - tail)) if right < n else 1.0
    return Interval(right / n, low, high, n)


def accuracy_interval(per_question: Sequence[float]) -> Interval:
    """Mean over questions of each question's share of right answers, clustered by question, clipped
    to [0, 1].

    Where all questions agree the spread says nothing: Wilson's interval is used where all are right
    or all wrong, and elsewhere (every question half right, say) what as many questions without an
    exception allow.
    """
    if per_question and _are_equal(per_question):
        if per_question[0] in (0.0, 1.0):
            return wilson(int(sum(per_question)), len(per_question))
        return _unanimous(per_question[0], len(per_question), lowest=0.0)
    interval = mean_interval(per_question)
    return interval.within(0.0, 1.0)


def _are_equal(values: Sequence[float]) -> bool:
    """Whether values are equal but for rounding (`1 - 2 / 3` and `2 / 3 - 1 / 3`)."""
    return max(values) - min(values) < ROUNDING


def gain_interval(differences: Sequence[float]) -> Interval:
    """Student's t interval of the mean of paired differences of shares, one per question, clipped
    to [-1, 1].

    Where all differences are equal it is what as many questions without an exception allow.
    """
    if differences and _are_equal(differences):
        return _unanimous(differences[0], len(differences))
    interval = mean_interval(differences)
    return interval.within(-1.0, 1.0)


def pass_at(n: int, right: int, k: int) -> float:
    """Chance that k of n answers, drawn without replacement, hold one of the right ones: an
    unbiased estimate of pass@k (Chen et al. 2021). Raises ValueError for more than there are.
    """
    if not 0 < k <= n:
        raise ValueError(f"pass@{k} of {n} answers was asked for: k is from 1 to {n}")
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p of McNemar's exact test (McNemar 1947): of the questions that one system alone
    got right, is each the winner equally often? 1 where there are none.
    """
    if only_first + only_second == 0:
        return 1.0
    from scipy.special import bdtr

    fewer = min(only_first, only_second)
    return min(1.0, 2 * float(bdtr(fewer, only_first + only_second, 0.5)))


def sign_flips(differences: Sequence[float], seed: int = 0, draws: int = 9999) -> float:
    """Two-sided p of no difference, by Fisher's randomisation test.

    How often a mean is as far from 0 if every difference may as well have the other sign. Exact up
    to 13 differences that are not 0, sampled beyond.
    """
    array = np.asarray([d for d in differences if d != 0], dtype=np.float64)
    if len(array) == 0:
        return 1.0
    if len(array) <= 13:
        every = np.arange(2 ** len(array), dtype=np.int64)[:, None]
        signs = 1.0 - 2.0 * ((every >> np.arange(len(array), dtype=np.int64)) & 1)
        return float((np.abs(signs @ array) >= abs(array.sum()) - 1e-9).mean())
    rng = np.random.default_rng(seed)
    beyond = 0
    for drawn in range(0, draws, FLIPS):
        signs = rng.choice([-1.0, 1.0], (min(FLIPS, draws - drawn), len(array)))
        beyond += int((np.abs(signs @ array) >= abs(array.sum()) - 1e-9).sum())
    return (beyond + 1) / (draws + 1)  # what was seen is one of the draws: p is never 0


FLIPS = 333
"""Rows of signs that are drawn at once."""


def _unanimous(value: float, n: int, lowest: float = -1.0, highest: float = 1.0) -> Interval:
    """Interval of a mean of which n questions all say the same `value`, each between `lowest` and
    `highest`.

    So large a share of exceptions could have stayed unseen among n (Clopper and Pearson 1934); what
    they say may be anything, so each end is the mean if all of them were as far away as they can
    be.
    """
    unseen = 1 - (0.5 - LEVEL / 2) ** (1 / n)
    low = value - unseen * (value - lowest)
    high = value + unseen * (highest - value)
    return Interval(value, max(lowest, low), min(highest, high), n)


def two_level(values_SQ: Sequence[Sequence[float]]) -> tuple[Interval, float]:
    """Mean over S runs and Q questions, both of them samples, with a t interval (`n` is Q), and the
    two-sided p of a mean of 0.

    `values_SQ[s][q]` is what run s made of question q, or by how much it did better in one way than
    in another. Crossed random effects: var = (MS_run + MS_question - MS_rest) / (S Q), its degrees
    of freedom after Satterthwaite (1946); but no less than the larger of MS_run and MS_question,
    whose own degrees of freedom then count. With one run there is nothing to learn about others: a
    ValueError.
    """
    array = np.asarray(values_SQ, dtype=np.float64)
    if array.ndim != 2 or min(array.shape) < 2:
        raise ValueError(
            f"an interval over runs and questions takes two or more of each, not {array.shape}"
        )
    S, Q = array.shape
    squares = _mean_squares(array)
    parts = [(squares[0], S - 1), (squares[1], Q - 1), (-squares[2], (S - 1) * (Q - 1))]
    total = sum(square for square, _ in parts)
    df = _satterthwaite(parts)
    least, df_of_least = max(parts[:2])
    if total < least:  # an estimate that came out too small
        total = least
        if S > 2:  # with two runs, the many degrees of freedom of questions held too seldom
            df = df_of_least
    return _t_test(float(array.mean()), total / (S * Q), df, Q)


def _mean_squares(array_SQ: np.ndarray) -> tuple[float, float, float]:
    """Return the mean squares of runs, of questions, and of what neither explains."""
    S, Q = array_SQ.shape
    runs_S = array_SQ.mean(1)
    questions_Q = array_SQ.mean(0)
    mean = array_SQ.mean()
    rest_SQ = array_SQ - runs_S[:, None] - questions_Q + mean
    return (
        float(Q * runs_S.var(ddof=1)),
        float(S * questions_Q.var(ddof=1)),
        float((rest_SQ**2).sum() / ((S - 1) * (Q - 1))),
    )


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of mean squares (value, degrees of freedom of its own)."""
    spread = sum(square**2 / df for square, df in parts)
    return sum(square for square, _ in parts) ** 2 / spread if spread > 0 else math.inf


def _t_test(mean: float, variance: float, df: float, n: int) -> tuple[Interval, float]:
    from scipy.special import stdtr

    df = max(1.0, df)
    error = math.sqrt(variance)
    if error < ROUNDING:  # all say the same, but for rounding: what chance makes of n equal signs
        return _unanimous(mean, n), 1.0 if abs(mean) < ROUNDING else min(1.0, 2.0 ** (1 - n))
    half = _quantile_of_t(0.5 + LEVEL / 2, df) * error
    p = 2 * float(stdtr(df, -abs(mean) / error))
    return Interval(mean, mean - half, mean + half, n), p


def two_level_difference(
    first_SQ: Sequence[Sequence[float]], second_SQ: Sequence[Sequence[float]]
) -> tuple[Interval, float]:
    """Second minus first on the same Q questions, each system a sample of runs of its own, with a t
    interval and its two-sided p.

    var = var_q(differences) / Q + what runs add to each mean (none for a system of one run: it
    stands for itself alone).
    """
    first = np.asarray(first_SQ, dtype=np.float64)
    second = np.asarray(second_SQ, dtype=np.float64)
    Q = first.shape[1]
    if Q < 2 or second.shape[1] != Q:
        raise ValueError(
            f"a comparison takes the same two or more questions, not {first.shape[1]} and"
            f" {second.shape[1]}"
        )
    differences_Q = second.mean(0) - first.mean(0)
    parts: list[tuple[float, float]] = [(float(differences_Q.var(ddof=1)) / Q, Q - 1)]
    for array in (first, second):
        if len(array) > 1:
            runs, _, residual = _mean_squares(array)
            parts.append((max(0.0, runs - residual) / array.size, len(array) - 1))
    return _t_test(
        float(differences_Q.mean()), sum(part for part, _ in parts), _satterthwaite(parts), Q
    )


def share_interval(
    tops_SQ: Sequence[Sequence[float]], bottoms_SQ: Sequence[Sequence[float]]
) -> Interval | None:
    """Share of the cases that have a property, with an interval clustered by question, clipped to
    [0, 1]; None where there is no case.

    Of run s and question q, `tops_SQ[s][q]` of `bottoms_SQ[s][q]` cases have it. Cases are pooled:
    a question weighs as much as it has cases. `n` counts the questions that have any. Where all of
    these say the same, the interval is that of `accuracy_interval`.
    """
    tops_Q = [math.fsum(column) for column in zip(*tops_SQ, strict=True)]
    bottoms_Q = [math.fsum(column) for column in zip(*bottoms_SQ, strict=True)]
    asked = [q for q, bottom in enumerate(bottoms_Q) if bottom > 0]
    shares = [tops_Q[q] / bottoms_Q[q] for q in asked]
    if not shares:
        return None
    if _are_equal(shares):
        return accuracy_interval(shares[:1] * len(shares))
    # questions without a case tell nothing of its spread
    tops, bottoms = ([[row[q] for q in asked] for row in rows] for rows in (tops_SQ, bottoms_SQ))
    interval = ratio_interval(tops, bottoms)
    mean = math.fsum(tops_Q) / math.fsum(bottoms_Q)
    return Interval(mean, max(0.0, interval.low), min(1.0, interval.high), len(shares))


def ratio_interval(
    tops_SQ: Sequence[Sequence[float]], bottoms_SQ: Sequence[Sequence[float]]
) -> Interval:
    """Mean of the tops over mean of the bottoms, of S runs and Q questions (Cochran 1977, 6.3)."""
    top = float(np.mean(tops_SQ))
    bottom = float(np.mean(bottoms_SQ))
    slopes = (1 / bottom, -top / bottom**2)
    return delta_interval(top / bottom, slopes, (tops_SQ, bottoms_SQ))


def share_ratio_interval(
    tops_SQ: Sequence[Sequence[float]], bottoms_SQ: Sequence[Sequence[float]]
) -> Interval:
    """`ratio_interval` of two shares, clipped at 0.

    Where all questions say the same (every answer wrong in both, say), it is what as many questions
    without an exception allow: one that is seen in neither may add up to 1 above or below.
    """
    interval = ratio_interval(tops_SQ, bottoms_SQ)
    if interval.low < interval.high:
        return interval._replace(low=max(0.0, interval.low))
    bottom = float(np.mean(bottoms_SQ))
    unseen = _unanimous(0.0, interval.n, lowest=-interval.mean, highest=1.0)
    low = max(0.0, interval.mean + unseen.low / bottom)
    return interval._replace(low=low, high=interval.mean + unseen.high / bottom)


def delta_interval(
    value: float, slopes: Sequence[float], tables_KSQ: Sequence[Sequence[Sequence[float]]]
) -> Interval:
    """Interval of a smooth function of K means over the same S runs and Q questions.

    The delta method (Cramer 1946): `value` is the function at the means, `slopes` are its partial
    derivatives there, and the linear function with these slopes has a t interval over questions,
    over runs and questions where there are several runs. Infinite for one question.
    """
    tables = np.asarray(tables_KSQ, dtype=np.float64)
    distances = tables - tables.mean((1, 2), keepdims=True)
    linear_SQ = np.tensordot(np.asarray(slopes), distances, 1)
    S, Q = linear_SQ.shape
    if Q > 1 and np.ptp(linear_SQ) < 1e-12:  # all questions say the same
        return Interval(value, value, value, Q)
    if S == 1 or Q == 1:
        centred = mean_interval(linear_SQ.mean(0).tolist())
    else:
        centred, _ = two_level(linear_SQ.tolist())
    return Interval(value, value + centred.low, value + centred.high, Q)


def auc(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """P(a right one has the greater value than a wrong one) + half of P(both have the same), of
    (value, whether it is right); None without both kinds (Mann and Whitney 1947).
    """
    wrong = sorted(value for value, is_right in pairs if not is_right)
    right = [value for value, is_right in pairs if is_right]
    if not wrong or not right:
        return None
    below = sum(bisect.bisect_left(wrong, value) for value in right)
    up_to = sum(bisect.bisect_right(wrong, value) for value in right)
    return (below + up_to) / (2 * len(wrong) * len(right))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number (Holm 1979): rejecting those below .05 makes any false
    alarm in the family at most 5 % likely, however they depend on each other.
    """
    m = len(p_values)
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (m - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


def interval_record(interval: Interval) -> dict[str, float | None]:
    """The fields of an interval as JSON, which has no infinity: an open end is null."""
    return {name: finite(value) for name, value in interval._asdict().items()}


def spelt(mean: float, low: float | None, high: float | None, form: str = ".3f") -> str:
    """A mean and its interval in words: `0.500 [0.400, ?]`, where an end is not known."""
    ends = ["?" if end is None else f"{end:{form}}" for end in (low, high)]
    return f"{mean:{form}} [{', '.join(ends)}]"


def finite(value: float) -> float | None:
    """The number, or None where it is infinite."""
    return value if math.isfinite(value) else None


def roughly(seconds: float) -> str:
    """Two digits of hours, minutes or seconds: more a guess does not have."""
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((unit for unit, size in units.items() if seconds >= 1.5 * size), "seconds")
    amount = seconds / units[unit]
    return f"{amount:.0f} {unit}" if amount >= 9.5 else f"{amount:.1f} {unit}"
