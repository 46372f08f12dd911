"""Rows of several policies, one policy after the other, and the product of each policy's block of
tokens with its own matrix.

Leaves out: whose matrices these are (`population.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

GROUPED: Any = getattr(torch.nn.functional, "grouped_mm", None)
"""Newer than the oldest torch that is supported; `grouped` says where it is used."""


class Route:
    """Which policies the rows of a batch belong to: `counts[p]` rows of policy p, one policy after
    the other.
    """

    def __init__(self, counts: Sequence[int], device: Any) -> None:
        self.rows = sum(counts)
        here = [p for p, n in enumerate(counts) if n]
        self.present = slice(here[0], here[-1] + 1)
        self.even = len({counts[p] for p in range(here[0], here[-1] + 1)}) == 1
        """Whether the policies that are present are neighbours with the same number of rows: then
        blocks are a view.
        """
        self.counts = tuple(counts[self.present])
        self._counts = torch.tensor(self.counts, device=device)
        self._ends_P = torch.tensor(np.cumsum(counts), dtype=torch.int32).to(device)
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
        return GROUPED(x_NI, weights_PIO, offs=route.ends(T))
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
    if GROUPED is None or other.device != device or any(n * dtype.itemsize % 16 for n in widths):
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
        sum_PIO += GROUPED(x_NI.mT, g_NO, offs=route.ends(T))
    else:
        for p, (x, g) in enumerate(
            zip(*(t.split([n * T for n in route.counts]) for t in (x_NI, g_NO)), strict=True)
        ):
            sum_PIO[p] += x.mT @ g
