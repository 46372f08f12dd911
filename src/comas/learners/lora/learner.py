"""Training of a population: every policy is an adapter on one frozen base, and all learn in the
same passes.

A policy has its own moments, clipping and learning rate; the reference is the base with adapters
off, or the adapters at the start of the run where they did not start at zero. What a step is stands
in `step.py`, the adapters themselves in `population.py`, their files in `peft_folder.py`. Leaves
out: sharding, quantised bases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from comas.learners.logprobs import LOGITS, few_logits, halve
from comas.learners.lora import peft_folder
from comas.learners.lora.population import Population
from comas.learners.passes import Owned, Packs, can_share
from comas.learners.precision import allow_recomputing
from comas.learners.recipe import Recipe
from comas.learners.step import Holder, learn, moments_in
from comas.seams import Adapter, Weights
from comas.types import Meter, Method, Row

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdapterLearner(Holder):
    """Trains the adapters of `population`, whose base can be loaded from `base`."""

    def __init__(
        self,
        population: Population,
        recipe: Recipe,
        method: Method,
        pad_id: int,
        base: str,
        *,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(recipe, method, pad_id, meter)
        self.population = population
        self.base = base
        self.grads_PN = population.collect()
        if method.refers:
            population.keep_start()
        if recipe.checkpointing:
            allow_recomputing(population.model)
        few = few_logits(population.model, recipe.tokens_per_pass, LOGITS)
        self._halves = None if few else halve(population.model)
        self.shares = recipe.share_prompts and can_share(population.model)
        self._rows_N: dict[str, torch.Tensor] = {}
        for number, policy in enumerate(population.policies):
            weights_N = population.flat_PN[number]
            weights_N.grad = self.grads_PN[number]
            self._rows_N[policy] = weights_N
            self.optimizers[policy] = torch.optim.AdamW(
                [weights_N], lr=recipe.rate(policy), **recipe.adamw(), fused=True
            )

    def weights(self) -> dict[str, Weights]:
        """Policy -> what to sample from: adapters are trained in place."""
        return dict.fromkeys(self.population.policies, Adapter(self.population))

    def copy(self, source: str, target: str) -> None:
        """Give policy `target` the adapter that policy `source` has now."""
        with torch.no_grad():
            self._rows_N[target].copy_(self._rows_N[source])

    def step(
        self, rows: Mapping[str, Sequence[Row]], lr_scale: float = 1.0
    ) -> dict[str, dict[str, float]]:
        """One learning step of all policies that have rows, in passes that they share."""
        present = {p: part for p, part in rows.items() if part}
        return learn(self, present, lr_scale) if present else {}

    def forward(
        self, owned: Sequence[Owned], packs: Packs, reference: bool = False
    ) -> torch.Tensor:
        """Log-probs of rows that are sorted by policy, (B, T); see `Holder`."""
        with self.population.routed(self._index(owned, packs), reference):
            return self.read(self.population.model, self._halves, owned, packs)

    def backward(self, owned: Sequence[Owned], packs: Packs, loss: torch.Tensor) -> None:
        """See `Holder`."""
        with self.population.routed(self._index(owned, packs)):
            loss.backward()

    def finish(self, policy: str, loss: float) -> float | None:
        """See `Holder`."""
        grad_N = self.grads_PN[self.population.policies.index(policy)]
        norm = float(torch.linalg.vector_norm(grad_N))
        finite = bool(np.isfinite([norm, loss]).all())
        if finite and norm > 0:  # otherwise moments of earlier steps would move it
            if norm > self.recipe.grad_norm:
                grad_N *= self.recipe.grad_norm / (norm + 1e-6)
            self.optimizers[policy].step()
        grad_N.zero_()
        return norm if finite else None

    def save(self, path: Path) -> None:
        """Per policy an adapter folder as peft writes it, and its optimizer as safetensors."""
        for policy, weights_N in self._rows_N.items():
            if not bool(weights_N.isfinite().all()):
                raise FloatingPointError(
                    f"policy {policy}: weights of its adapter are not finite; nothing was saved"
                )
        for policy, optimizer in self.optimizers.items():
            peft_folder.save(self.population, policy, path / policy, self.base)
            state: dict[str, Any] = optimizer.state_dict()["state"].get(0, {})
            flat: dict[str, torch.Tensor] = {}
            for key in MOMENTS if state else ():
                tensors = self.population.tensors(policy, self._as_flat(policy, state[key]))
                for name, tensor in tensors.items():
                    flat[f"{name}.{key}"] = tensor.contiguous()
            if state:
                flat["step"] = state["step"]
            save_file(flat, path / policy / "optimizer.safetensors")

    def load(self, path: Path) -> None:
        """The inverse of `save`; the reference stays the policy at the start of the run."""
        for policy, optimizer in self.optimizers.items():
            peft_folder.load(self.population, policy, path / policy)
            flat = moments_in(path / policy)
            state: dict[str, Any] = {"step": flat["step"]} if "step" in flat else {}
            for key in MOMENTS if state else ():
                state[key] = torch.zeros_like(self._rows_N[policy])
                tensors = {n: flat[f"{n}.{key}"] for n in self.population.tensors(policy)}
                self.population.fill(policy, tensors, self._as_flat(policy, state[key]))
            groups = optimizer.state_dict()["param_groups"]
            states = {0: state} if state else {}
            optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _index(self, owned: Sequence[Owned], packs: Packs) -> list[int]:
        """Numbers of the policies of these rows, or of these packs of them."""
        numbers = [self.population.policies.index(policy) for policy, _ in owned]
        return numbers if packs is None else [numbers[pack[0]] for pack in packs]

    def _as_flat(self, policy: str, row_N: torch.Tensor) -> torch.Tensor:
        """A row as if it were the row of this policy in a tensor of all; nothing is copied."""
        return row_N[None].expand(len(self.population.policies), -1)
