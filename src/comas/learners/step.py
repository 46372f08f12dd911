"""One learning step, the same for whole models and for adapters: recompute log-probs, credit
turns, collect gradients, apply them.

The old policy is the learner's own recomputation, fixed before the first minibatch, or in a step
of one update made by the passes that learn; the engine's log-probs are kept to measure the gap,
which an importance weight corrects where it exceeds a tolerance. Terms are divided by each
policy's own token count over the whole optimizer step, so that policies may share passes. Leaves
out: who holds weights.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from comas.learners.logprobs import Halves, token_logprobs
from comas.learners.passes import Owned, Packs, Pass, pad, passes
from comas.learners.precision import recomputing
from comas.learners.recipe import Recipe
from comas.objective.credit import in_parts
from comas.objective.losses import Batch
from comas.seams import out_of_memory, uploaded
from comas.types import Meter, Method, Row

Prepare = Callable[[Sequence[Owned], torch.Tensor], None]
"""Gets the rows of a pass and their log-probs, (B, T)."""
InParts = Callable[[Sequence[int]], list[np.ndarray]]
"""Places among a policy's rows -> their advantages, (T,) each."""


class Holder(ABC):
    """Whoever holds the weights of one or more policies, as a step needs them."""

    shares: bool
    """Whether rows that begin alike are read behind one copy of their beginning."""

    def __init__(self, recipe: Recipe, method: Method, pad_id: int, meter: Meter | None) -> None:
        self.recipe = recipe
        self.method = method
        self.pad_id = pad_id
        self.meter = meter or Meter()
        """Counts rows as they are read and learnt from."""
        self.corrected: set[str] = set()
        """Policies whose gap to the engine was above the tolerance in their last step."""
        self.optimizers: dict[str, torch.optim.AdamW] = {}

    @property
    def moments(self) -> int:
        """Bytes that the optimizers' moments take once every policy has been updated: two numbers
        in float32 per parameter.
        """
        groups = [group for each in self.optimizers.values() for group in each.param_groups]
        return 8 * sum(part.numel() for group in groups for part in group["params"])

    @abstractmethod
    def forward(
        self, owned: Sequence[Owned], packs: Packs, reference: bool = False
    ) -> torch.Tensor:
        """Log-probs of the generated tokens of a pass's rows, (B, T), 0 outside the mask; with
        gradients if they are switched on.
        """

    @abstractmethod
    def backward(self, owned: Sequence[Owned], packs: Packs, loss: torch.Tensor) -> None:
        """Add the gradients of a loss that was made from `forward(owned, packs)`."""

    @abstractmethod
    def finish(self, policy: str, loss: float) -> float | None:
        """Clip and apply a policy's gradients and forget them; their norm. None, and no change at
        all, where it or the loss is not finite.
        """

    def rate(self, policy: str, scale: float) -> None:
        """Set a policy's learning rate to `scale` times its recipe's."""
        for group in self.optimizers[policy].param_groups:
            group["lr"] = self.recipe.rate(policy) * scale

    def parts(self, owned: Sequence[Owned]) -> list[Pass]:
        """The passes in which these rows are read."""
        return passes(owned, self.recipe.tokens_per_pass, self.shares)

    def read(
        self, model: Any, halves: Halves | None, owned: Sequence[Owned], packs: Packs
    ) -> torch.Tensor:
        """Log-probs that a model gives these rows, (B, T)."""
        again = self.recipe.checkpointing and torch.is_grad_enabled()
        rows = [row for _, row in owned]
        padded = len({len(row.token_ids_T) for row in rows}) > 1
        if packs is None and self.shares and padded and model.device.type != "cpu":
            # of a mask of padding transformers looks at the contents, which waits for a GPU
            packs = [[i] for i in range(len(rows))]
        with recomputing(model) if again else nullcontext():
            return token_logprobs(model, halves, rows, self.pad_id, packs=packs)


class Update(NamedTuple):
    """An optimizer step that was taken."""

    loss: float
    grad_norm: float


def learn(
    weights: Holder, rows: Mapping[str, Sequence[Row]], lr_scale: float = 1.0
) -> dict[str, dict[str, float]]:
    """One learning step for these policies together; statistics per policy.

    Where there is no memory left before anything was updated, passes are halved, once, and the step
    is taken anew.
    """
    step = Step(weights, rows, lr_scale)
    try:
        return step.take()
    except (MemoryError, RuntimeError) as error:
        recipe = weights.recipe
        if not out_of_memory(error) or recipe.halved or step.applied:
            raise
    # the error, which holds the tensors of the pass, is gone by now
    for policy in step.policies:
        weights.finish(policy, math.nan)  # forgets the gradients
    largest = min(recipe.tokens_per_pass, sum(len(row.token_ids_T) for _, row in step.owned))
    weights.recipe = replace(recipe, tokens_per_pass=max(64, largest // 2), halved=True)
    return Step(weights, rows, lr_scale).take()


class Step:
    """The rows of a step on their way through its phases."""

    def __init__(self, weights: Holder, rows: Mapping[str, Sequence[Row]], lr_scale: float) -> None:
        self.weights = weights
        self.rows = rows
        self.lr_scale = lr_scale
        self.method = method = weights.method
        self.policies = sorted(rows)
        self.owned = [(policy, row) for policy in self.policies for row in rows[policy]]
        self.updates_once = method.epochs == method.minibatches == 1
        """Whether there is only one update, whose policy is the old one."""
        self.gaps: dict[str, dict[str, float]] = {}
        """Policy -> how far the engine's log-probs were from the learner's, once that is known."""
        self.importance: dict[str, np.ndarray] = {}
        """Turn -> importance weights (T,) that correct a gap above the tolerance."""
        self.graphs: list[torch.Tensor] | None = None
        """Log-probs of the passes of a step that takes only one update, with gradients."""
        self.applied = False
        """Whether an update has begun."""
        self.updates: dict[str, list[Update | None]] = {policy: [] for policy in self.policies}
        """Policy -> its updates; None for one that was skipped."""

    def take(self) -> dict[str, dict[str, float]]:
        """Go through all phases; statistics per policy."""
        for policy in self.policies:
            self.weights.rate(policy, self.lr_scale)
        self._refer()
        if not self._at_once():
            self._recompute()
            self._measure_gaps()
            self._update()
        return {policy: self._stats(policy) for policy in self.policies}

    def _refer(self) -> None:
        """Set `ref_logprobs_T` of rows whose role has a KL or a reference."""
        roles = {role for role, beta in self.method.kl.items() if beta}
        roles.update(self.method.reference)
        referred = [(policy, row) for policy, row in self.owned if row.role in roles]
        references = logprobs(self.weights, referred, reference=True)
        for (_, row), reference_T in zip(referred, references, strict=True):
            row.ref_logprobs_T = reference_T

    # --- the old policy

    def _recompute(self) -> None:
        """Set `logprobs_T` of all rows to the learner's own; in a step that takes only one update,
        from forward passes that are kept for its backward where that needs not too much memory.
        """
        if self.updates_once and self._fits_in_a_pass():
            parts = self.weights.parts(self.owned)
            chosen = [[self.owned[i] for i in part.rows] for part in parts]
            self.graphs = [
                self.weights.forward(rows, part.packs)
                for rows, part in zip(chosen, parts, strict=True)
            ]
            for rows, graph in zip(chosen, self.graphs, strict=True):
                _take_own(rows, graph)
            return
        for (_, row), own_T in zip(self.owned, logprobs(self.weights, self.owned), strict=True):
            row.logprobs_T = own_T

    def _fits_in_a_pass(self) -> bool:
        """Whether all passes together have no more padded tokens than one may have."""
        padded = sum(part.padded for part in self.weights.parts(self.owned))
        return padded <= self.weights.recipe.tokens_per_pass

    def _measure_gaps(self) -> None:
        """Measure how far the engine is from the learner, and correct where that is too far."""
        for policy in self.policies:
            self.gaps[policy], importance = gap_to_engine(
                policy, self.rows[policy], self.weights.recipe
            )
            if self.method.fresh:  # whose losses are of given replies, whoever said them
                importance = {}
            self.importance |= importance
            self.weights.corrected.discard(policy)
            if importance:
                self.weights.corrected.add(policy)

    # --- credit, gradients, updates

    def _update(self) -> None:
        """Take all optimizer steps from rows whose old policy is known."""
        if not self.method.fresh:
            self._credit(self.owned)
        for epoch in range(self.method.epochs):
            for k in range(self.method.minibatches):
                part = self.minibatch(k, epoch)
                if self.method.fresh:
                    self._refresh(part)
                    self._credit(part)
                self._apply(self._gradients(part))

    def minibatch(self, k: int, epoch: int = 0) -> list[Owned]:
        """The rows of the k-th update of an epoch, which deals them anew; fresh credit never
        divides a group.
        """
        count = self.method.minibatches
        part: list[Owned] = []
        for policy in self.policies:
            rows = self.rows[policy]
            if self.method.fresh:
                chosen = _whole_groups(rows, k, count)
            else:  # every second row may be of one role
                chosen = _shuffled(rows, epoch)[k::count] if count > 1 else rows
            part += [(policy, row) for row in chosen]
        return part

    def _refresh(self, part: Sequence[Owned]) -> None:
        """Set `now_T` of these rows to their log-probs at this moment, where those have changed."""
        if any(self.updates.values()):
            for (_, row), now_T in zip(part, logprobs(self.weights, part), strict=True):
                row.now_T = now_T

    def _credit(self, part: Sequence[Owned]) -> None:
        """Set the advantages of these rows, policy by policy."""
        rows_of: dict[str, list[Row]] = {}
        for policy, row in part:
            rows_of.setdefault(policy, []).append(row)
        for rows in rows_of.values():
            advantages = self.method.credit(rows, self.method.kl)
            for row, advantages_T in zip(rows, advantages, strict=True):
                row.advantages_T = advantages_T

    def _gradients(
        self, owned: Sequence[Owned], prepare: Prepare | None = None
    ) -> dict[str, float]:
        """Add the gradients of the loss of these rows; loss per policy. `prepare` is called in each
        pass, before the terms of its rows are made.
        """
        weights = self.weights
        policies = list(dict.fromkeys(policy for policy, _ in owned))
        tokens = dict.fromkeys(policies, 0)
        for policy, row in owned:
            tokens[policy] += int(row.mask_T.sum())
        of_rows: list[str] = []
        """The policy of each loss."""
        losses_of_passes: list[torch.Tensor] = []
        for n, part in enumerate(weights.parts(owned)):
            chosen = [owned[i] for i in part.rows]
            if self.graphs is None:
                logprobs_BT = weights.forward(chosen, part.packs)
            else:
                logprobs_BT = self.graphs[n]
            if prepare is not None:
                prepare(chosen, logprobs_BT)
            terms_BT = self._terms(chosen, logprobs_BT)
            counts_B = torch.tensor([tokens[p] for p, _ in chosen], dtype=terms_BT.dtype)
            loss_B = terms_BT.sum(1) / uploaded(counts_B, terms_BT.device)
            weights.backward(chosen, part.packs, loss_B.sum())
            weights.meter.learnt(len(chosen))
            of_rows += [policy for policy, _ in chosen]
            losses_of_passes.append(loss_B.detach())
        losses = dict.fromkeys(policies, 0.0)
        # read at the end: each look would wait for a GPU
        for policy, loss in zip(of_rows, _read(losses_of_passes), strict=True):
            losses[policy] += loss
        return losses

    def _terms(self, chosen: Sequence[Owned], logprobs_BT: torch.Tensor) -> torch.Tensor:
        """The method's terms per token, (B, T), 0 outside the mask, corrected for the gap."""
        rows = [row for _, row in chosen]
        mask_BT = pad([row.mask_T for row in rows], logprobs_BT).bool()
        advantages_BT = pad([row.advantages_T for row in rows], logprobs_BT)
        old_BT = pad([row.logprobs_T for row in rows], logprobs_BT)
        terms_BT = self.method.loss(logprobs_BT, Batch(advantages_BT, old_BT, mask_BT))
        terms_BT = torch.where(mask_BT, terms_BT, 0.0)
        if not any(row.turn in self.importance for row in rows):
            return terms_BT
        importance = [self.importance.get(row.turn, np.ones(len(row.mask_T))) for row in rows]
        return terms_BT * pad(importance, logprobs_BT)

    def _apply(self, losses: Mapping[str, float]) -> None:
        """Clip and apply the gradients of each policy that has a loss."""
        self.applied = True
        for policy, loss in losses.items():
            grad_norm = self.weights.finish(policy, loss)
            self.updates[policy].append(None if grad_norm is None else Update(loss, grad_norm))

    # --- a forward pass less

    def _at_once(self) -> bool:
        """Take the one update of a step in passes of which each makes the old log-probs of its
        rows, their advantages and their gradients; False, with nothing done, where that is not the
        same as with all old log-probs first.

        It is the same where credit gives a row its advantages from rewards and its own log-probs.
        Which policies get importance weights is known at the end only: it is taken to be as in the
        last step, and where it was not, the gradients are thrown away.
        """
        weights = self.weights
        first_pass = weights.recipe.old_logprobs == "first_pass"
        if not first_pass or not self.updates_once or self.method.fresh:
            return False
        if self._fits_in_a_pass():  # one forward pass as well, and any credit
            return False
        credits: dict[str, InParts] = {}
        for policy in self.policies:
            part = in_parts(self.method.credit, self.rows[policy], self.method.kl)
            if part is None:
                return False
            credits[policy] = part
        places = {
            policy: {row.turn: index for index, row in enumerate(rows)}
            for policy, rows in self.rows.items()
        }

        def prepare(chosen: Sequence[Owned], logprobs_BT: torch.Tensor) -> None:
            _take_own(chosen, logprobs_BT)
            own_places: dict[str, list[int]] = {}
            for policy, row in chosen:
                own_places.setdefault(policy, []).append(places[policy][row.turn])
                if policy in weights.corrected:  # expected to have importance weights
                    self.importance |= corrections_of([row], weights.recipe)
            for policy, own in own_places.items():
                for index, advantages_T in zip(own, credits[policy](own), strict=True):
                    self.rows[policy][index].advantages_T = advantages_T

        expected = weights.corrected & {*self.policies}
        losses = self._gradients(self.owned, prepare)
        self.importance.clear()
        self._measure_gaps()
        if weights.corrected & {*self.policies} == expected:
            self._apply(losses)
            return True
        for policy in losses:
            weights.finish(policy, math.nan)  # forgets the gradients
        weights.meter.learnt(-len(self.owned))
        return False

    def _stats(self, policy: str) -> dict[str, float]:
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
        return {**finite, "lr": self.weights.recipe.rate(policy) * self.lr_scale}


def logprobs(weights: Holder, owned: Sequence[Owned], reference: bool = False) -> list[np.ndarray]:
    """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside
    the mask.
    """
    results: list[np.ndarray] = [np.empty(0)] * len(owned)
    with torch.no_grad():
        for part in weights.parts(owned):
            chosen = [owned[i] for i in part.rows]
            logprobs_BT = weights.forward(chosen, part.packs, reference).cpu().numpy()
            for i, (_, row), logprobs_T in zip(part.rows, chosen, logprobs_BT, strict=True):
                results[i] = logprobs_T[: len(row.token_ids_T)]
            weights.meter.read(len(chosen))
    return results


def _read(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The numbers of all these vectors, by one copy."""
    return torch.cat(list(tensors)).cpu().tolist() if tensors else []


def _take_own(chosen: Sequence[Owned], logprobs_BT: torch.Tensor) -> None:
    """Set `logprobs_T` of the rows of a pass to what it made."""
    for (_, row), own_T in zip(chosen, logprobs_BT.detach().cpu().numpy(), strict=True):
        row.logprobs_T = own_T[: len(row.token_ids_T)]


def _shuffled(rows: Sequence[Row], epoch: int) -> Sequence[Row]:
    """The rows in an order that follows from their turns and the epoch alone."""

    def draw(row: Row) -> bytes:
        return hashlib.blake2b(f"{epoch}/{row.turn}".encode(), digest_size=8).digest()

    return sorted(rows, key=draw)


def _whole_groups(rows: Sequence[Row], k: int, count: int) -> list[Row]:
    """The rows of every `count`-th group, from the k-th on; a row without a group is one."""
    keys = [row.turn if row.group is None else f"group {row.group}" for row in rows]
    chosen = set(list(dict.fromkeys(keys))[k::count])
    return [row for row, key in zip(rows, keys, strict=True) if key in chosen]


def gap_to_engine(
    policy: str, rows: Sequence[Row], recipe: Recipe
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """How far the engine's log-probs were from the learner's, and the importance weights that this
    calls for.
    """
    differences = _differences(rows)
    if not differences:  # all words were given: there is no engine to be measured
        return {}, {}
    gaps = np.abs(np.concatenate([d_T[row.mask_T] for row, d_T in differences]))
    stats = {"gap_mean": float(gaps.mean()), "gap_max": float(gaps.max())}
    if stats["gap_mean"] > recipe.gap_limit:
        raise RuntimeError(
            f"policy {policy}: engine and learner disagree by {stats['gap_mean']:.2f} nats per"
            " token: engine not refreshed"
        )
    if stats["gap_mean"] <= recipe.gap_tolerance:
        return stats, {}
    return stats, corrections_of(rows, recipe)


def corrections_of(rows: Sequence[Row], recipe: Recipe) -> dict[str, np.ndarray]:
    """Turn -> importance weights (T,) of rows with the learner's own log-probs; of each row by
    itself.
    """
    return {
        row.turn: truncated_ratios(difference_T, row.mask_T, recipe.gap_clip)
        for row, difference_T in _differences(rows)
    }


def moments_in(folder: Path) -> dict[str, torch.Tensor]:
    """Read what a checkpoint has of a policy's optimizer, as copies: as long as tensors are views
    of a file, some disks (NFS, Windows) do not remove its folder, which a later commit does.
    """
    moments = load_file(folder / "optimizer.safetensors")
    return {name: moment.clone() for name, moment in moments.items()}


def truncated_ratios(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """Ratio pi_learner / pi_engine of each generated token, at most `bound` (truncated importance
    sampling), and 1 elsewhere, shape (T,).
    """
    generated_T = np.where(mask_T, log_ratio_T, 0.0)
    return np.exp(generated_T).clip(max=bound)


def _differences(rows: Sequence[Row]) -> list[tuple[Row, np.ndarray]]:
    """Learner's minus engine's log-probs (T,) of the rows that an engine has sampled."""
    return [
        (row, row.logprobs_T - row.sampled_logprobs_T)
        for row in rows
        if row.sampled_logprobs_T is not None
    ]
