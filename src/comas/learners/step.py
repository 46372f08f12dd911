"""One learning step, the same for whole models and for adapters: recompute log-probs, credit
turns, collect gradients, apply them.

The old policy is the learner's own recomputation, fixed before the first minibatch; the engine's
log-probs are kept to measure the gap, which an importance weight corrects where it exceeds a
tolerance. Terms are divided by each policy's own token count over the whole optimizer step, so
that policies may share passes. Leaves out: who holds weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from comas.learners.gap import gap_to_engine
from comas.learners.packs import pack_length, packs_of
from comas.learners.recipe import Recipe as Recipe
from comas.objective.losses import Batch
from comas.types import Meter, Method, Row

SPREAD = 1.25
FULL = 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too
small to be worth its calls.
"""

Owned = tuple[str, Row]
"""A row and the policy that said it."""


class Weights(Protocol):
    """What a step needs of those who hold the weights of one or more policies."""

    recipe: Recipe
    meter: Meter
    """Counts rows as they are read and learnt from."""
    shares: bool
    """Whether rows that begin with the same prompt are read behind one copy of it."""

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


def learn(
    weights: Weights, rows: Mapping[str, Sequence[Row]], method: Method
) -> dict[str, dict[str, float]]:
    """One learning step for these policies together; statistics per policy."""
    batch = LearningBatch(weights, rows, method)
    for policy in batch.policies:
        weights.rate(policy, method.lr_scale)
    recompute(batch)
    measure_gaps(batch)
    if not method.fresh:
        credit(batch, batch.owned)
    for _ in range(method.epochs):
        for k in range(method.minibatches):
            part = minibatch(batch, k)
            if method.fresh:
                refresh(batch, part)
                credit(batch, part)
            losses = gradients(batch, part)
            apply(batch, losses)
    return {policy: batch.stats(policy) for policy in batch.policies}


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
    updates: dict[str, list[Update | None]] = field(default_factory=dict[str, Any])
    """Policy -> its updates; None for one that was skipped."""

    def __post_init__(self) -> None:
        self.policies = sorted(self.rows)
        self.owned = [(policy, row) for policy in self.policies for row in self.rows[policy]]
        self.updates = {policy: [] for policy in self.policies}

    @property
    def sampled(self) -> bool:
        """Whether the old policy is what the engine said."""
        return self.weights.recipe.old_logprobs == "sampled"

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


# --- recompute: log-probs of the reference and of the old policy


def recompute(batch: LearningBatch) -> None:
    """Set `ref_logprobs_T` of rows whose role has a KL or a reference, and `logprobs_T` of all
    rows.
    """
    roles = {role for role, beta in batch.method.kl.items() if beta}
    roles.update(batch.method.reference)
    referred = [(policy, row) for policy, row in batch.owned if row.role in roles]
    if referred:
        references = logprobs(batch.weights, referred, reference=True)
        for (_, row), reference_T in zip(referred, references, strict=True):
            row.ref_logprobs_T = reference_T
    if batch.sampled:
        _take_sampled(batch)
        return
    if batch.method.epochs == batch.method.minibatches == 1:
        batch.graphs = _graphs(batch.weights, batch.owned)
    if batch.graphs is None:
        for (_, row), old_T in zip(batch.owned, logprobs(batch.weights, batch.owned), strict=True):
            row.logprobs_T = old_T


def logprobs(weights: Weights, owned: Sequence[Owned], reference: bool = False) -> list[np.ndarray]:
    """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside
    the mask.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(owned)
    with torch.no_grad():
        for part in passes(owned, weights.recipe.tokens_per_pass, weights.shares):
            chosen = [owned[i] for i in part]
            logprobs_BT = weights.forward(chosen, reference).cpu().numpy()
            for i, (_, row), logprobs_T in zip(part, chosen, logprobs_BT, strict=True):
                found[i] = logprobs_T[: len(row.token_ids_T)]
            weights.meter.read(len(chosen))
    return found


def _graphs(weights: Weights, owned: Sequence[Owned]) -> list[torch.Tensor] | None:
    """The forward passes of a step that takes only one update, kept for its backward; None where
    they would need too much room.
    """
    parts = passes(owned, weights.recipe.tokens_per_pass, weights.shares)
    lengths = [len(row.token_ids_T) for _, row in owned]
    padded = sum(len(part) * max(lengths[i] for i in part) for part in parts)
    if padded > weights.recipe.tokens_per_pass:
        return None
    graphs = [weights.forward([owned[i] for i in part]) for part in parts]
    for part, graph in zip(parts, graphs, strict=True):
        for i, logprobs_T in zip(part, graph.detach().cpu().numpy(), strict=True):
            owned[i][1].logprobs_T = logprobs_T[: lengths[i]]
    return graphs


def _take_sampled(batch: LearningBatch) -> None:
    """Set `logprobs_T` of all rows to what the engine said; of rows whose words were given, which
    no engine has sampled, to what the learner says.
    """
    for _, row in batch.owned:
        if row.sampled_logprobs_T is not None:
            row.logprobs_T = row.sampled_logprobs_T.copy()
    given = [(policy, row) for policy, row in batch.owned if row.sampled_logprobs_T is None]
    for (_, row), own_T in zip(given, logprobs(batch.weights, given), strict=True):
        row.logprobs_T = own_T


def measure_gaps(batch: LearningBatch) -> None:
    """Measure how far the engine is from the learner, where the old policy is the learner's own."""
    if batch.sampled:
        return
    for policy in batch.policies:
        own = [(row, row.logprobs_T) for row in batch.rows[policy]]
        batch.gaps[policy], importance = gap_to_engine(policy, own, batch.weights.recipe)
        batch.importance |= importance


# --- credit: minibatches and their advantages


def minibatch(batch: LearningBatch, k: int) -> list[Owned]:
    """The rows of the k-th update of an epoch; fresh credit never divides a group."""
    count = batch.method.minibatches
    part: list[Owned] = []
    for policy in batch.policies:
        rows = batch.rows[policy]
        chosen = _whole_groups(rows, k, count) if batch.method.fresh else rows[k::count]
        part += [(policy, row) for row in chosen]
    return part


def _whole_groups(rows: Sequence[Row], k: int, count: int) -> list[Row]:
    """The rows of every `count`-th group, from the k-th on; a row without a group is one."""
    keys = [row.turn if row.group is None else f"group {row.group}" for row in rows]
    chosen = set(list(dict.fromkeys(keys))[k::count])
    return [row for row, key in zip(rows, keys, strict=True) if key in chosen]


def refresh(batch: LearningBatch, part: Sequence[Owned]) -> None:
    """Set `now_T` of these rows to their log-probs at this moment, where those have changed."""
    unchanged = not batch.sampled and not any(batch.updates.values())
    if unchanged:
        return
    for (_, row), now_T in zip(part, logprobs(batch.weights, part), strict=True):
        row.now_T = now_T


def credit(batch: LearningBatch, part: Sequence[Owned]) -> None:
    """Set the advantages of these rows, policy by policy."""
    rows_of: dict[str, list[Row]] = {}
    for policy, row in part:
        rows_of.setdefault(policy, []).append(row)
    for rows in rows_of.values():
        advantages = batch.method.advantage(rows, batch.method.kl)
        for row, advantages_T in zip(rows, advantages, strict=True):
            row.advantages_T = advantages_T


# --- gradients: of one minibatch, in passes that policies share


def gradients(batch: LearningBatch, owned: Sequence[Owned]) -> dict[str, float]:
    """Add the gradients of the loss of these rows; loss per policy.

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
        policy: [] for policy in policies if policy not in batch.gaps
    }
    for n, part in enumerate(passes(owned, weights.recipe.tokens_per_pass, weights.shares)):
        chosen = [owned[i] for i in part]
        logprobs_BT = weights.forward(chosen) if batch.graphs is None else batch.graphs[n]
        terms_BT = _terms(batch, chosen, logprobs_BT)
        loss_B = terms_BT.sum(1) / terms_BT.new_tensor([tokens[policy] for policy, _ in chosen])
        weights.backward(chosen, loss_B.sum())
        weights.meter.learnt(len(chosen))
        if unknown:
            _note_logprobs(unknown, chosen, logprobs_BT)
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
    mask_BT = _pad([row.mask_T for row in rows], logprobs_BT).bool()
    advantages_BT = _pad([row.advantages_T for row in rows], logprobs_BT)
    old_BT = _pad([row.logprobs_T for row in rows], logprobs_BT)
    terms_BT = batch.method.loss(logprobs_BT, Batch(advantages_BT, old_BT, mask_BT))
    terms_BT = torch.where(mask_BT, terms_BT, 0.0)
    if not any(row.turn in batch.importance for row in rows):
        return terms_BT
    importance = [batch.importance.get(row.turn, np.ones(len(row.mask_T))) for row in rows]
    return terms_BT * _pad(importance, logprobs_BT)


def _note_logprobs(
    unknown: Mapping[str, list[tuple[Row, np.ndarray]]],
    chosen: Sequence[Owned],
    logprobs_BT: torch.Tensor,
) -> None:
    """Keep the log-probs (T,) of the rows of policies whose gap is not known yet."""
    for (policy, row), logprobs_T in zip(chosen, logprobs_BT.detach().cpu().numpy(), strict=True):
        if policy in unknown:
            unknown[policy].append((row, logprobs_T[: len(row.token_ids_T)]))


def passes(owned: Sequence[Owned], tokens_per_pass: int, shares: bool = False) -> list[list[int]]:
    """Row indices of forward passes below `tokens_per_pass`; similar lengths together, so that
    little is padding, and with `shares` rows of one prompt side by side.

    Inside a pass rows are sorted by policy, as `Population` wants them.
    """
    if shares:
        policies = [policy for policy, _ in owned]
        rows = [row for _, row in owned]
        units = packs_of(policies, rows, tokens_per_pass)
        lengths = [pack_length(rows, unit) for unit in units]
    else:
        units = [[i] for i in range(len(owned))]
        lengths = [len(row.token_ids_T) for _, row in owned]
    parts: list[list[int]] = []
    for unit in sorted(range(len(units)), key=lengths.__getitem__):
        if parts and _joins(parts[-1], unit, lengths, tokens_per_pass):
            parts[-1].append(unit)
        else:
            parts.append([unit])
    together = [[i for unit in part for i in units[unit]] for part in parts]
    return [sorted(part, key=lambda i: owned[i][0]) for part in together]


def packs_in(weights: Weights, owned: Sequence[Owned]) -> list[list[int]] | None:
    """The rows of a pass that share a prompt; None where none do."""
    if not weights.shares:
        return None
    policies = [policy for policy, _ in owned]
    packs = packs_of(policies, [row for _, row in owned], weights.recipe.tokens_per_pass)
    return packs if len(packs) < len(owned) else None


def _joins(part: Sequence[int], unit: int, lengths: Sequence[int], tokens_per_pass: int) -> bool:
    """Whether a unit, which is no shorter than those of the pass, goes with them."""
    if (len(part) + 1) * lengths[unit] > tokens_per_pass:
        return False
    shortest = lengths[part[0]]
    return lengths[unit] <= SPREAD * shortest or len(part) * shortest < FULL


def _pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    padded = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded).to(like.device)


# --- apply: one optimizer step of each policy


def apply(batch: LearningBatch, losses: Mapping[str, float]) -> None:
    """Clip and apply the gradients of each policy that has a loss."""
    for policy, loss in losses.items():
        grad_norm = batch.weights.finish(policy, loss)
        update = None if grad_norm is None else Update(loss, grad_norm)
        batch.updates[policy].append(update)
