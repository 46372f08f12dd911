"""Training of whole models: every policy has its own weights and its own AdamW.

Weights that are trained, their gradients and moments are those of `models`, in float32; in another
precision a working copy does the passes. What a step is stands in `update.py`. Leaves out:
adapters, sharding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from comas.learners import step as update
from comas.learners.logprobs import LOGITS, Halves, few_logits, halve, token_logprobs
from comas.learners.precision import allow_recomputing, copy_in, publish, recomputing, working_copy
from comas.learners.step import Owned, Recipe
from comas.types import Meter, Method, Row, UserMistake, Weights, WholeModel

SMALL = 4_000_000
"""Parameters below which policies learn side by side on CPU, and AdamW may take temporaries of the
weights' size.
"""


class FullLearner:
    """Trains `models` (policy -> Hugging Face causal LM) by policy gradient; passes in `dtype`, by
    default the models' own.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        recipe: Recipe,
        method: Method,
        pad_id: int,
        dtype: torch.dtype | None = None,
        *,
        meter: Meter | None = None,
    ) -> None:
        self.models = dict(models)
        self.recipe = recipe
        self.pad_id = pad_id
        apart = [p for p, m in models.items() if dtype not in (None, m.dtype)]
        self.working = {
            p: working_copy(m, dtype) if dtype and p in apart else m for p, m in self.models.items()
        }
        kept = any(method.kl.values())
        self.reference = (
            {p: copy_in(m, m.dtype).requires_grad_(False) for p, m in self.working.items()}
            if kept
            else {}
        )
        for model in self.working.values() if recipe.checkpointing else ():
            allow_recomputing(model)
        self.optimizers = {
            p: torch.optim.AdamW(
                m.parameters(),
                lr=recipe.rate(p),
                betas=recipe.betas,
                weight_decay=recipe.weight_decay,
                **_kernel(m),
            )
            for p, m in self.models.items()
        }
        self._halves: dict[Any, Halves | None] = {}
        self.meter = meter or Meter()

    def weights(self) -> dict[str, Weights]:
        """Policy -> model to sample from: the one that is trained, or its working copy."""
        return {policy: WholeModel(model) for policy, model in self.working.items()}

    def logprobs(
        self, policy: str, rows: Sequence[Row], reference: bool = False
    ) -> list[np.ndarray]:
        """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0
        outside the mask.
        """
        return update.logprobs(self, [(policy, row) for row in rows], reference)

    def step(
        self, rows: Mapping[str, Sequence[Row]], method: Method
    ) -> dict[str, dict[str, float]]:
        """One learning step for every policy that has rows; on CPU several small policies at a
        time.
        """
        alone = [{p: rows[p]} for p in sorted(rows) if rows[p]]
        small = all(
            m.device.type == "cpu" and m.num_parameters() < SMALL for m in self.models.values()
        )
        if not small or len(alone) < 2:
            return {
                p: told for part in alone for p, told in update.learn(self, part, method).items()
            }
        threads = torch.get_num_threads()
        # small operations: a thread per policy beats threads per operation
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(max_workers=max(1, min(threads, os.cpu_count() or 1))) as pool:
                done = list(pool.map(lambda part: update.learn(self, part, method), alone))
        finally:
            torch.set_num_threads(threads)
        return {p: told for part in done for p, told in part.items()}

    def forward(self, owned: Sequence[Owned], reference: bool = False) -> torch.Tensor:
        """Log-probs of one policy's rows, (B, T); see `update.Weights`."""
        model = (self.reference if reference else self.working)[owned[0][0]]
        with (
            recomputing(model)
            if self.recipe.checkpointing and torch.is_grad_enabled()
            else nullcontext()
        ):
            return token_logprobs(model, self._split(model), [row for _, row in owned], self.pad_id)

    def backward(self, owned: Sequence[Owned], loss: torch.Tensor) -> None:
        """See `update.Weights`."""
        loss.backward()

    def finish(self, policy: str, loss: float) -> float | None:
        """See `update.Weights`."""
        model = self.models[policy]
        working = self.working[policy]
        optimizer = self.optimizers[policy]
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe.grad_norm))
        finite = bool(np.isfinite([norm, loss]).all())
        if finite:
            optimizer.step()
            if working is not model:
                publish(model, working)
        optimizer.zero_grad(set_to_none=True)
        return norm if finite else None

    def _split(self, model: Any) -> Halves | None:
        """Body and head, where the logits of a pass would be many."""
        if model not in self._halves:
            few = few_logits(model, self.recipe.tokens_per_pass, LOGITS)
            self._halves[model] = None if few else halve(model)
        return self._halves[model]

    def save(self, path: Path) -> None:
        """Per policy a Hugging Face folder, and its optimizer as safetensors."""
        for policy, model in self.models.items():
            if broken := [n for n, p in model.named_parameters() if not bool(p.isfinite().all())]:
                raise FloatingPointError(
                    f"policy {policy}: weights {broken[0]} are not finite; nothing was saved"
                )
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
    """The implementation of AdamW: all tensors at once is quickest for small models, and takes a
    temporary of each.
    """
    small = model.num_parameters() < SMALL
    return {"foreach": small, "fused": not small}


def _load_weights(model: Any, path: Path) -> None:
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise UserMistake(f"{path} has no model*.safetensors: not a checkpoint of this policy")
    tensors = {name: value for file in files for name, value in load_file(file).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = set(
        getattr(model, "all_tied_weights_keys", None)
        or getattr(model, "_tied_weights_keys", None)
        or ()
    )
    if unexpected or set(missing) - tied:
        raise UserMistake(
            f"{path} does not fit this base: missing {sorted(set(missing) - tied)}, unexpected"
            f" {unexpected}"
        )
