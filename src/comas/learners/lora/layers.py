"""What the adapters of several policies add to the output of one linear layer, and its gradients.

Leaves out: where adapters lie, and whose rows a batch has (`population`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comas.learners.lora.blocks import Route, collect, times
from comas.types import UserMistake


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
    """What is added to the output of one linear layer."""

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
        whole = tokens == rows * width if width else tokens % rows == 0
        return self.ordered and tokens > 0 and (whole or (x_BTD.dim() > 3 and len(x_BTD) == rows))

    def mistake(self, shape: Sequence[int], rows: int) -> UserMistake:
        """What to say where rows cannot be told apart in an input of this shape."""
        return UserMistake(
            f"module {self.name} gets {tuple(shape)}, tokens apart from their {rows} rows: set"
            " hosts.<name>.targets to layers of the attention, without it"
        )


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
    a, b = (w.detach()[route.present].to(kind) for w in (layer.a, layer.b))
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
