"""N LoRA adapters on one frozen base: one forward and one backward pass for rows of all policies.

Rows of a batch are sorted by policy; each adapted linear layer multiplies every policy's block of
tokens with that policy's A and B in one grouped product, so that nothing of one policy, not even a
NaN, enters another's result. All adapters lie in one tensor (policies, weights): a policy's
gradients, moments and updates are those of one of its rows. LoRA: arXiv 2106.09685, y = W x +
(alpha / rank) B A x. Leaves out: dropout, DoRA, embeddings and heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comas.learners.lora.layers import (
    ROWS,
    Layer,
    Route,
    Routing,
    Siblings,
    linear_layers,
    row_by_row,
    sizes,
    with_change,
)
from comas.seams import AdapterSpec, in_float64
from comas.types import UserMistake

ALIGNED = 8
"""Ranks are padded to a multiple of this on a GPU, whose grouped products want rows of 16 bytes."""


class Population:
    """Adapters of several policies, put into `model` by hooks; outside `routed` the model is its
    base alone.
    """

    def __init__(self, model: Any, specs: Mapping[str, AdapterSpec], seed: int = 0) -> None:
        self.model = model.requires_grad_(False)
        self.specs = dict(specs)
        self.policies = sorted(specs)
        self.targets = {p: targets_of(model, s) for p, s in specs.items()}
        changed = {name for names in self.targets.values() for name in names}
        self.modules = {name: module for name, module in model.named_modules() if name in changed}
        """Modules that adapters change, by name, in the order of `flat_PN`."""
        pad = ALIGNED if model.device.type == "cuda" else 1
        self.rank = -(-max(s.rank for s in specs.values()) // pad) * pad
        size = sum(self.rank * sum(sizes(module)) for module in self.modules.values())
        kind = torch.float64 if model.dtype == torch.float64 else torch.float32
        self.flat_PN = torch.zeros(
            len(specs), -(-size // ALIGNED) * ALIGNED, dtype=kind, device=model.device
        )
        """The adapters: row p is all that policy p may change, zero where its rank or its targets
        are fewer than others'.
        """
        self.grad_PN: Tensor | None = None
        self.start_PN: Tensor | None = None
        """The adapters at the start of the run; None where all of them were zero, so that the base
        itself is the start.
        """
        self.routing = Routing()
        self._changed_P = np.ones(len(specs), dtype=bool)
        """Policies whose adapter is added to the base, (P,)."""
        # a decoder asks for the same counts again and again
        self._route_of = lru_cache(maxsize=1)(partial(Route, device=model.device))
        self.layers = [
            Layer(name, self._scales(name), module.weight.new_empty(0, dtype=kind), self.routing)
            for name, module in self.modules.items()
        ]
        self.siblings: list[Siblings] = []
        """All layers, in groups of those that read the same tensor."""
        self.joins = model.device.type != "cpu"
        """Whether such groups read together while they sample: on a GPU a call costs more than what
        it computes.
        """
        self._use(self.flat_PN)
        for policy in self.policies:
            self._begin(policy, seed)
        for layer in self.layers:
            self.modules[layer.name].register_forward_hook(layer)
        self._try()
        model.get_input_embeddings().register_forward_pre_hook(self._measure)

    @contextmanager
    def routed(
        self, policy_B: Sequence[int] | np.ndarray, reference: bool = False
    ) -> Iterator[None]:
        """In here row b of a batch is of policy number `policy_B[b]`; rows are sorted by it.

        With `reference` as these policies were at the start of the run. Backward passes that
        recompute activations belong in here as well.
        """
        if reference and self.start_PN is None:
            yield
            return
        if (np.diff(policy_B) < 0).any():
            raise ValueError("rows of a population are sorted by policy")
        counts_P = np.bincount(policy_B, minlength=len(self.policies))
        if counts_P[self._changed_P].any():
            self.routing.route = self._route_of(tuple(counts_P.tolist()))
        self.routing.width = None
        if reference and self.start_PN is not None:
            self._use(self.start_PN)
        try:
            yield
        finally:
            self.routing.route = None
            if reference:
                self._use(self.flat_PN)

    def _scales(self, name: str) -> list[float]:
        """alpha / rank of each policy's adapter, 0 where it leaves this module as it is."""
        return [
            self.specs[p].alpha / self.specs[p].rank if name in self.targets[p] else 0.0
            for p in self.policies
        ]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """In here adapters are kept in the base's own dtype, which saves a conversion in every
        layer and step; no gradients. With `joins` layers that read the same tensor do so together.
        On a CPU, policies whose B is zero, as a frozen judge's is, are not added: they are the base
        itself. (A GPU would have to be waited for to know.)
        """
        if self.model.device.type == "cpu":
            changed = [b.any(2).any(1).numpy() for _, b in self._views(self.flat_PN)]
            self._changed_P = np.any(changed, axis=0)
        joined = self.siblings if self.joins else []
        apart = self.model.dtype != self.flat_PN.dtype
        for siblings in joined:
            siblings.join(self.model.dtype)
        if apart and not joined:
            self._use(self.flat_PN.to(self.model.dtype))
        try:
            yield
        finally:
            for siblings in joined:
                siblings.part()
            if apart or joined:
                self._use(self.flat_PN)
            self._changed_P = np.ones(len(self.policies), dtype=bool)

    def collect(self) -> Tensor:
        """From now on backward passes add to this tensor, of the shape of `flat_PN`."""
        if self.grad_PN is None:
            self.grad_PN = torch.zeros_like(self.flat_PN)
            for layer, grads in zip(self.layers, self._views(self.grad_PN), strict=True):
                layer.grads = grads
            self._use(self.flat_PN)
        return self.grad_PN

    def keep_start(self) -> None:
        """Keep the policies as they are: `reference` means these from now on."""
        changing = torch.stack([b.any() for _, b in self._views(self.flat_PN)])
        self.start_PN = self.flat_PN.clone() if changing.any() else None

    @cached_property
    def fingerprint(self) -> str:
        """The base by its names, shapes and first numbers, whatever the dtype in which it was
        loaded; it is frozen.
        """
        hasher = hashlib.sha256()
        for name, weight in self.model.named_parameters():
            hasher.update(f"{name} {tuple(weight.shape)} ".encode())
            hasher.update(weight.detach().flatten()[:64].cpu().bfloat16().float().numpy().tobytes())
        return hasher.hexdigest()[:16]

    def merged(self, policy: str) -> dict[str, Tensor]:
        """Weights of adapted modules with this policy's adapter added: W + (alpha / rank) B A, in
        the base's dtype.
        """
        p = self.policies.index(policy)
        weights = {}
        for layer, (a, b) in zip(self.layers, self._views(self.flat_PN), strict=True):
            change = in_float64(b[p].mT) @ in_float64(a[p]) * layer.scales[p]
            weights[f"{layer.name}.weight"] = with_change(self.modules[layer.name], change)
        return weights

    def tensors(self, policy: str, flat_PN: Tensor | None = None) -> dict[str, Tensor]:
        """`<module>.lora_A` (rank, in) and `<module>.lora_B` (out, rank) of a policy; of another
        tensor of that layout too.
        """
        p = self.policies.index(policy)
        rank = self.specs[policy].rank
        tensors = {}
        views = self._views(self.flat_PN if flat_PN is None else flat_PN)
        for name, (a, b) in zip(self.modules, views, strict=True):
            if name in self.targets[policy]:
                tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"] = a[p, :rank], b[p, :rank].mT
        return tensors

    def fill(
        self, policy: str, tensors: Mapping[str, Tensor], flat_PN: Tensor | None = None
    ) -> None:
        """The inverse of `tensors`; names and shapes must be those."""
        targets = self.tensors(policy, flat_PN)
        if odd := sorted(set(targets) ^ set(tensors)):
            raise UserMistake(
                f"adapter of policy {policy}: {odd[0]} is in"
                f" {'it' if odd[0] in tensors else 'the base'} only"
            )
        for name, target in targets.items():
            if target.shape != tensors[name].shape:
                raise UserMistake(
                    f"adapter of policy {policy}: {name} is {tuple(tensors[name].shape)}, and"
                    f" {tuple(target.shape)} in this base: it was made for another base"
                )
            target.copy_(tensors[name])

    def _views(self, flat_PN: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per layer the stacks A (P, rank, in) and B transposed (P, rank, out)."""
        views = []
        at = 0
        for module in self.modules.values():
            wide, out = sizes(module)
            middle = at + self.rank * wide
            end = middle + self.rank * out
            a = flat_PN[:, at:middle].view(len(flat_PN), self.rank, -1)
            b = flat_PN[:, middle:end].view(len(flat_PN), self.rank, -1)
            views.append((a, b))
            at = end
        return views

    def _use(self, flat_PN: Tensor) -> None:
        learning = flat_PN is self.flat_PN and self.grad_PN is not None
        for layer, (a, b) in zip(self.layers, self._views(flat_PN), strict=True):
            layer.a = a.detach().requires_grad_(learning)
            layer.b = b

    def _begin(self, policy: str, seed: int) -> None:
        """A uniform within 1 / root of its inputs, as usual for LoRA; B zero.

        Depends on seed, policy and module alone.
        """
        for name, tensor in self.tensors(policy).items():
            if name.endswith("lora_A"):
                key = hashlib.sha256(f"{seed} {policy} {name}".encode()).digest()
                draw = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
                tensor.copy_(
                    torch.from_numpy(
                        draw.uniform(-1, 1, tuple(tensor.shape)) / tensor.shape[1] ** 0.5
                    )
                )

    @torch.no_grad()
    def _try(self) -> None:
        """Some layers see tokens apart from their rows (experts): found out here, before one
        policy's tokens go to another.
        """
        fine, odd, groups = row_by_row(self.model, self.modules)
        if odd:  # NaNs of the base's own look like tokens of other rows
            weights = self.model.named_parameters()
            broken = [name for name, weight in weights if not bool(weight.isfinite().all())]
            if broken:
                raise UserMistake(
                    f"base {self.model.config.name_or_path!r}: its weights have numbers that are"
                    f" not finite, in {broken[0]} and {len(broken) - 1} more: take it anew from"
                    " where it is from"
                )
        for layer in self.layers:
            layer.ordered = layer.name in fine
            if layer.name in odd:
                raise layer.mistake(odd[layer.name], ROWS)
        layer_of = {layer.name: layer for layer in self.layers}
        uncalled = [[name] for name in layer_of if not any(name in group for group in groups)]
        self.siblings = [
            Siblings([layer_of[name] for name in group]) for group in groups + uncalled
        ]

    def _measure(self, _: Any, inputs: tuple[Tensor, ...]) -> None:
        if self.routing.route is not None:
            self.routing.width = inputs[0].shape[-1] if inputs else None


def targets_of(model: Any, spec: AdapterSpec) -> set[str]:
    """Names of the modules that an adapter of this shape changes; an error where there are none
    such.
    """
    if spec.rank < 1:
        raise UserMistake(f"rank {spec.rank}: an adapter has at least rank 1")
    shared = {id(m) for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    modules = {n: m for n, m in model.named_modules() if n}
    linear = {n for n, m in linear_layers(model).items() if id(m) not in shared}
    if spec.targets is None:
        if not linear:
            raise UserMistake(
                f"{type(model).__name__} has no linear layers to adapt: set"
                " hosts.<name>.learner=full"
            )
        return linear
    chosen: set[str] = set()
    for target in spec.targets:
        matching = {n for n in modules if n == target or n.endswith(f".{target}")}
        if not matching:
            layer_names = ", ".join(sorted({n.rpartition(".")[2] for n in linear}))
            raise UserMistake(
                f"targets: {type(model).__name__} has no module {target!r}; its linear layers are"
                f" {layer_names}"
            )
        for name in sorted(matching):
            if id(modules[name]) in shared:
                raise UserMistake(
                    f"targets: {name} is the embedding or the head, which all agents of a host"
                    " share"
                )
            if name not in linear:
                raise UserMistake(
                    f"targets: {name} is a {type(modules[name]).__name__}, not a linear layer"
                )
        chosen |= matching
    return chosen
