"""Losses: per-token terms from log-probs; tensor methods only, so that this file needs no torch.

`batch` has the fields of `Batch`. The learner masks the terms, and divides their sum by the
policy's token count over the whole optimizer step. Leaves out: reduction, KL (it is part of the
advantages), pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt


@dataclass(frozen=True)
class Batch:
    """Tensors of shape (B, T) that a loss may use besides the current log-probs."""

    advantages_BT: Any
    old_logprobs_BT: Any
    """Under the policy at the start of the step, by the learner."""
    mask_BT: Any


Clip = Annotated[float, Gt(0)]


def clipped(
    logprobs_BT: Any, batch: Batch, *, clip: Clip = 0.2, clip_high: Clip | None = None
) -> Any:
    """PPO's clipped objective as a loss, per token: -min(rho A, clamp(rho, 1 - c, 1 + c') A).

    Equation 7 of arXiv 1707.06347, equation 11 of CoMAS. c' is `clip_high`, or c where that is
    None; a wider one is DAPO's "clip-higher" (arXiv 2503.14476 eq. 10), whose mean over tokens is
    what the learner takes anyway.
    """
    ratio_BT = (logprobs_BT - batch.old_logprobs_BT).exp()
    bounded_BT = _bounded(ratio_BT, clip, clip_high)
    return _worse(ratio_BT, bounded_BT, batch)


def _bounded(ratio_BT: Any, clip: float, clip_high: float | None) -> Any:
    """Ratios within 1 - c and 1 + c'."""
    upwards = clip if clip_high is None else clip_high
    return ratio_BT.clamp(1 - clip, 1 + upwards)


def _worse(ratio_BT: Any, bounded_BT: Any, batch: Batch) -> Any:
    """The worse of what ratios and bounded ones gain, as a loss."""
    gain_BT = ratio_BT * batch.advantages_BT
    bounded_gain_BT = bounded_BT * batch.advantages_BT
    return -gain_BT.minimum(bounded_gain_BT)


def dual_clipped(
    logprobs_BT: Any,
    batch: Batch,
    *,
    clip: Clip = 0.2,
    clip_high: Clip | None = None,
    dual: Annotated[float, Gt(1)] = 3.0,
) -> Any:
    """Dual-clip PPO as a loss: where A < 0 it is at most `dual` times -A.

    Equation 5 of arXiv 1912.09729: max(min(rho A, clamp(rho) A), dual A) for negative advantages,
    so that a reply that has become likely since cannot dominate a step.
    """
    terms_BT = clipped(logprobs_BT, batch, clip=clip, clip_high=clip_high)
    most_BT = -dual * batch.advantages_BT
    bounded_BT = terms_BT.minimum(most_BT)
    return bounded_BT.where(batch.advantages_BT < 0, terms_BT)


def gspo(
    logprobs_BT: Any, batch: Batch, *, clip: Clip = 3e-4, clip_high: Clip | None = 4e-4
) -> Any:
    """GSPO's clipped objective as a loss, with one ratio per reply: its geometric mean over tokens.

    The token form of arXiv 2507.18071 (eq. 14), which has the gradient of eq. 5 where a reply has
    one advantage. A reply weighs as much as it has tokens, as everywhere here; the paper weighs all
    replies the same.
    """
    difference_BT = (logprobs_BT - batch.old_logprobs_BT).where(batch.mask_BT, 0.0)
    tokens_B1 = batch.mask_BT.sum(1, keepdim=True).clamp(min=1)
    sequence_B1 = (difference_BT.sum(1, keepdim=True) / tokens_B1).detach()
    ratio_BT = (sequence_B1 + logprobs_BT - logprobs_BT.detach()).exp()
    bounded_BT = _bounded(ratio_BT, clip, clip_high)
    return _worse(ratio_BT, bounded_BT, batch)


def cispo(
    logprobs_BT: Any, batch: Batch, *, clip: Clip = 1.0, clip_high: Clip | None = 0.28
) -> Any:
    """CISPO as a loss: -sg(clamp(rho, 1 - c, 1 + c')) A log pi, arXiv 2506.13585 eq. 4.

    The weight is clipped, not the gradient: no token is left out of a step. `clip = 1` is no lower
    bound, as in the paper.
    """
    ratio_BT = (logprobs_BT - batch.old_logprobs_BT).exp()
    weight_BT = _bounded(ratio_BT, clip, clip_high).detach()
    return -weight_BT * batch.advantages_BT * logprobs_BT


def plain(logprobs_BT: Any, batch: Batch) -> Any:
    """The policy gradient itself: -A log pi."""
    return -batch.advantages_BT * logprobs_BT
