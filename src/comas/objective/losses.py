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
    """What a loss may use besides the current log-probs; tensors of shape (B, T)."""

    advantages_BT: Any
    old_logprobs_BT: Any
    """Under the policy at the start of the step: recomputed by the learner, or as sampled."""
    mask_BT: Any


def clipped(logprobs_BT: Any, batch: Batch, *, clip: Annotated[float, Gt(0)] = 0.2) -> Any:
    """PPO's clipped objective as a loss, per token: -min(rho A, clamp(rho, 1 - c, 1 + c) A).

    Equation 7 of arXiv 1707.06347, equation 11 of CoMAS.
    """
    ratio_BT = (logprobs_BT - batch.old_logprobs_BT).exp()
    bounded_BT = ratio_BT.clamp(1 - clip, 1 + clip)
    gain_BT = ratio_BT * batch.advantages_BT
    bounded_gain_BT = bounded_BT * batch.advantages_BT
    return -gain_BT.minimum(bounded_gain_BT)


def plain(logprobs_BT: Any, batch: Batch) -> Any:
    """The policy gradient itself: -A log pi."""
    return -batch.advantages_BT * logprobs_BT
