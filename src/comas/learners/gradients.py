"""Gradients of one update in passes that policies share, and the update itself.

Leaves out: whose log-probs are the old ones (`learners.old_policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from comas.learners.learning_batch import LearningBatch, Update
from comas.learners.old_policy import gap_to_engine
from comas.learners.passes import Owned, pad, passes
from comas.objective.losses import Batch
from comas.types import Row

Prepare = Callable[[Sequence[Owned], torch.Tensor], None]
"""Gets the rows of a pass and their log-probs, (B, T)."""


def gradients(
    batch: LearningBatch, owned: Sequence[Owned], prepare: Prepare | None = None
) -> dict[str, float]:
    """Add the gradients of the loss of these rows; loss per policy. `prepare` is called in each
    pass, before the terms of its rows are made.

    The gap of a policy whose old policy is what the engine said is measured along the way, before
    its weights change.
    """
    weights = batch.weights
    policies = list(dict.fromkeys(policy for policy, _ in owned))
    tokens = dict.fromkeys(policies, 0)
    for policy, row in owned:
        tokens[policy] += int(row.mask_T.sum())
    losses = dict.fromkeys(policies, 0.0)
    unknown: dict[str, list[tuple[Row, np.ndarray]]] = {
        policy: [] for policy in policies if batch.sampled and policy not in batch.gaps
    }
    for n, part in enumerate(passes(owned, weights.recipe.tokens_per_pass, weights.shares)):
        chosen = [owned[i] for i in part]
        logprobs_BT = weights.forward(chosen) if batch.graphs is None else batch.graphs[n]
        if prepare is not None:
            prepare(chosen, logprobs_BT)
        terms_BT = _terms(batch, chosen, logprobs_BT)
        loss_B = terms_BT.sum(1) / terms_BT.new_tensor([tokens[policy] for policy, _ in chosen])
        weights.backward(chosen, loss_B.sum())
        weights.meter.learnt(len(chosen))
        if unknown:
            made = logprobs_BT.detach().cpu().numpy()
            for (policy, row), own_T in zip(chosen, made, strict=True):
                if policy in unknown:
                    unknown[policy].append((row, own_T[: len(row.token_ids_T)]))
        for (policy, _), loss in zip(chosen, loss_B.detach().cpu().tolist(), strict=True):
            losses[policy] += loss
    for policy, own in unknown.items():
        batch.gaps[policy], _ = gap_to_engine(policy, own, weights.recipe)
    return losses


def _terms(
    batch: LearningBatch, chosen: Sequence[Owned], logprobs_BT: torch.Tensor
) -> torch.Tensor:
    """The method's terms per token, (B, T), 0 outside the mask, corrected for the gap."""
    rows = [row for _, row in chosen]
    mask_BT = pad([row.mask_T for row in rows], logprobs_BT).bool()
    advantages_BT = pad([row.advantages_T for row in rows], logprobs_BT)
    old_BT = pad([row.logprobs_T for row in rows], logprobs_BT)
    terms_BT = batch.method.loss(logprobs_BT, Batch(advantages_BT, old_BT, mask_BT))
    terms_BT = torch.where(mask_BT, terms_BT, 0.0)
    if not any(row.turn in batch.importance for row in rows):
        return terms_BT
    importance = [batch.importance.get(row.turn, np.ones(len(row.mask_T))) for row in rows]
    return terms_BT * pad(importance, logprobs_BT)


def apply(batch: LearningBatch, losses: Mapping[str, float]) -> None:
    """Clip and apply the gradients of each policy that has a loss."""
    batch.applied = True
    for policy, loss in losses.items():
        grad_norm = batch.weights.finish(policy, loss)
        update = None if grad_norm is None else Update(loss, grad_norm)
        batch.updates[policy].append(update)
