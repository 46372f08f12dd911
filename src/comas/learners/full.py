"""Training of whole models: every policy has its own weights and its own AdamW.

The old policy is this learner's own recomputation, fixed before the first minibatch; the engine's log-probs are kept to
measure the gap, which a truncated importance weight corrects where it exceeds a tolerance. Terms are divided by the
policy's token count over the whole optimizer step. Leaves out: adapters, sharding.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from comas.losses import Batch
from comas.types import Method, Row, UserMistake

SPREAD, FULL = 1.25, 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too small to be worth its calls."""


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_norm: float = 1.0
    tokens_per_pass: int = 8192
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else."""
    gap_tolerance: float = 0.02
    """Mean absolute gap in nats between engine and learner above which rows get an importance weight."""
    gap_clip: float = 2.0
    """Where that weight is truncated."""
    gap_limit: float = 0.5
    """Mean gap at which the run stops: the engine does not sample from the weights that are trained."""


class FullLearner:
    """Trains `models` (policy -> Hugging Face causal LM) by policy gradient."""

    def __init__(self, models: Mapping[str, Any], recipe: Recipe, method: Method, pad_id: int) -> None:
        self.models, self.recipe, self.pad_id = dict(models), recipe, pad_id
        self.reference = {p: copy.deepcopy(m) for p, m in models.items()} if any(method.kl.values()) else {}
        self.optimizers = {
            p: torch.optim.AdamW(
                m.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, foreach=True
            )
            for p, m in self.models.items()
        }

    def weights(self) -> Mapping[str, Any]:
        """Policy -> model as it is now."""
        return self.models

    def logprobs(self, policy: str, rows: Sequence[Row], reference: bool = False) -> list[np.ndarray]:
        """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside the mask."""
        out: list[np.ndarray] = [np.empty(0)] * len(rows)
        with torch.no_grad():
            for part in self._passes(rows):
                chosen = [rows[i] for i in part]
                logprobs_BT = self._forward((self.reference if reference else self.models)[policy], chosen)
                for i, row, got in zip(part, chosen, logprobs_BT.cpu().numpy(), strict=True):
                    out[i] = got[: len(row.token_ids_T)]
        return out

    def step(self, rows: Mapping[str, Sequence[Row]], method: Method) -> dict[str, dict[str, float]]:
        """One learning step for every policy that has rows; on CPU several small policies at a time."""
        policies = [p for p in sorted(rows) if rows[p]]
        small = all(m.device.type == "cpu" and m.num_parameters() < 4_000_000 for m in self.models.values())
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
        model, optimizer = self.models[policy], self.optimizers[policy]
        tokens, total = sum(int(r.mask_T.sum()) for r in rows), 0.0
        for n, part in enumerate(self._passes(rows)):
            chosen = [rows[i] for i in part]
            logprobs_BT = graphs[n] if graphs is not None else self._forward(model, chosen)
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
        graphs = [self._forward(self.models[policy], [rows[i] for i in part]) for part in passes]
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
        """Log-probs of softmax(logits / T) at the generated tokens, (B, T), padded on the right, 0 outside the mask."""
        width = max(len(r.token_ids_T) for r in rows)
        ids_BT = torch.full((len(rows), width), self.pad_id)
        mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row.token_ids_T)] = torch.from_numpy(row.token_ids_T)
            mask_BT[i, : len(row.token_ids_T)] = torch.from_numpy(row.mask_T)
        ids_BT, mask_BT = ids_BT.to(model.device), mask_BT.to(model.device)
        lengths_B = torch.tensor([len(r.token_ids_T) for r in rows], device=model.device)
        attend_BT = (torch.arange(width, device=model.device) < lengths_B[:, None]).long()
        logits = model(input_ids=ids_BT, attention_mask=attend_BT, use_cache=False).logits[:, :-1]
        places = mask_BT[:, 1:]
        temperature_B = torch.tensor([r.temperature for r in rows], device=model.device)[:, None].expand(places.shape)[places]
        picked = (logits[places].float() / temperature_B[:, None]).log_softmax(-1).gather(1, ids_BT[:, 1:][places][:, None])
        return torch.zeros(mask_BT.shape, device=model.device).masked_scatter(mask_BT, picked[:, 0])

    def save(self, path: Path) -> None:
        """Per policy a Hugging Face folder, and its optimizer as safetensors."""
        for policy, model in self.models.items():
            if broken := [n for n, p in model.named_parameters() if not bool(p.isfinite().all())]:
                raise FloatingPointError(f"policy {policy}: weights {broken[0]} are not finite; nothing was saved")
            model.save_pretrained(path / policy)
            names = [n for n, _ in model.named_parameters()]
            state = self.optimizers[policy].state_dict()["state"]
            flat = {f"{names[i]}.{k}": v.clone() for i, slots in state.items() for k, v in slots.items()}
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
    out = np.zeros(like.shape, dtype=np.float32)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out).to(like.device)


def _minibatches(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """`count` interleaved parts of the rows, in a fixed order."""
    return [part for i in range(count) if (part := list(rows[i::count]))]


