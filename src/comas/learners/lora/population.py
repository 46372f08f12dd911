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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from comas.learners.lora.blocks import Route, collect, takes, times, traced
from comas.learners.lora.linear import ROWS, linear_layers, row_by_row, sizes, with_change
from comas.types import UserMistake

ALIGNED = 8
"""Ranks are padded to a multiple of this on a GPU, whose grouped products want rows of 16 bytes."""


@dataclass(frozen=True)
class Spec:
    """The shape of one policy's adapter."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None
    """Names of linear layers, or ends of names (`q_proj`); None is all of them but the head."""


class Population:
    """Adapters of several policies, put into `model` by hooks; outside `routed` the model is its
    base alone.
    """

    def __init__(self, model: Any, specs: Mapping[str, Spec], seed: int = 0) -> None:
        self.model = model.requires_grad_(False)
        self.specs = dict(specs)
        self.policies = sorted(specs)
        self.targets = {p: targets_of(model, s) for p, s in specs.items()}
        wanted = {name for names in self.targets.values() for name in names}
        self.names = [name for name, _ in model.named_modules() if name in wanted]
        pad = ALIGNED if model.device.type == "cuda" else 1
        self.rank = -(-max(s.rank for s in specs.values()) // pad) * pad
        modules = [model.get_submodule(n) for n in self.names]
        size = sum(self.rank * sum(sizes(m)) for m in modules)
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
        self.route: Route | None = None
        self.width: int | None = None
        """Tokens of a row in the forward pass under way; None where none began in here (activations
        that are computed again).
        """
        self._last: tuple[tuple[int, ...], Route] | None = None
        self.layers = [_Layer(self, n, m) for n, m in zip(self.names, modules, strict=True)]
        self._use(self.flat_PN)
        for policy in self.policies:
            self._begin(policy, seed)
        for layer, module in zip(self.layers, modules, strict=True):
            module.register_forward_hook(layer)
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
        self.route = self._route_of(np.bincount(policy_B, minlength=len(self.policies)))
        self.width = None
        if reference and self.start_PN is not None:
            self._use(self.start_PN)
        try:
            yield
        finally:
            self.route = None
            if reference:
                self._use(self.flat_PN)

    def _route_of(self, counts_P: np.ndarray) -> Route:
        """Made anew only where the counts are others than the last time: a decoder asks for the
        same ones again and again.
        """
        counts = tuple(counts_P.tolist())
        if self._last is None or self._last[0] != counts:
            self._last = counts, Route(counts, self.model.device)
        return self._last[1]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """In here adapters are kept in the base's own dtype, which saves a conversion in every
        layer and step; no gradients.
        """
        apart = self.model.dtype != self.flat_PN.dtype
        if apart:
            self._use(self.flat_PN.to(self.model.dtype))
        try:
            yield
        finally:
            if apart:
                self._use(self.flat_PN)

    def collect(self) -> Tensor:
        """From now on backward passes add to this tensor, of the shape of `flat_PN`."""
        if self.grad_PN is None:
            self.grad_PN = torch.zeros_like(self.flat_PN)
            for layer, grads in zip(self.layers, self._views(self.grad_PN), strict=True):
                layer.grads = grads
            self._use(self.flat_PN)
        return self.grad_PN

    def keep_start(self) -> None:
        """What `reference` means from now on is the policies as they are."""
        zero = not any(bool(b.any()) for _, b in self._views(self.flat_PN))
        self.start_PN = None if zero else self.flat_PN.clone()

    @cached_property
    def fingerprint(self) -> str:
        """The base by its names, shapes and first numbers, whatever the dtype in which it was
        loaded; it is frozen.
        """
        made = hashlib.sha256()
        for name, weight in self.model.named_parameters():
            made.update(f"{name} {tuple(weight.shape)} ".encode())
            made.update(
                weight.detach().flatten()[:64].to("cpu", torch.bfloat16).float().numpy().tobytes()
            )
        return made.hexdigest()[:16]

    def merged(self, policy: str) -> dict[str, Tensor]:
        """Weights of adapted modules with this policy's adapter added: W + (alpha / rank) B A, in
        the base's dtype.
        """
        p = self.policies.index(policy)
        found = {}
        for layer, (a, b) in zip(self.layers, self._views(self.flat_PN), strict=True):
            change = b[p].mT.to(torch.float64) @ a[p].to(torch.float64) * layer.scales[p]
            found[f"{layer.name}.weight"] = with_change(
                self.model.get_submodule(layer.name), change
            )
        return found

    def tensors(self, policy: str, flat_PN: Tensor | None = None) -> dict[str, Tensor]:
        """`<module>.lora_A` (rank, in) and `<module>.lora_B` (out, rank) of a policy; of another
        tensor of that layout too.
        """
        p = self.policies.index(policy)
        rank = self.specs[policy].rank
        found = {}
        for name, (a, b) in zip(
            self.names, self._views(self.flat_PN if flat_PN is None else flat_PN), strict=True
        ):
            if name in self.targets[policy]:
                found[f"{name}.lora_A"], found[f"{name}.lora_B"] = a[p, :rank], b[p, :rank].mT
        return found

    def fill(
        self, policy: str, tensors: Mapping[str, Tensor], flat_PN: Tensor | None = None
    ) -> None:
        """The inverse of `tensors`; names and shapes must be those."""
        own = self.tensors(policy, flat_PN)
        if odd := sorted(set(own) ^ set(tensors)):
            raise UserMistake(
                f"adapter of policy {policy}: {odd[0]} is in"
                f" {'it' if odd[0] in tensors else 'the base'} only"
            )
        for name, there in own.items():
            if there.shape != tensors[name].shape:
                raise UserMistake(
                    f"adapter of policy {policy}: {name} is {tuple(tensors[name].shape)}, and"
                    f" {tuple(there.shape)} in this base: it was made for another base"
                )
            there.copy_(tensors[name])

    def _views(self, flat_PN: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per layer the stacks A (P, rank, in) and B transposed (P, rank, out)."""
        made = []
        at = 0
        P = len(flat_PN)
        for name in self.names:
            wide, out = sizes(self.model.get_submodule(name))
            middle = at + self.rank * wide
            end = middle + self.rank * out
            made.append(
                (
                    flat_PN[:, at:middle].view(P, self.rank, -1),
                    flat_PN[:, middle:end].view(P, self.rank, -1),
                )
            )
            at = end
        return made

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
        # no contents that could be mixed up: shapes are all that is asked for
        if isinstance(self.flat_PN, FakeTensor):
            for layer in self.layers:
                layer.ordered = True
            ids = torch.ones(len(self.policies), 2, dtype=torch.long, device=self.model.device)
            with self.routed(range(len(self.policies))):
                self.model(input_ids=ids, use_cache=False)
            return
        fine, odd = row_by_row(
            self.model, {layer.name: self.model.get_submodule(layer.name) for layer in self.layers}
        )
        for layer in self.layers:
            layer.ordered = layer.name in fine
            if layer.name in odd:
                raise layer.mistake(odd[layer.name], ROWS)

    def _measure(self, _: Any, inputs: tuple[Tensor, ...]) -> None:
        if self.route is not None and not torch.compiler.is_compiling():
            self.width = inputs[0].shape[-1] if inputs else None


class _Layer:
    """What is added to the output of one linear layer."""

    def __init__(self, population: Population, name: str, module: Any) -> None:
        self.population = population
        self.name = name
        self.ordered = False
        """Whether it was seen to get the tokens of a batch one row after the other, so that other
        shapes than (B, T, D) will do.
        """
        specs = population.specs
        self.scales = [
            specs[p].alpha / specs[p].rank if name in population.targets[p] else 0.0
            for p in population.policies
        ]
        one = {s for s in self.scales if s}
        self.scale: float | Tensor = (
            one.pop()
            if len(one) == 1
            else torch.tensor(
                self.scales, dtype=population.flat_PN.dtype, device=module.weight.device
            )
        )
        self.direct = takes(
            (*sizes(module), population.rank), module.weight.dtype, module.weight.device
        )
        self.a: Tensor
        self.b: Tensor
        self.grads: tuple[Tensor, Tensor] | None = None

    def __call__(self, module: Any, inputs: tuple[Tensor, ...], output_BTO: Tensor) -> Tensor:
        route = self.population.route
        x_BTD = inputs[0]
        if route is None:
            return output_BTO
        if torch.compiler.is_compiling():
            return self._traced(route, x_BTD, output_BTO)
        if (x_BTD.dim() != 3 or len(x_BTD) != route.rows) and not self._row_by_row(
            x_BTD, route.rows, self.population.width
        ):
            raise self.mistake(x_BTD.shape, route.rows)
        if torch.is_grad_enabled() and self.a.requires_grad:
            return _Mixed.apply(output_BTO, x_BTD, self.a, self, route)  # type: ignore[return-value]
        _add(output_BTO, x_BTD, self, route)
        return output_BTO

    def _row_by_row(self, x_BTD: Tensor, rows: int, width: int | None) -> bool:
        """Whether an input of another shape is all tokens of rows of this width, in the order that
        was seen at the beginning.

        What gathers tokens (experts) and had to take all of them then may take a part of them now:
        they are counted.
        """
        tokens = x_BTD.shape[:-1].numel()
        whole = tokens == rows * width if width else tokens % rows == 0
        return self.ordered and tokens > 0 and (whole or (x_BTD.dim() > 3 and len(x_BTD) == rows))

    def mistake(self, shape: Sequence[int], rows: int) -> UserMistake:
        """What to say where rows cannot be told apart in an input of this shape."""
        return UserMistake(
            f"module {self.name} gets {tuple(shape)}, tokens apart from their {rows} rows: set"
            " hosts.<name>.targets to layers of the attention, without it"
        )

    def _traced(self, route: Route, x_BTD: Tensor, output_BTO: Tensor) -> Tensor:
        """The same of one token per row without gradients, in nothing but tensors: any number of
        rows per policy is one graph.

        Where keys and values are made of a compressed cache, a row has as many tokens as that: (B,
        1, T, D).
        """
        scale = self.scale
        kind = x_BTD.dtype
        a = self.a.detach().to(kind)
        b = self.b.detach().to(kind)
        b = b * (scale.to(kind)[:, None, None] if isinstance(scale, Tensor) else scale)
        if x_BTD.dim() != 3 and not self._row_by_row(x_BTD, len(route.like_B), 1):
            raise self.mistake(x_BTD.shape, len(route.like_B))
        T = x_BTD.shape[1:-1].numel()
        h_NR = traced(x_BTD.flatten(0, -2), a.mT, route, T, self.direct)
        return output_BTO + traced(h_NR, b, route, T, self.direct).view_as(output_BTO)


class _Mixed(torch.autograd.Function):
    """output + scale x A^T B, in place; gradients of A and B are added to the population's tensor
    at once.

    `a` is among the arguments so that autograd knows of something to differentiate, also in the
    first layer.
    """

    @staticmethod
    def forward(
        ctx: Any, output_BTO: Tensor, x_BTD: Tensor, a: Tensor, layer: _Layer, route: Route
    ) -> Tensor:
        h_NR = _add(output_BTO, x_BTD, layer, route)
        ctx.mark_dirty(output_BTO)
        ctx.save_for_backward(x_BTD, h_NR)
        ctx.layer = layer
        ctx.route = route
        return output_BTO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g_BTO,), (x_BTD, h_NR) = grads, ctx.saved_tensors
        layer = ctx.layer
        route = ctx.route
        g_NO = g_BTO.contiguous().flatten(0, -2)
        x_ND = x_BTD.flatten(0, -2)
        T = len(x_ND) // route.rows
        a, b = (w[route.present].to(x_ND.dtype) for w in (layer.a, layer.b))
        gh_NR = _scaled(times(g_NO, b.mT, route, T), layer, route, T)
        grad_a, grad_b = (w[route.present] for w in layer.grads)
        collect(grad_a, gh_NR, x_ND, route, T)
        collect(grad_b, h_NR, g_NO, route, T)
        needed = ctx.needs_input_grad[1]
        return g_BTO, times(gh_NR, a, route, T).view_as(x_BTD) if needed else None, None, None, None


def _add(output_BTO: Tensor, x_BTD: Tensor, layer: _Layer, route: Route) -> Tensor:
    """Add to `output_BTO`; returns scale x A^T, (tokens, rank)."""
    x_ND = x_BTD.flatten(0, -2)
    T = len(x_ND) // route.rows
    kind = x_BTD.dtype
    a, b = (w.detach()[route.present].to(kind) for w in (layer.a, layer.b))
    h_NR = _scaled(times(x_ND, a.mT, route, T), layer, route, T)
    if route.even:
        output_BTO.view(len(b), -1, output_BTO.shape[-1]).baddbmm_(
            h_NR.view(len(b), -1, h_NR.shape[-1]), b
        )
    else:
        output_BTO += times(h_NR, b, route, T).view_as(output_BTO)
    return h_NR


def _scaled(h_NR: Tensor, layer: _Layer, route: Route, T: int) -> Tensor:
    if isinstance(layer.scale, Tensor):
        return h_NR.mul_(route.spread(layer.scale[route.present], T).to(h_NR.dtype)[:, None])
    return h_NR.mul_(layer.scale)


def targets_of(model: Any, spec: Spec) -> set[str]:
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
    found: set[str] = set()
    for target in spec.targets:
        named = {n for n in modules if n == target or n.endswith(f".{target}")}
        if not named:
            known = ", ".join(sorted({n.rpartition(".")[2] for n in linear}))
            raise UserMistake(
                f"targets: {type(model).__name__} has no module {target!r}; its linear layers are"
                f" {known}"
            )
        for name in sorted(named):
            if id(modules[name]) in shared:
                raise UserMistake(
                    f"targets: {name} is the embedding or the head, which all agents of a host"
                    " share"
                )
            if name not in linear:
                raise UserMistake(
                    f"targets: {name} is a {type(modules[name]).__name__}, not a linear layer"
                )
        found |= named
    return found
