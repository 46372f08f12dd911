"""One learning step, the same for whole models and for adapters: log-probs, advantages,
minibatches, losses, updates.

The old policy is the learner's own recomputation, fixed before the first minibatch; the engine's
log-probs are kept to measure the gap, which a truncated importance weight corrects where it exceeds
a tolerance. Terms are divided by each policy's own token count over the whole optimizer step, so
that policies may share passes. Leaves out: who holds weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from comas.objective.losses import Batch
from comas.types import Meter, Method, Row

SPREAD = 1.25
FULL = 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too
small to be worth its calls.
"""

Owned = tuple[str, Row]
"""A row and the policy that said it."""


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
    old_logprobs: Literal["recomputed", "sampled"] = field(default="recomputed", kw_only=True)
    """The old policy: a forward pass of the learner, or the engine's log-probs, whose gap is then
    part of the ratio.
    """
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

    def rate(self, policy: str) -> float:
        """The learning rate of a policy."""
        return self.rates.get(policy, self.lr)


class Weights(Protocol):
    """What a step needs of those who hold the weights of one or more policies."""

    recipe: Recipe
    meter: Meter
    """Counts rows as they are read and learnt from."""

    def forward(self, owned: Sequence[Owned], reference: bool = False) -> torch.Tensor:
        """Log-probs of the rows' generated tokens, (B, T), 0 outside the mask; with gradients if
        they are switched on.
        """
        ...

    def backward(self, owned: Sequence[Owned], loss: torch.Tensor) -> None:
        """Add the gradients of a loss that was made from `forward(owned)`."""
        ...

    def finish(self, policy: str, loss: float) -> float | None:
        """Clip and apply a policy's gradients and forget them; their norm. None, and no change at
        all, where it or the loss is not finite.
        """
        ...


def logprobs(weights: Weights, owned: Sequence[Owned], reference: bool = False) -> list[np.ndarray]:
    """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside
    the mask.
    """
    out: list[np.ndarray] = [np.empty(0)] * len(owned)
    with torch.no_grad():
        for part in passes(owned, weights.recipe.tokens_per_pass):
            chosen = [owned[i] for i in part]
            got_BT = weights.forward(chosen, reference).cpu().numpy()
            for i, (_, row), got in zip(part, chosen, got_BT, strict=True):
                out[i] = got[: len(row.token_ids_T)]
            weights.meter.read(len(chosen))
    return out


def learn(
    weights: Weights, rows: Mapping[str, Sequence[Row]], method: Method
) -> dict[str, dict[str, float]]:
    """One learning step for these policies together; statistics per policy."""
    owned = [(policy, row) for policy in sorted(rows) for row in rows[policy]]
    referred = [(p, r) for p, r in owned if method.kl.get(r.role, 0.0)]
    for (_, row), ref in zip(
        referred, logprobs(weights, referred, reference=True) if referred else [], strict=True
    ):
        row.ref_logprobs_T = ref
    sampled = weights.recipe.old_logprobs == "sampled"
    graphs = None
    if sampled:
        for _, row in owned:
            row.logprobs_T = _sampled(row)
    elif (
        graphs := _graphs(weights, owned) if method.epochs == method.minibatches == 1 else None
    ) is None:
        for (_, row), old in zip(owned, logprobs(weights, owned), strict=True):
            row.logprobs_T = old
    told: dict[str, dict[str, float]] = {}
    weight: dict[str, np.ndarray] = {}
    for policy in sorted(rows):
        for row, advantages in zip(
            rows[policy], method.advantage(rows[policy], method.kl), strict=True
        ):
            row.advantages_T = advantages
        if not sampled:
            told[policy], weight_of = _gap(
                policy, [(r, r.logprobs_T) for r in rows[policy]], weights.recipe
            )
            weight |= weight_of
    taken: dict[str, list[tuple[float, float] | None]] = {p: [] for p in rows}
    for _ in range(method.epochs):
        for k in range(method.minibatches):
            part = [(p, r) for p in sorted(rows) for r in rows[p][k :: method.minibatches]]
            for policy, update in _update(
                weights, part, method, weight, graphs, told if sampled else None
            ).items():
                taken[policy].append(update)
    return {
        p: {**_stats(told[p], len(rows[p]), taken[p]), "lr": weights.recipe.rate(p)}
        for p in sorted(rows)
    }


def _stats(
    gap: dict[str, float], rows: int, updates: Sequence[tuple[float, float] | None]
) -> dict[str, float]:
    taken = [u for u in updates if u is not None]
    stats = {**gap, "rows": rows, "updates": len(taken), "skipped": len(updates) - len(taken)}
    if taken:
        stats["loss"], stats["grad_norm"] = (
            float(np.mean(column)) for column in zip(*taken, strict=True)
        )
    return {k: v for k, v in stats.items() if np.isfinite(v)}


def _update(
    weights: Weights,
    owned: Sequence[Owned],
    method: Method,
    weight: Mapping[str, np.ndarray],
    graphs: list[torch.Tensor] | None,
    gaps: dict[str, dict[str, float]] | None,
) -> dict[str, tuple[float, float] | None]:
    """One optimizer step of each policy present. Returns loss and gradient norm, None where the
    step was not taken.

    The gap of a policy that is not in `gaps` yet is measured along the way, and put there before
    its weights change.
    """
    fresh: dict[str, list[tuple[Row, np.ndarray]]] = {
        p: [] for p, _ in owned if gaps is not None and p not in gaps
    }
    tokens = dict.fromkeys((p for p, _ in owned), 0)
    total = dict.fromkeys((p for p, _ in owned), 0.0)
    for policy, row in owned:
        tokens[policy] += int(row.mask_T.sum())
    for n, part in enumerate(passes(owned, weights.recipe.tokens_per_pass)):
        chosen = [owned[i] for i in part]
        logprobs_BT = graphs[n] if graphs is not None else weights.forward(chosen)
        fill = lambda arrays, like=logprobs_BT: _pad(arrays, like)  # noqa: E731
        mask_BT = fill([r.mask_T for _, r in chosen]).bool()
        batch = Batch(
            fill([r.advantages_T for _, r in chosen]),
            fill([r.logprobs_T for _, r in chosen]),
            mask_BT,
        )
        terms_BT = torch.where(mask_BT, method.loss(logprobs_BT, batch), 0.0)
        if any(r.turn in weight for _, r in chosen):
            terms_BT = terms_BT * fill(
                [weight.get(r.turn, np.ones(len(r.mask_T))) for _, r in chosen]
            )
        loss_B = terms_BT.sum(1) / terms_BT.new_tensor([tokens[p] for p, _ in chosen])
        weights.backward(chosen, loss_B.sum())
        weights.meter.learnt(len(chosen))
        for (policy, row), got in zip(
            chosen, logprobs_BT.detach().cpu().numpy() if fresh else [], strict=bool(fresh)
        ):
            if policy in fresh:
                fresh[policy].append((row, got[: len(row.token_ids_T)]))
        for (policy, _), loss in zip(chosen, loss_B.detach().cpu().tolist(), strict=True):
            total[policy] += loss
    for policy, known in fresh.items():
        gaps[policy], _ = _gap(policy, known, weights.recipe)  # pyright: ignore[reportOptionalSubscript]
    updates = {p: (loss, weights.finish(p, loss)) for p, loss in total.items()}
    return {p: (loss, norm) if norm is not None else None for p, (loss, norm) in updates.items()}


def _sampled(row: Row) -> np.ndarray:
    if row.sampled_logprobs_T is None:
        raise ValueError(
            f"turn {row.turn} has no log-probs of the engine that said it: set"
            " hosts.<name>.old_logprobs=recomputed"
        )
    return row.sampled_logprobs_T.copy()


def _gap(
    policy: str, rows: Sequence[tuple[Row, np.ndarray]], recipe: Recipe
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """How far the engine's log-probs were from the learner's, and the importance weights that this
    calls for.
    """
    known = [
        (r, own_T - r.sampled_logprobs_T) for r, own_T in rows if r.sampled_logprobs_T is not None
    ]
    gaps = np.concatenate([d[r.mask_T] for r, d in known]) if known else np.zeros(1)
    stats = {"gap_mean": float(np.abs(gaps).mean()), "gap_max": float(np.abs(gaps).max())}
    if stats["gap_mean"] > recipe.gap_limit:
        raise RuntimeError(
            f"policy {policy}: engine and learner disagree by {stats['gap_mean']:.2f} nats per"
            " token: engine not refreshed"
        )
    if stats["gap_mean"] <= recipe.gap_tolerance:
        return stats, {}
    return stats, {r.turn: np.exp(d).clip(max=recipe.gap_clip) for r, d in known}


def _graphs(weights: Weights, owned: Sequence[Owned]) -> list[torch.Tensor] | None:
    """The forward passes of a step that takes only one, kept for its backward; None where they
    would need too much room.
    """
    parts = passes(owned, weights.recipe.tokens_per_pass)
    if (
        sum(len(part) * max(len(owned[i][1].token_ids_T) for i in part) for part in parts)
        > weights.recipe.tokens_per_pass
    ):
        return None
    graphs = [weights.forward([owned[i] for i in part]) for part in parts]
    for part, graph in zip(parts, graphs, strict=True):
        for i, got in zip(part, graph.detach().cpu().numpy(), strict=True):
            owned[i][1].logprobs_T = got[: len(owned[i][1].token_ids_T)]
    return graphs


def passes(owned: Sequence[Owned], tokens_per_pass: int) -> list[list[int]]:
    """Row indices of forward passes below `tokens_per_pass`; similar lengths together, so that
    little is padding.

    Inside a pass rows are sorted by policy, as `Population` wants them.
    """
    order = sorted(range(len(owned)), key=lambda i: len(owned[i][1].token_ids_T))
    made: list[list[int]] = []
    for i in order:
        length = len(owned[i][1].token_ids_T)
        if made and (len(made[-1]) + 1) * length <= tokens_per_pass:
            shortest = len(owned[made[-1][0]][1].token_ids_T)
            if length <= SPREAD * shortest or len(made[-1]) * shortest < FULL:
                made[-1].append(i)
                continue
        made.append([i])
    return [sorted(part, key=lambda i: owned[i][0]) for part in made]


def _pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    out = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out).to(like.device)
