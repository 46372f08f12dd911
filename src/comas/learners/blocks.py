"""A product per policy for torch.compile, which follows neither a number of tokens per policy nor, in float32, torch's own.

Leaves out: everything that runs uncompiled (`population.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUPED: Any = getattr(torch.nn.functional, "grouped_mm", None)
"""Newer than the oldest torch that is supported."""


def blocks(x_NI: Tensor, weights_PIO: Tensor, ends_P: Tensor) -> Tensor:
    """Tokens of policy p, those before `ends_P[p]` and behind the policy before, times its matrix: (N, O)."""
    if GROUPED is not None and x_NI.dtype == torch.bfloat16 and x_NI.device.type == "cuda":  # ranks are padded for it there
        return GROUPED(x_NI, weights_PIO, offs=ends_P)
    return _opaque(x_NI, weights_PIO, ends_P)


@torch.library.custom_op("comas::blocks", mutates_args=())
def _opaque(x_NI: Tensor, weights_PIO: Tensor, ends_P: Tensor) -> Tensor:
    if GROUPED is not None and x_NI.dtype != torch.float64 and x_NI.device.type == "cpu":
        return GROUPED(x_NI, weights_PIO, offs=ends_P).contiguous()  # its rows begin at multiples of 16 bytes
    starts = [0, *ends_P.tolist()]
    return torch.cat([x_NI[a:b] @ w for a, b, w in zip(starts, starts[1:], weights_PIO, strict=False)])


@_opaque.register_fake
def _(x_NI: Tensor, weights_PIO: Tensor, ends_P: Tensor) -> Tensor:
    return x_NI.new_empty(x_NI.shape[0], weights_PIO.shape[-1])
