"""The rows of a step on their way through its phases, and what a step needs of those who hold the
weights.

Leaves out: the phases (`learners.step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from comas.learners.passes import Owned
from comas.learners.recipe import Recipe
from comas.types import Meter, Method, Row


class Weights(Protocol):
    """What a step needs of those who hold the weights of one or more policies."""

    recipe: Recipe
    meter: Meter
    """Counts rows as they are read and learnt from."""
    shares: bool
    """Whether rows that begin with the same prompt are read behind one copy of it."""
    corrected: set[str]
    """Policies whose gap to the engine was above the tolerance in their last step."""

    def forward(self, owned: Sequence[Owned], reference: bool = False) -> torch.Tensor:
        """Log-probs of the rows' generated tokens, (B, T), 0 outside the mask; with gradients if
        they are switched on.
        """
        ...

    def backward(self, owned: Sequence[Owned], loss: torch.Tensor) -> None:
        """Add the gradients of a loss that was made from `forward(owned)`."""
        ...

    def rate(self, policy: str, scale: float) -> None:
        """Set a policy's learning rate to `scale` times its recipe's."""
        ...

    def finish(self, policy: str, loss: float) -> float | None:
        """Clip and apply a policy's gradients and forget them; their norm. None, and no change at
        all, where it or the loss is not finite.
        """
        ...


@dataclass(frozen=True)
class Update:
    """An optimizer step that was taken."""

    loss: float
    grad_norm: float


@dataclass
class LearningBatch:
    """The rows of a step on their way through its phases."""

    weights: Weights
    rows: Mapping[str, Sequence[Row]]
    method: Method
    gaps: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Policy -> how far the engine's log-probs were from the learner's, once that is known."""
    importance: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Turn -> importance weights (T,) that correct a gap above the tolerance."""
    graphs: list[torch.Tensor] | None = None
    """Log-probs of the passes of a step that takes only one update, with gradients."""
    applied: bool = False
    """Whether an update of the step has begun."""
    updates: dict[str, list[Update | None]] = field(default_factory=dict[str, Any])
    """Policy -> its updates; None for one that was skipped."""

    def __post_init__(self) -> None:
        self.policies = sorted(self.rows)
        self.owned = [(policy, row) for policy in self.policies for row in self.rows[policy]]
        self.updates = {policy: [] for policy in self.policies}

    @cached_property
    def places(self) -> dict[str, dict[str, int]]:
        """Policy -> turn -> place among its rows."""
        return {
            policy: {row.turn: place for place, row in enumerate(rows)}
            for policy, rows in self.rows.items()
        }

    @property
    def sampled(self) -> bool:
        """Whether the old policy is what the engine said."""
        return self.weights.recipe.old_logprobs == "sampled"

    @property
    def updates_once(self) -> bool:
        """Whether the step has only one update, whose policy is the old one."""
        return self.method.epochs == self.method.minibatches == 1

    def stats(self, policy: str) -> dict[str, float]:
        """Statistics of a policy's step; what is not finite is left out."""
        taken = [update for update in self.updates[policy] if update is not None]
        stats: dict[str, float] = {
            **self.gaps[policy],
            "rows": len(self.rows[policy]),
            "updates": len(taken),
            "skipped": len(self.updates[policy]) - len(taken),
        }
        if taken:
            stats["loss"] = float(np.mean([update.loss for update in taken]))
            stats["grad_norm"] = float(np.mean([update.grad_norm for update in taken]))
        finite = {key: value for key, value in stats.items() if np.isfinite(value)}
        return {**finite, "lr": self.weights.recipe.rate(policy) * self.method.lr_scale}
