"""Credit assignment: one policy's paid rows of a step -> per-token advantages. numpy only.

Each function takes the rows and `kl` (role -> beta) and returns, per row, an array of T advantages
that is 0 outside the row's mask. Leaves out: baselines across agents (the settlement's) and the
division by tokens (the learner's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from comas.types import Count, Row, UserMistake

EPS = 1e-8


def kl_to_go(row: Row, beta: float) -> np.ndarray:
    """beta * sum_{k >= t} log(pi(o_k) / pi_ref(o_k)) on generated tokens, shape (T,), in nats
    (CoMAS eq. 9).
    """
    if beta == 0:
        return np.zeros(len(row.token_ids_T))
    if row.ref_logprobs_T is None:
        raise ValueError(
            f"role {row.role!r} has beta {beta}, but row {row.turn} carries no reference log-probs"
        )
    ratio_T = np.where(row.mask_T, row.logprobs_T.astype(np.float64) - row.ref_logprobs_T, 0.0)
    return np.where(row.mask_T, beta * ratio_T[::-1].cumsum()[::-1], 0.0)


def reinforce_pp(
    rows: Sequence[Row],
    kl: Mapping[str, float],
    *,
    normalise: Literal["role", "all"] = "role",
    min_rows: Count = 2,
) -> list[np.ndarray]:
    """REINFORCE++ without a critic.

    `normalise = "all"` is the paper's form (CoMAS eq. 9 to 11): A_t = r - beta * KL-to-go, then
    minus mean and divided by standard deviation over all generated tokens of the policy's batch,
    whatever their role. `normalise = "role"` is the clean form: rewards alone are normalised over
    the rows of each role, and the KL is subtracted afterwards, unscaled. A role whose rewards are
    all equal, or that has fewer than `min_rows` rows, gets no advantage from its rewards: dividing
    by a spread of zero would turn rounding noise into unit advantages.
    """
    if normalise == "all":
        return _normalise_tokens(
            rows,
            [np.where(r.mask_T, r.reward, 0.0) - kl_to_go(r, kl.get(r.role, 0.0)) for r in rows],
        )
    if normalise != "role":
        raise UserMistake(f"credit.normalise is {normalise!r}: 'role' or 'all'")
    scaled = _standardise([r.reward for r in rows], [r.role for r in rows], min_rows)
    return _spread(rows, scaled, kl)


def grpo(rows: Sequence[Row], kl: Mapping[str, float], *, scale: bool = True) -> list[np.ndarray]:
    """GRPO (arXiv 2402.03300 eq. 3): rewards minus the mean of their group, divided by its standard
    deviation.

    `scale = False` leaves the division out (Dr. GRPO, arXiv 2503.20783). A row without a group, or
    whose group is all equal, gets no advantage; the KL is subtracted afterwards, unscaled.
    """
    groups = [r.group if r.group is not None else f"alone {i}" for i, r in enumerate(rows)]
    return _spread(rows, _standardise([r.reward for r in rows], groups, 2, scale), kl)


def rloo(rows: Sequence[Row], kl: Mapping[str, float]) -> list[np.ndarray]:
    """Reward minus the mean of the *other* rows of its group (arXiv 2402.14740); KL subtracted
    afterwards.
    """
    values = np.array([r.reward for r in rows], dtype=np.float64)
    left = np.zeros(len(rows))
    for group in {r.group for r in rows if r.group is not None}:
        mine = np.array([r.group == group for r in rows])
        # equal numbers minus their mean may leave a rounding error
        if (n := int(mine.sum())) > 1 and np.ptp(values[mine]) > 0:
            left[mine] = (values[mine] - values[mine].mean()) * n / (n - 1)
    return _spread(rows, left, kl)


def _standardise(
    rewards: Sequence[float], keys: Sequence[str], min_rows: int, scale: bool = True
) -> np.ndarray:
    values = np.array(rewards, dtype=np.float64)
    scaled = np.zeros(len(rewards))
    labels = np.array(keys)
    for key in set(keys):
        mine = labels == key
        part = values[mine]
        if len(part) >= max(2, min_rows) and part.max() > part.min():
            scaled[mine] = (part - part.mean()) / ((part.std() + EPS) if scale else 1.0)
    return scaled


def _spread(rows: Sequence[Row], scaled: np.ndarray, kl: Mapping[str, float]) -> list[np.ndarray]:
    return [
        np.where(r.mask_T, a, 0.0) - kl_to_go(r, kl.get(r.role, 0.0))
        for r, a in zip(rows, scaled, strict=True)
    ]


def _normalise_tokens(rows: Sequence[Row], raw: list[np.ndarray]) -> list[np.ndarray]:
    tokens = np.concatenate([a[r.mask_T] for r, a in zip(rows, raw, strict=True)])
    if tokens.max() == tokens.min():  # the mean of equal numbers may be off by a rounding error
        return [np.zeros(len(a)) for a in raw]
    mean = tokens.mean()
    std = tokens.std()
    return [
        np.where(r.mask_T, (a - mean) / (std + EPS), 0.0) for r, a in zip(rows, raw, strict=True)
    ]
