"""Additions of several policies' adapters to the output of one linear layer, and its gradients;
which linear layers a model has, and in which order they get a batch's tokens.

The rows of a batch lie one policy after the other, and each policy's block of tokens is multiplied
with its own matrix. transformers' `Conv1D` (GPT-2) is a linear layer as well: it keeps its weight
the other way round. Leaves out: where adapters lie, and whose rows a batch has (`population`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grouped_mm
from transformers.pytorch_utils import Conv1D

from comas.seams import in_float64, uploaded
from comas.types import UserMistake


class Route:
    """Policies of the rows of a batch: `counts[p]` rows of policy p, one policy after the other."""

    def __init__(self, counts: Sequence[int], device: Any) -> None:
        self.rows = sum(counts)
        here = [p for p, n in enumerate(counts) if n]
        self.present = slice(here[0], here[-1] + 1)
        self.even = len({counts[p] for p in range(here[0], here[-1] + 1)}) == 1
        """Whether the policies that are present are neighbours with the same number of rows: then
        blocks are a view.
        """
        self.counts = tuple(counts[self.present])
        self._counts = uploaded(torch.tensor(self.counts), device)
        self._ends_P = uploaded(torch.tensor(np.cumsum(counts), dtype=torch.int32), device)
        """Where the block of each policy ends, present or not, at one token per row."""
        self._known: dict[int, Tensor] = {}

    def ends(self, tokens: int) -> Tensor:
        """int32 (P,): where each policy's block of tokens ends, at `tokens` per row."""
        if tokens not in self._known:
            self._known[tokens] = self._ends_P[self.present] * tokens
        return self._known[tokens]

    def spread(self, numbers_P: Tensor, tokens: int) -> Tensor:
        """One number per policy -> one per token."""
        return numbers_P.repeat_interleave(self._counts * tokens, output_size=self.rows * tokens)


def times(x_NI: Tensor, weights_PIO: Tensor, route: Route, T: int) -> Tensor:
    """Each policy's block of tokens times its matrix, (N, O)."""
    if route.even:
        return torch.bmm(x_NI.view(len(weights_PIO), -1, x_NI.shape[1]), weights_PIO).flatten(0, 1)
    if grouped(x_NI, weights_PIO):
        return grouped_mm(x_NI, weights_PIO, offs=route.ends(T))
    blocks = x_NI.split([n * T for n in route.counts])
    return torch.cat([x @ w for x, w in zip(blocks, weights_PIO, strict=True)])


def grouped(x_NI: Tensor, other: Tensor) -> bool:
    """Whether torch has a grouped product for these: not for doubles, which only tests want, nor
    where rows are not whole 16 bytes.

    On a GPU only for bfloat16 on Hopper. On others, and in float32, it reads the ends of the blocks
    back in each layer, which waits for the GPU, while a product per block does not; and on
    Blackwell empty blocks come out as anything (pytorch issue 172439).
    """
    device = x_NI.device
    dtype = x_NI.dtype
    widths = [max(tensor.stride()[-2:]) for tensor in (x_NI, other)]
    if other.device != device or any(n * dtype.itemsize % 16 for n in widths):
        return False
    if device.type == "cuda":
        return dtype == torch.bfloat16 and _hopper(device)
    return device.type == "cpu" and dtype != torch.float64


@cache
def _hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def collect(sum_PIO: Tensor, x_NI: Tensor, g_NO: Tensor, route: Route, T: int) -> None:
    """Add each policy's x^T g to `sum_PIO`."""
    if route.even:
        P = len(sum_PIO)
        sum_PIO += torch.bmm(x_NI.view(P, -1, x_NI.shape[1]).mT, g_NO.view(P, -1, g_NO.shape[1]))
    elif grouped(x_NI, g_NO):
        sum_PIO += grouped_mm(x_NI.mT, g_NO, offs=route.ends(T))
    else:
        tokens = [n * T for n in route.counts]
        for p, (x, g) in enumerate(zip(x_NI.split(tokens), g_NO.split(tokens), strict=True)):
            sum_PIO[p] += x.mT @ g


ROWS = 3
TOKENS = 8
"""Size of the batch on which the order of tokens is tried; rows unlike tokens, so that one is not
taken for the other.
"""


def linear_layers(model: Any) -> dict[str, Any]:
    """Name -> module."""
    return {
        name: module
        for name, module in model.named_modules()
        if name and isinstance(module, (torch.nn.Linear, Conv1D))
    }


def sizes(module: Any) -> tuple[int, int]:
    """How many numbers of a token go in, and how many come out."""
    first, second = module.weight.shape
    return (first, second) if isinstance(module, Conv1D) else (second, first)


def with_change(module: Any, change_OI: Tensor) -> Tensor:
    """The layer's weight, laid out as the layer keeps it, with this, which is in float64, added."""
    change = change_OI.mT if isinstance(module, Conv1D) else change_OI
    weight = module.weight
    return (in_float64(weight) + change).to(weight.dtype).to(weight.device)


def row_by_row(
    model: Any, layers: Mapping[str, Any]
) -> tuple[set[str], dict[str, tuple[int, ...]], list[list[str]]]:
    """Layers that get all tokens of a batch, one row after the other, whatever the shape; with
    its shape each that does not; and layers that were called, in groups that got the same tensor
    one after the other.

    A shape does not tell: tokens that were gathered for an expert may by chance be as many as fit.
    So one row is made of NaNs, which reach whatever depends on that row and nothing else: the
    tokens of a layer's input that are NaN must be that row's. A layer that is not called is in
    neither.
    """
    fine = set(layers)
    odd = dict[str, tuple[int, ...]]()
    groups: list[list[str]] = []
    for row in range(ROWS - 1):  # the last one's tokens are then those that are left
        seen = _nans_of(model, layers, row)
        for name, x_BTD, nan_N in seen:
            own_N = (
                torch.arange(len(nan_N), device=nan_N.device) * ROWS // max(1, len(nan_N)) == row
            )
            if not len(nan_N) or len(nan_N) % (ROWS * TOKENS) or not torch.equal(nan_N, own_N):
                odd.setdefault(name, tuple(x_BTD.shape))
        fine &= {name for name, _, _ in seen}
        groups = _siblings(seen)
    return fine - set(odd), odd, groups


Seen = tuple[str, Tensor, Tensor]
"""Call of a layer: its name, its input, which tokens are NaN."""


def _siblings(seen: Sequence[Seen]) -> list[list[str]]:
    """Names of layers whose calls got the same tensor one after the other, each name once."""
    groups: list[list[str]] = []
    known: set[str] = set()
    last: Tensor | None = None
    for name, x_BTD, _ in seen:
        if name in known:
            continue
        known.add(name)
        if x_BTD is last:
            groups[-1].append(name)
        else:
            groups.append([name])
        last = x_BTD
    return groups


@torch.no_grad()
def _nans_of(model: Any, layers: Mapping[str, Any], row: int) -> list[Seen]:
    """Calls of layers in a batch whose embeddings are NaN in this row.

    Rows are of several lengths, since some models leave padding out.
    """
    words = model.get_input_embeddings()
    device = model.device
    seen: list[Seen] = []

    def note(name: str, inputs: Sequence[Tensor]) -> None:
        seen.append((name, inputs[0], inputs[0].isnan().flatten(0, -2).any(-1)))

    def broken(_: Any, __: Any, out_BTD: Tensor) -> Tensor:
        return out_BTD.index_fill(0, torch.tensor([row], device=out_BTD.device), float("nan"))

    apart = max(1, words.num_embeddings // (ROWS * TOKENS))
    ids_BT = (torch.arange(ROWS * TOKENS, device=device) * apart % words.num_embeddings).view(
        ROWS, TOKENS
    )
    ends_B1 = torch.tensor([[TOKENS - 1], [TOKENS - 3], [TOKENS]], device=device)
    hooks = [
        m.register_forward_pre_hook(lambda _, inputs, name=n: note(name, inputs))
        for n, m in layers.items()
    ]
    hooks.append(words.register_forward_hook(broken))
    try:
        model(
            input_ids=ids_BT,
            attention_mask=(torch.arange(TOKENS, device=device) < ends_B1).long(),
            use_cache=False,
        )
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@dataclass
class Routing:
    """Whose rows are in the batch under way; all layers of a population share one."""

    route: Route | None = None
    """None where the model is its base alone."""
    width: int | None = None
    """Tokens of a row in the forward pass under way; None where none began in `routed` (activations
    that are computed again).
    """


class Layer:
    """Addition to the output of one linear layer."""

    def __init__(self, name: str, scales: list[float], zero: Tensor, routing: Routing) -> None:
        """`scales`: alpha / rank of each policy, 0 where it leaves the layer as it is. `zero` has
        the dtype of adapters and lies where the layer does.
        """
        self.name = name
        self.routing = routing
        self.ordered = False
        """Whether it was seen to get the tokens of a batch one row after the other, so that other
        shapes than (B, T, D) will do.
        """
        self.scales = scales
        different = {scale for scale in scales if scale}
        self.scale: float | Tensor = zero.new_tensor(scales)
        if len(different) == 1:
            self.scale = different.pop()
        self.a: Tensor
        self.b: Tensor
        self.grads: tuple[Tensor, Tensor] | None = None
        self.siblings: Siblings | None = None
        """Layers that read with it; None where each layer reads by itself."""

    def __call__(self, module: Any, inputs: tuple[Tensor, ...], output_BTO: Tensor) -> Tensor:
        route = self.routing.route
        x_BTD = inputs[0]
        if route is None:
            return output_BTO
        plain = x_BTD.dim() == 3 and len(x_BTD) == route.rows
        if not plain and not self._row_by_row(x_BTD, route.rows, self.routing.width):
            raise self.mistake(x_BTD.shape, route.rows)
        if torch.is_grad_enabled() and self.a.requires_grad:
            return Mixed.apply(output_BTO, x_BTD, self.a, self, route)  # type: ignore[return-value]
        add(output_BTO, x_BTD, self, route)
        return output_BTO

    def _row_by_row(self, x_BTD: Tensor, rows: int, width: int | None) -> bool:
        """Whether an input of another shape is all tokens of rows of this width, in the order that
        was seen at the beginning.

        What gathers tokens (experts) and had to take all of them then may take a part of them now:
        they are counted.
        """
        tokens = x_BTD.shape[:-1].numel()
        full_rows = tokens == rows * width if width else tokens % rows == 0
        return (
            self.ordered and tokens > 0 and (full_rows or (x_BTD.dim() > 3 and len(x_BTD) == rows))
        )

    def mistake(self, shape: Sequence[int], rows: int) -> UserMistake:
        """Return the error for an input of this shape, in which rows cannot be told apart."""
        return UserMistake(
            f"module {self.name} gets {tuple(shape)}, tokens apart from their {rows} rows: set"
            " hosts.<name>.targets to layers of the attention, without it"
        )


class Siblings:
    """Layers that read the same tensor one after the other (q, k and v; gate and up).

    The first of them multiplies it with the A of all, times their scales: two calls of a GPU less
    for each of the others, and one for itself. For sampling alone, since a gradient of B needs
    its own layer's product.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self._a_PSI: Tensor
        self._x_BTD: Tensor | None = None
        """The tensor that was read last."""
        self._parts: tuple[Tensor, ...] = ()
        """Per layer scale x A^T, (tokens, rank)."""

    def join(self, dtype: torch.dtype) -> None:
        """From now on the layers read together, with their weights of now, in this dtype."""
        scaled = []
        for layer in self.layers:
            scale = layer.scale
            factor = scale[:, None, None] if isinstance(scale, Tensor) else scale
            scaled.append((layer.a.detach() * factor).to(dtype))
            layer.b = layer.b.to(dtype)
            layer.siblings = self
        self._a_PSI = torch.cat(scaled, 1)

    def part(self) -> None:
        """From now on each layer reads by itself."""
        for layer in self.layers:
            layer.siblings = None
        self._x_BTD = None
        self._parts = ()
        del self._a_PSI

    def read(self, layer: Layer, x_BTD: Tensor, route: Route, T: int) -> Tensor:
        """Scale x A^T of one of the layers, (tokens, rank)."""
        if layer is self.layers[0] or self._x_BTD is not x_BTD:
            h_NS = times(x_BTD.flatten(0, -2), self._a_PSI[route.present].mT, route, T)
            self._parts = h_NS.chunk(len(self.layers), 1)
            self._x_BTD = x_BTD
        h_NR = self._parts[self.layers.index(layer)]
        if layer is self.layers[-1]:
            self._x_BTD = None  # nobody else asks for it
            self._parts = ()
        return h_NR


class Mixed(torch.autograd.Function):
    """Add scale x A^T B x input to the output in place; gradients go to the population at once.

    `a` is among the arguments so that autograd has something to differentiate in the first layer.
    """

    @staticmethod
    def forward(
        ctx: Any, output_BTO: Tensor, x_BTD: Tensor, a: Tensor, layer: Layer, route: Route
    ) -> Tensor:
        h_NR = add(output_BTO, x_BTD, layer, route)
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


def add(output_BTO: Tensor, x_BTD: Tensor, layer: Layer, route: Route) -> Tensor:
    """Add to `output_BTO`; returns scale x A^T, (tokens, rank)."""
    x_ND = x_BTD.flatten(0, -2)
    T = len(x_ND) // route.rows
    kind = x_BTD.dtype
    b = layer.b.detach()[route.present].to(kind)
    if layer.siblings is not None:
        h_NR = layer.siblings.read(layer, x_BTD, route, T)
    else:
        a = layer.a.detach()[route.present].to(kind)
        h_NR = _scaled(times(x_ND, a.mT, route, T), layer, route, T)
    if route.even:
        output_BTO.view(len(b), -1, output_BTO.shape[-1]).baddbmm_(
            h_NR.view(len(b), -1, h_NR.shape[-1]), b
        )
    else:
        output_BTO += times(h_NR, b, route, T).view_as(output_BTO)
    return h_NR


def _scaled(h_NR: Tensor, layer: Layer, route: Route, T: int) -> Tensor:
    if isinstance(layer.scale, Tensor):
        return h_NR.mul_(route.spread(layer.scale[route.present], T).to(h_NR.dtype)[:, None])
    return h_NR.mul_(layer.scale)
