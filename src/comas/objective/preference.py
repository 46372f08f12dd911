"""Pairwise and squared losses as credit: with `plain` and fresh credit, their exact gradients.

For any loss f(s_1 ... s_n) of whole-reply log-probs the gradient is sum_i (df/ds_i) grad s_i. So an
advantage of -df/ds_i times (tokens / normaliser) on the tokens of reply i gives exactly that
gradient: the learner divides by tokens, and the credit takes that back. A method that uses these
sets `fresh = True`, so that the derivative is taken anew before each update. Leaves out: the value
of the loss (the learner reports that of the surrogate).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from comas.objective.credit import on_generated
from comas.objective.spread import is_flat
from comas.types import Positive, Row, UserMistake

Reference = Literal["start", "step"]
"""The policy at the start of the run, or of the step (iterative forms)."""
Pair = tuple[int, int]
"""The places of the best and of the worst row of a group."""


def dpo(
    rows: Sequence[Row],
    kl: Mapping[str, float],
    *,
    beta: Positive = 0.1,
    reference: Reference = "start",
) -> list[np.ndarray]:
    """DPO: the mean over pairs of -log sigmoid(beta * margin).

    Equation 7 of arXiv 2305.18290. Of each group the best and the worst row are a pair, and their
    margin is the difference of log(pi / pi_ref); the other rows, and groups whose rewards are all
    equal, get nothing. `kl` says nothing here: beta holds the policy.
    """
    margins = _margins(rows, reference)
    slopes = {pair: sigmoid(-beta * margin) for pair, margin in margins.items()}
    pulls = {pair: beta * slope for pair, slope in slopes.items()}
    return _from_pairs(rows, pulls)


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), without overflow for values far from 0."""
    return 0.5 * (1.0 + math.tanh(0.5 * value))


def ipo(
    rows: Sequence[Row],
    kl: Mapping[str, float],
    *,
    beta: Positive = 0.1,
    reference: Reference = "start",
) -> list[np.ndarray]:
    """IPO: the mean over pairs of (margin - 1 / (2 beta))^2, equation 17 of arXiv 2310.12036.

    Pairs and margins are those of `dpo`.
    """
    goal = 1 / (2 * beta)
    margins = _margins(rows, reference)
    pulls = {pair: 2 * (goal - margin) for pair, margin in margins.items()}
    return _from_pairs(rows, pulls)


def sppo(rows: Sequence[Row], kl: Mapping[str, float], *, eta: Positive = 1.0) -> list[np.ndarray]:
    """SPPO: the mean over rows of (log(pi / pi_t) - eta * (P - 1/2))^2, arXiv 2405.00675 eq. 4.4.

    P, the row's reward, is the probability that it wins; pi_t is the policy at the start of the
    step.
    """
    scale = _tokens(rows) / max(1, len(rows))
    advantages: list[np.ndarray] = []
    for row in rows:
        goal = eta * (row.reward - 0.5)
        distance = goal - log_ratio(row, "step")
        advantages.append(on_generated(row, 2 * scale * distance))
    return advantages


WITHOUT_KL = (dpo, ipo, sppo)
"""Credits that hold the policy by terms of their own, to which a KL says nothing."""


def log_ratio(row: Row, reference: Reference) -> float:
    """log(pi / pi_ref) of a whole reply in nats, pi the policy just before this update."""
    now_T = row.logprobs_T if row.now_T is None else row.now_T
    then_T = row.ref_logprobs_T if reference == "start" else row.logprobs_T
    if then_T is None:
        raise UserMistake(
            f"credit.reference is {reference!r}, but role {row.role!r} keeps no reference: set"
            ' credit.reference = "step", or name the role in Method(reference=...)'
        )
    difference_T = now_T.astype(np.float64) - then_T
    generated = difference_T[row.mask_T]
    return float(generated.sum())


def _margins(rows: Sequence[Row], reference: Reference) -> dict[Pair, float]:
    """The pair of each group -> difference of log ratios."""
    margins: dict[Pair, float] = {}
    for best, worst in pairs(rows):
        ratio = log_ratio(rows[best], reference)
        other = log_ratio(rows[worst], reference)
        margins[best, worst] = ratio - other
    return margins


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """Pair the best and the worst row of each group, where their rewards differ by more than
    rounding.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.group is not None:
            groups.setdefault(row.group, []).append(index)

    def reward(index: int) -> float:
        return rows[index].reward

    paired: list[Pair] = []
    for places in groups.values():
        best = max(places, key=reward)
        worst = min(places, key=reward)
        if not is_flat([reward(best), reward(worst)]):
            paired.append((best, worst))
    return paired


def _from_pairs(rows: Sequence[Row], pulls: Mapping[Pair, float]) -> list[np.ndarray]:
    """Advantages (T,) that pull each pair apart, scaled to the mean over pairs."""
    advantages = [np.zeros(len(row.token_ids_T)) for row in rows]
    scale = _tokens(rows) / max(1, len(pulls))
    for (best, worst), pull in pulls.items():
        advantages[best] = on_generated(rows[best], scale * pull)
        advantages[worst] = on_generated(rows[worst], -scale * pull)
    return advantages


def _tokens(rows: Sequence[Row]) -> int:
    """Generated tokens: what the learner divides by."""
    return sum(int(row.mask_T.sum()) for row in rows)
