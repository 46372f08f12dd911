"""Training of whole models: every policy has its own weights and its own AdamW.

Weights that are trained, their gradients and moments are those of `models`, in float32; in another
precision a working copy does the passes. What a step is stands in `step.py`. Leaves out: adapters,
sharding.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from comas.learners.logprobs import LOGITS, Halves, few_logits, halve
from comas.learners.passes import Owned, Packs, can_share
from comas.learners.precision import allow_recomputing, copy_in, one_thread, publish, working_copy
from comas.learners.recipe import Recipe
from comas.learners.step import Holder, learn, moments_in
from comas.seams import Weights, WholeModel
from comas.types import Meter, Method, Row, UserMistake

SMALL = 4_000_000
"""Parameters below which policies learn side by side on CPU, and AdamW may take temporaries of the
weights' size.
"""
_THREADS = threading.Lock()
"""Held by whoever sets the number of threads, which is the process's."""


class FullLearner(Holder):
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
        super().__init__(recipe, method, pad_id, meter)
        self.models = dict(models)
        self.working: dict[str, Any] = {}
        self.reference: dict[str, Any] = {}
        for policy, model in self.models.items():
            kind = dtype or model.dtype
            working = model if kind == model.dtype else working_copy(model, kind)
            self.working[policy] = working
            if method.refers:
                self.reference[policy] = copy_in(working, working.dtype).requires_grad_(False)
            if recipe.checkpointing:
                allow_recomputing(working)
            small = model.num_parameters() < SMALL  # all tensors at once, a temporary of each
            kernel: dict[str, Any] = {"foreach": small, "fused": not small}
            self.optimizers[policy] = torch.optim.AdamW(
                model.parameters(), lr=recipe.rate(policy), **recipe.adamw(), **kernel
            )
        self._halves: dict[Any, Halves | None] = {}
        self.shares = recipe.share_prompts and all(map(can_share, self.working.values()))

    def weights(self) -> dict[str, Weights]:
        """Policy -> model to sample from: the one that is trained, or its working copy."""
        return {policy: WholeModel(model) for policy, model in self.working.items()}

    def copy(self, source: str, target: str) -> None:
        """Give policy `target` the weights that policy `source` has now."""
        self.models[target].load_state_dict(self.models[source].state_dict())
        if self.working[target] is not self.models[target]:
            publish(self.models[target], self.working[target])

    def step(
        self, rows: Mapping[str, Sequence[Row]], lr_scale: float = 1.0
    ) -> dict[str, dict[str, float]]:
        """One learning step for every policy that has rows; on CPU several small policies at a
        time.
        """
        policies = [policy for policy in sorted(rows) if rows[policy]]

        def learn_alone(policy: str) -> dict[str, float]:
            return learn(self, {policy: rows[policy]}, lr_scale)[policy]

        models = self.models.values()
        small = all(m.device.type == "cpu" and m.num_parameters() < SMALL for m in models)
        if len(policies) < 2 or not small:
            return {policy: learn_alone(policy) for policy in policies}
        # small operations: a thread per policy beats threads per operation
        with (
            _THREADS,
            one_thread() as threads,
            ThreadPoolExecutor(min(threads, os.cpu_count() or 1)) as pool,
        ):
            return dict(zip(policies, pool.map(learn_alone, policies), strict=True))

    def forward(
        self, owned: Sequence[Owned], packs: Packs, reference: bool = False
    ) -> torch.Tensor:
        """Log-probs of one policy's rows, (B, T); see `Holder`."""
        policy = owned[0][0]
        model = self.reference[policy] if reference else self.working[policy]
        return self.read(model, self._split(model), owned, packs)

    def backward(self, owned: Sequence[Owned], packs: Packs, loss: torch.Tensor) -> None:
        """See `Holder`."""
        loss.backward()

    def finish(self, policy: str, loss: float) -> float | None:
        """See `Holder`."""
        model = self.models[policy]
        working = self.working[policy]
        optimizer = self.optimizers[policy]
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe.grad_norm))
        finite = bool(np.isfinite([norm, loss]).all())
        if finite and norm > 0:  # otherwise moments of earlier steps would move it
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
            for name, weight in model.named_parameters():
                if not bool(weight.isfinite().all()):
                    raise FloatingPointError(
                        f"policy {policy}: weights {name} are not finite; nothing was saved"
                    )
            model.save_pretrained(path / policy)
            names = [name for name, _ in model.named_parameters()]
            state = self.optimizers[policy].state_dict()["state"]
            moments: dict[str, torch.Tensor] = {}
            for i, slots in state.items():
                moments.update({f"{names[i]}.{slot}": value for slot, value in slots.items()})
            save_file(moments, path / policy / "optimizer.safetensors")

    def load(self, path: Path) -> None:
        """The inverse of `save`; the reference stays the policy at the start of the run."""
        for policy, model in self.models.items():
            _load_weights(model, path / policy)
            moments = moments_in(path / policy)
            index = {name: i for i, (name, _) in enumerate(model.named_parameters())}
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in moments.items():
                name, slot = key.rsplit(".", 1)
                state.setdefault(index[name], {})[slot] = value
            optimizer = self.optimizers[policy]
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
            if self.working[policy] is not model:
                publish(model, self.working[policy])


def _load_weights(model: Any, path: Path) -> None:
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise UserMistake(f"{path} has no model*.safetensors: not a checkpoint of this policy")
    tensors = {name: value for file in files for name, value in load_file(file).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected:  # experts, which transformers writes one by one, and joins when it reads them
        read = type(model).from_pretrained(path, dtype=model.dtype, trust_remote_code=False)
        missing, unexpected = model.load_state_dict(read.state_dict(), strict=False)
    lost = sorted(set(missing) - set(model.all_tied_weights_keys))
    if unexpected or lost:
        raise UserMistake(f"{path} does not fit this base: missing {lost}, unexpected {unexpected}")
