"""Pairwise and squared losses as credit: with `plain` and fresh credit, their exact gradients.

For any loss f(s_1 ... s_n) of whole-reply log-probs the gradient is sum_i (df/ds_i) grad s_i. So an
advantage of -df/ds_i times (tokens / normaliser) on the tokens of reply i gives exactly that
gradient: the learner divides by tokens, and the credit takes that back. A method that uses these
sets `fresh = True`, so that the derivative is taken anew before each update. Leaves out: the value
of the loss (the learner reports that of the surrogate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from comas.types import Row

Positive = Annotated[float, Gt(0)]
Reference = Literal["start", "step"]
"""The policy at the start of the run, or of the step (iterative forms)."""


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
    pulls = {pair: beta / (1 + np.exp(beta * margin)) for pair, margin in margins.items()}
    return _from_pairs(rows, pulls)


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
    margins = _margins(rows, reference)
    pulls = {pair: 2 * (1 / (2 * beta) - margin) for pair, margin in margins.items()}
    return _from_pairs(rows, pulls)


def sppo(rows: Sequence[Row], kl: Mapping[str, float], *, eta: Positive = 1.0) -> list[np.ndarray]:
    """SPPO: the mean over rows of (log(pi / pi_t) - eta * (P - 1/2))^2, arXiv 2405.00675 eq. 4.4.

    P, the row's reward, is the probability that it wins; pi_t is the policy at the start of the
    step.
    """
    scale = _tokens(rows) / max(1, len(rows))
    advantages: list[np.ndarray] = []
    for row in rows:
        distance = eta * (row.reward - 0.5) - log_ratio(row, "step")
        advantages.append(np.where(row.mask_T, 2 * scale * distance, 0.0))
    return advantages


def log_ratio(row: Row, reference: Reference) -> float:
    """log(pi / pi_ref) of a whole reply in nats, pi the policy just before this update."""
    now_T = row.logprobs_T if row.now_T is None else row.now_T
    then_T = row.ref_logprobs_T if reference == "start" else row.logprobs_T
    if then_T is None:
        raise ValueError(
            f"row {row.turn} carries no reference log-probs: name its role {row.role!r} in"
            " Method(reference=...)"
        )
    difference_T = now_T.astype(np.float64) - then_T
    return float(difference_T[row.mask_T].sum())


def _margins(rows: Sequence[Row], reference: Reference) -> dict[tuple[int, int], float]:
    """(place of the best row, place of the worst) of each group -> difference of log ratios."""
    margins: dict[tuple[int, int], float] = {}
    for best, worst in pairs(rows):
        ratio = log_ratio(rows[best], reference)
        margins[best, worst] = ratio - log_ratio(rows[worst], reference)
    return margins


def pairs(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Of each group the places of its best and its worst row, where they are not paid the same."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.group is not None:
            groups.setdefault(row.group, []).append(place)
    found: list[tuple[int, int]] = []
    for places in groups.values():
        best = max(places, key=lambda place: rows[place].reward)
        worst = min(places, key=lambda place: rows[place].reward)
        if rows[best].reward > rows[worst].reward:
            found.append((best, worst))
    return found


def _from_pairs(rows: Sequence[Row], pulls: Mapping[tuple[int, int], float]) -> list[np.ndarray]:
    """Advantages (T,) that pull each pair apart, scaled to the mean over pairs."""
    advantages = [np.zeros(len(row.token_ids_T)) for row in rows]
    scale = _tokens(rows) / max(1, len(pulls))
    for (best, worst), pull in pulls.items():
        advantages[best] += np.where(rows[best].mask_T, scale * pull, 0.0)
        advantages[worst] -= np.where(rows[worst].mask_T, scale * pull, 0.0)
    return advantages


def _tokens(rows: Sequence[Row]) -> int:
    """Generated tokens: what the learner divides by."""
    return sum(int(row.mask_T.sum()) for row in rows)
