"""How a policy is trained: rates and limits of its optimizer steps.

Leaves out: what a step is (`learners.step`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OldLogprobs = Literal["recomputed", "first_pass"]


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained."""

    lr: float
    rates: Mapping[str, float] = field(default_factory=dict[str, float], kw_only=True)
    """Learning rates of policies that have another."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_norm: float = 1.0
    tokens_per_pass: int = 8192
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else."""
    old_logprobs: OldLogprobs = field(default="recomputed", kw_only=True)
    """The old policy: a forward pass of the learner, or the forward pass that learns (the same
    policy where a step has one update).
    """
    share_prompts: bool = field(default=False, kw_only=True)
    """Read rows that begin with the same prompt behind one copy of it, where the family can."""
    halved: bool = field(default=False, kw_only=True)
    """Whether `tokens_per_pass` is half of what it was: there was no memory left."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: slower, smaller."""
    gap_tolerance: float = 0.02
    """Mean absolute gap in nats between engine and learner above which rows get an importance
    weight.
    """
    gap_clip: float = 2.0
    """Where that weight is truncated."""
    gap_limit: float = 0.5
    """Mean gap at which the run stops: the engine does not sample from the weights that are
    trained.
    """

    def adamw(self) -> dict[str, Any]:
        """Keywords of AdamW that policies share."""
        return {"betas": self.betas, "weight_decay": self.weight_decay}

    def rate(self, policy: str) -> float:
        """The learning rate of a policy."""
        return self.rates.get(policy, self.lr)
