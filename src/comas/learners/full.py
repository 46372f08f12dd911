"""Training of whole models: every policy has its own weights and its own AdamW.

The old policy is this learner's own recomputation, fixed before the first minibatch; the engine's log-probs are kept to
measure the gap, which a truncated importance weight corrects where it exceeds a tolerance. Terms are divided by the
policy's token count over the whole optimizer step. Weights that are trained, their gradients and moments are those of
`models`, in float32; in another precision a working copy does the passes. Leaves out: adapters, sharding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from comas.learners.logprobs import LOGITS, Halves, halve, token_logprobs, vocabulary
from comas.learners.precision import allow_recomputing, copy_in, publish, recomputing, working_copy
from comas.losses import Batch
from comas.types import Method, Row, UserMistake

SPREAD, FULL = 1.25, 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too small to be worth its calls."""
SMALL = 4_000_000
"""Parameters below which policies learn side by side on CPU, and AdamW may take temporaries of the weights' size."""


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_norm: float = 1.0
    tokens_per_pass: int = 8192
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: slower, smaller."""
    gap_tolerance: float = 0.02
    """Mean absolute gap in nats between engine and learner above which rows get an importance weight."""
    gap_clip: float = 2.0
    """Where that weight is truncated."""
    gap_limit: float = 0.5
    """Mean gap at which the run stops: the engine does not sample from the weights that are trained."""


class FullLearner:
    """Trains `models` (policy -> Hugging Face causal LM) by policy gradient; passes in `dtype`, by default the models' own."""

    def __init__(
        self, models: Mapping[str, Any], recipe: Recipe, method: Method, pad_id: int, dtype: torch.dtype | None = None
    ) -> None:
        self.models, self.recipe, self.pad_id = dict(models), recipe, pad_id
        apart = [p for p, m in models.items() if dtype not in (None, m.dtype)]
        self.working = {p: working_copy(m, dtype) if dtype and p in apart else m for p, m in self.models.items()}
        kept = any(method.kl.values())
        self.reference = {p: copy_in(m, m.dtype).requires_grad_(False) for p, m in self.working.items()} if kept else {}
        for model in self.working.values() if recipe.checkpointing else ():
            allow_recomputing(model)
        self.optimizers = {
            p: torch.optim.AdamW(
                m.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, **_kernel(m)
            )
            for p, m in self.models.items()
        }
        self._halves: dict[Any, Halves | None] = {}

    def weights(self) -> Mapping[str, Any]:
        """Policy -> model to sample from, as it is now."""
        return self.working

    def logprobs(self, policy: str, rows: Sequence[Row], reference: bool = False) -> list[np.ndarray]:
        """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside the mask."""
        out: list[np.ndarray] = [np.empty(0)] * len(rows)
        with torch.no_grad():
            for part in self._passes(rows):
                chosen = [rows[i] for i in part]
                logprobs_BT = self._forward((self.reference if reference else self.working)[policy], chosen)
                for i, row, got in zip(part, chosen, logprobs_BT.cpu().numpy(), strict=True):
                    out[i] = got[: len(row.token_ids_T)]
        return out

    def step(self, rows: Mapping[str, Sequence[Row]], method: Method) -> dict[str, dict[str, float]]:
        """One learning step for every policy that has rows; on CPU several small policies at a time."""
        policies = [p for p in sorted(rows) if rows[p]]
        small = all(m.device.type == "cpu" and m.num_parameters() < SMALL for m in self.models.values())
        if not small or len(policies) < 2:
            return {p: self._learn(p, rows[p], method) for p in policies}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # small operations: a thread per policy beats threads per operation
        try:
            with ThreadPoolExecutor(max_workers=max(1, min(threads, os.cpu_count() or 1))) as pool:
                return dict(zip(policies, pool.map(lambda p: self._learn(p, rows[p], method), policies), strict=True))
        finally:
            torch.set_num_threads(threads)

    def _learn(self, policy: str, rows: Sequence[Row], method: Method) -> dict[str, float]:
        recipe, once = self.recipe, method.epochs == method.minibatches == 1
        betas = {r.role: method.kl.get(r.role, 0.0) for r in rows}
        referred = [r for r in rows if betas[r.role]]
        for row, ref in zip(referred, self.logprobs(policy, referred, reference=True) if referred else [], strict=True):
            row.ref_logprobs_T = ref
        graphs = self._graphs(policy, rows) if once else None
        if graphs is None:
            for row, logprobs in zip(rows, self.logprobs(policy, rows), strict=True):
                row.logprobs_T = logprobs
        for row, advantages in zip(rows, method.advantage(rows, method.kl), strict=True):
            row.advantages_T = advantages
        stats, weight = self._gap(rows)
        if stats["gap_mean"] > recipe.gap_limit:
            raise RuntimeError(
                f"policy {policy}: engine and learner disagree by {stats['gap_mean']:.2f} nats per token: engine not refreshed"
            )
        parts = [p for _ in range(method.epochs) for p in _minibatches(rows, method.minibatches)]
        updates = [self._update(policy, part, method, weight, graphs) for part in parts]
        taken = [u for u in updates if u is not None]
        stats |= {"rows": len(rows), "lr": recipe.lr, "updates": len(taken), "skipped": len(updates) - len(taken)}
        if taken:
            stats["loss"], stats["grad_norm"] = (float(np.mean(column)) for column in zip(*taken, strict=True))
        return {k: v for k, v in stats.items() if np.isfinite(v)}

    def _update(
        self, policy: str, rows: Sequence[Row], method: Method, weight: Mapping[str, np.ndarray],
        graphs: list[torch.Tensor] | None,
    ) -> tuple[float, float] | None:
        """One optimizer step on `rows`; the sum of all terms over their token count. Returns loss and gradient norm.

        None where one of them is not finite: then nothing is changed, neither weights nor moments.
        """
        model, working, optimizer = self.models[policy], self.working[policy], self.optimizers[policy]
        tokens, total = sum(int(r.mask_T.sum()) for r in rows), 0.0
        for n, part in enumerate(self._passes(rows)):
            chosen = [rows[i] for i in part]
            logprobs_BT = graphs[n] if graphs is not None else self._forward(working, chosen)
            fill = lambda arrays, like=logprobs_BT: _pad(arrays, like)  # noqa: E731
            mask_BT = fill([r.mask_T for r in chosen]).bool()
            batch = Batch(fill([r.advantages_T for r in chosen]), fill([r.logprobs_T for r in chosen]), mask_BT)
            terms_BT = torch.where(mask_BT, method.loss(logprobs_BT, batch), 0.0)
            if weight:
                terms_BT = terms_BT * fill([weight[r.turn] for r in chosen])
            loss = terms_BT.sum() / tokens
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe.grad_norm))
        finite = bool(np.isfinite([norm, total]).all())
        if finite:
            optimizer.step()
            if working is not model:
                publish(model, working)
        optimizer.zero_grad(set_to_none=True)
        return (total, norm) if finite else None

    def _gap(self, rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """How far the engine's log-probs were from the learner's, and the importance weights that this calls for."""
        known = [(r, (r.logprobs_T - r.sampled_logprobs_T)) for r in rows if r.sampled_logprobs_T is not None]
        gaps = np.concatenate([d[r.mask_T] for r, d in known]) if known else np.zeros(1)
        stats = {"gap_mean": float(np.abs(gaps).mean()), "gap_max": float(np.abs(gaps).max())}
        if stats["gap_mean"] <= self.recipe.gap_tolerance:
            return stats, {}
        return stats, {r.turn: np.exp(d).clip(max=self.recipe.gap_clip) for r, d in known}

    def _graphs(self, policy: str, rows: Sequence[Row]) -> list[torch.Tensor] | None:
        """The forward passes of a step that takes only one, kept for its backward; None where they would need too much room."""
        passes = self._passes(rows)
        if sum(len(part) * len(rows[part[-1]].token_ids_T) for part in passes) > self.recipe.tokens_per_pass:
            return None
        graphs = [self._forward(self.working[policy], [rows[i] for i in part]) for part in passes]
        for part, graph in zip(passes, graphs, strict=True):
            for i, logprobs in zip(part, graph.detach().cpu().numpy(), strict=True):
                rows[i].logprobs_T = logprobs[: len(rows[i].token_ids_T)]
        return graphs

    def _passes(self, rows: Sequence[Row]) -> list[list[int]]:
        """Row indices of forward passes below `tokens_per_pass`; similar lengths together, so that little is padding."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids_T))
        passes: list[list[int]] = []
        for i in order:
            length = len(rows[i].token_ids_T)
            if passes and (len(passes[-1]) + 1) * length <= self.recipe.tokens_per_pass:
                shortest = len(rows[passes[-1][0]].token_ids_T)
                if length <= SPREAD * shortest or len(passes[-1]) * shortest < FULL:
                    passes[-1].append(i)
                    continue
            passes.append([i])
        return passes

    def _forward(self, model: Any, rows: Sequence[Row]) -> torch.Tensor:
        """Log-probs of the rows' generated tokens, (B, T); with gradients if they are switched on."""
        with recomputing(model) if self.recipe.checkpointing and torch.is_grad_enabled() else nullcontext():
            return token_logprobs(model, self._split(model), rows, self.pad_id)

    def _split(self, model: Any) -> Halves | None:
        """Body and head, where the logits of a pass would be many."""
        if model not in self._halves:
            few = vocabulary(model) * self.recipe.tokens_per_pass <= LOGITS
            self._halves[model] = None if few else halve(model)
        return self._halves[model]

    def save(self, path: Path) -> None:
        """Per policy a Hugging Face folder, and its optimizer as safetensors."""
        for policy, model in self.models.items():
            if broken := [n for n, p in model.named_parameters() if not bool(p.isfinite().all())]:
                raise FloatingPointError(f"policy {policy}: weights {broken[0]} are not finite; nothing was saved")
            model.save_pretrained(path / policy)
            names = [n for n, _ in model.named_parameters()]
            state = self.optimizers[policy].state_dict()["state"]
            flat = {f"{names[i]}.{k}": v for i, slots in state.items() for k, v in slots.items()}
            save_file(flat, path / policy / "optimizer.safetensors")

    def load(self, path: Path) -> None:
        """The inverse of `save`; the reference stays the policy at the start of the run."""
        for policy, model in self.models.items():
            _load_weights(model, path / policy)
            flat = load_file(path / policy / "optimizer.safetensors")
            index = {n: i for i, (n, _) in enumerate(model.named_parameters())}
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in flat.items():
                name, slot = key.rsplit(".", 1)
                state.setdefault(index[name], {})[slot] = value
            groups = self.optimizers[policy].state_dict()["param_groups"]
            self.optimizers[policy].load_state_dict({"state": state, "param_groups": groups})
            if self.working[policy] is not model:
                publish(model, self.working[policy])


def _kernel(model: Any) -> dict[str, bool]:
    """The implementation of AdamW: all tensors at once is quickest for small models, and takes a temporary of each."""
    small = model.num_parameters() < SMALL
    return {"foreach": small, "fused": not small}


def _load_weights(model: Any, path: Path) -> None:
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise UserMistake(f"{path} has no model*.safetensors: not a checkpoint of this policy")
    tensors = {name: value for file in files for name, value in load_file(file).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise UserMistake(f"{path} does not fit this base: missing {sorted(set(missing) - tied)}, unexpected {unexpected}")


def _pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    out = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out).to(like.device)


def _minibatches(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """`count` interleaved parts of the rows, in a fixed order."""
    return [part for i in range(count) if (part := list(rows[i::count]))]


