"""Credit assignment: one policy's rewarded rows of a step -> per-token advantages. numpy only.

Each function takes the rows and `kl` (role -> beta) and returns, per row, an array of T advantages
that is 0 outside the row's mask. Leaves out: baselines across agents (the settlement's) and the
division by tokens (the learner's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from comas.objective.spread import centred, is_flat, standardised
from comas.types import Count, Row, UserMistake

Weight = Annotated[float, Ge(0)]


def kl_to_go(row: Row, beta: float) -> np.ndarray:
    """Sum the price of leaving the reference from each token to the end, shape (T,), in nats.

    beta * sum_{k >= t} log(pi(o_k) / pi_ref(o_k)) on generated tokens, 0 elsewhere (CoMAS eq. 9);
    pi is who sampled the row, so that its mean is a KL.
    """
    if beta == 0:
        return np.zeros(len(row.token_ids_T))
    if row.ref_logprobs_T is None:
        raise ValueError(
            f"role {row.role!r} has beta {beta}, but row {row.turn} carries no reference log-probs"
        )
    difference_T = row.logprobs_T.astype(np.float64) - row.ref_logprobs_T
    from_the_end_T = on_generated(row, difference_T)[::-1]
    to_go_T = from_the_end_T.cumsum()[::-1]
    return on_generated(row, beta * to_go_T)


def on_generated(row: Row, value: float | np.ndarray) -> np.ndarray:
    """A number, or one per token (T,), on the generated tokens of a row; 0 elsewhere."""
    return np.where(row.mask_T, value, 0.0)


def reinforce_pp(
    rows: Sequence[Row],
    kl: Mapping[str, float],
    *,
    normalise: Literal["role", "all", "none"] = "role",
    min_rows: Count = 2,
    entropy: Weight = 0.0,
) -> list[np.ndarray]:
    """REINFORCE++ without a critic.

    `normalise = "all"` is the paper's form (CoMAS eq. 9 to 11): A_t = r - beta * KL-to-go, then
    minus mean and divided by standard deviation over all generated tokens of the policy's batch,
    whatever their role. `normalise = "role"` is the clean form: rewards alone are normalised over
    the rows of each role, and the KL is subtracted afterwards, unscaled. A role whose rewards are
    equal but for rounding (`spread.is_flat`), or that has fewer than `min_rows` rows, gets no
    advantage from its rewards. Likewise for "all" where the whole batch has one reward: the KL is
    subtracted unscaled. With `normalise = "none"` rewards are taken as they are. `entropy` weighs a
    bonus for entropy (`surprise`).
    """
    values_R = _role_values(rows, normalise=normalise, min_rows=min_rows)
    if values_R is not None:
        return _per_row(rows, values_R, kl, entropy)
    if normalise != "all":
        raise UserMistake(f"credit.normalise is {normalise!r}: 'role', 'all' or 'none'")
    rewards_R = _rewards(rows)
    if is_flat(rewards_R):  # what is left to normalise is the KL, or its rounding
        return _per_row(rows, np.zeros_like(rewards_R), kl, entropy)
    return _normalise_tokens(rows, _per_row(rows, rewards_R, kl), entropy)


def _role_values(
    rows: Sequence[Row], *, normalise: str = "role", min_rows: int = 2
) -> np.ndarray | None:
    """Rewards normalised over the rows of each role, or as they are, (R,); None where tokens are
    normalised.
    """
    if normalise == "none":
        return _rewards(rows)
    if normalise == "role":
        return _standardise(rows, [row.role for row in rows], min_rows)
    return None


def grpo(
    rows: Sequence[Row], kl: Mapping[str, float], *, scale: bool = True, entropy: Weight = 0.0
) -> list[np.ndarray]:
    """GRPO: rewards minus the mean of their group, over its standard deviation.

    Equation 3 of arXiv 2402.03300. `scale = False` leaves the division out (Dr. GRPO, arXiv
    2503.20783). A row without a group, or whose group is all equal, gets no advantage; the KL is
    subtracted afterwards, unscaled. `entropy` weighs a bonus for entropy (`surprise`).
    """
    return _per_row(rows, _group_values(rows, scale=scale), kl, entropy)


def _group_values(rows: Sequence[Row], *, scale: bool = True) -> np.ndarray:
    """Rewards normalised within their groups, (R,)."""
    groups = [
        f"alone {index}" if row.group is None else row.group for index, row in enumerate(rows)
    ]
    return _standardise(rows, groups, 2, scale)


def rloo(rows: Sequence[Row], kl: Mapping[str, float]) -> list[np.ndarray]:
    """RLOO: the reward minus the mean of the *other* rows of its group; KL subtracted afterwards.

    arXiv 2402.14740. A row without a group, or whose group is all equal, gets no advantage.
    """
    return _per_row(rows, _left_out_values(rows), kl)


def _left_out_values(rows: Sequence[Row]) -> np.ndarray:
    """Rewards minus the mean of the others of their group, (R,)."""
    rewards_R = _rewards(rows)
    advantages_R = np.zeros(len(rows))
    for group in {row.group for row in rows if row.group is not None}:
        members_R = np.array([row.group == group for row in rows])
        n = int(members_R.sum())
        if n > 1:
            advantages_R[members_R] = centred(rewards_R[members_R]) * n / (n - 1)
    return advantages_R


def given(rows: Sequence[Row], kl: Mapping[str, float]) -> list[np.ndarray]:
    """Rewards as they are, KL subtracted: for settlements that bring a baseline of their own."""
    return _per_row(rows, _rewards(rows), kl)


def filtered(
    rows: Sequence[Row], kl: Mapping[str, float], *, above: float = 0.0
) -> list[np.ndarray]:
    """1 for rewards above a bound and 0 for others: with the plain loss, supervised fine-tuning on
    what was kept (rejection sampling, STaR: arXiv 2203.14465). KL subtracted afterwards.
    """
    return _per_row(rows, _kept_values(rows, above=above), kl)


def _kept_values(rows: Sequence[Row], *, above: float = 0.0) -> np.ndarray:
    """1 for rewards above a bound and 0 for others, (R,)."""
    return (_rewards(rows) > above).astype(np.float64)


# --- credit of some rows while the log-probs of others are not known


def in_parts(
    advantage: Callable[..., Any], rows: Sequence[Row], kl: Mapping[str, float]
) -> Callable[[Sequence[int]], list[np.ndarray]] | None:
    """A function that gives the advantages of some of the rows, chosen by their places, exactly as
    `advantage` gives them; None where those depend on log-probs of other rows, or may.

    True of the functions of this file without `normalise="all"`: a number per row follows from
    rewards, and what is added per token from the row's own log-probs. `advantage` may be bound to
    options by `partial`.
    """
    options: dict[str, Any] = {}
    while isinstance(advantage, partial):
        options = {**advantage.keywords, **options}
        advantage = advantage.func
    entropy = options.pop("entropy", 0.0)
    values_of = VALUES.get(advantage)
    values_R = values_of(rows, **options) if values_of is not None else None
    if values_R is None:
        return None

    def advantages_of(places: Sequence[int]) -> list[np.ndarray]:
        chosen = [rows[index] for index in places]
        return _per_row(chosen, values_R[list(places)], kl, entropy)

    return advantages_of


def surprise(row: Row, weight: float) -> np.ndarray:
    """-weight * log pi(o_t) on generated tokens, shape (T,), 0 elsewhere.

    As an advantage, its expectation is `weight` times the gradient of the entropy of each token's
    distribution, where it was drawn. There is no baseline: the mean of the same reply would depend
    on the token itself, and on what it leads to.
    """
    return on_generated(row, -weight * row.logprobs_T.astype(np.float64))


def _rewards(rows: Sequence[Row]) -> np.ndarray:
    """The rewards of R rows, float64, shape (R,)."""
    return np.array([row.reward for row in rows], dtype=np.float64)


def _standardise(
    rows: Sequence[Row], keys: Sequence[str], min_rows: int, scale: bool = True
) -> np.ndarray:
    """Rewards normalised among the rows of one key, shape (R,); 0 for too few or equal ones."""
    rewards_R = _rewards(rows)
    scaled_R = np.zeros(len(rows))
    keys_R = np.array(keys)
    for key in set(keys):
        members_R = keys_R == key
        rewards = rewards_R[members_R]
        if len(rewards) >= max(2, min_rows):
            scaled_R[members_R] = standardised(rewards, scale)
    return scaled_R


VALUES: Mapping[Callable[..., Any], Callable[..., np.ndarray | None]] = {
    reinforce_pp: _role_values,
    grpo: _group_values,
    rloo: _left_out_values,
    given: _rewards,
    filtered: _kept_values,
}
"""Credit -> what makes its number per row, (R,), of rewards alone."""


def _per_row(
    rows: Sequence[Row],
    values: Sequence[float] | np.ndarray,
    kl: Mapping[str, float],
    entropy: float = 0.0,
) -> list[np.ndarray]:
    """The value of each row on its generated tokens, minus its KL-to-go, with its bonus for
    entropy.
    """
    advantages: list[np.ndarray] = []
    for row, value in zip(rows, values, strict=True):
        advantages_T = on_generated(row, value) - kl_to_go(row, kl.get(row.role, 0.0))
        advantages.append(advantages_T + surprise(row, entropy) if entropy else advantages_T)
    return advantages


def _normalise_tokens(
    rows: Sequence[Row], raw: Sequence[np.ndarray], entropy: float
) -> list[np.ndarray]:
    """Normalise advantages to mean 0 and standard deviation 1 over all generated tokens, and add to
    each row its bonus for entropy.
    """
    generated = [raw_T[row.mask_T] for row, raw_T in zip(rows, raw, strict=True)]
    ends = np.cumsum([len(of_row) for of_row in generated])
    advantages: list[np.ndarray] = []
    parts = np.split(standardised(np.concatenate(generated)), ends[:-1])
    for row, of_row in zip(rows, parts, strict=True):
        advantages_T = np.zeros(len(row.mask_T))
        advantages_T[row.mask_T] = of_row
        advantages.append(advantages_T + surprise(row, entropy) if entropy else advantages_T)
    return advantages
