"""Linear layers on a CPU with a copy of their weights in oneDNN's own layout, in which products of
few rows are quicker.

Measured on one core: in float32 1.1 to 1.7 times as quick for 8 to 256 rows, in bfloat16 (with
AVX512-BF16) 1.7 to 2.5 times for one row, 1.4 to 1.6 for 8, 1.1 for 64 and more; twice as quick in
wide heads. torch has the operation for compiled models; it is called here as it is, and where it is
missing nothing is packed. Leaves out: other dtypes and devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

LARGEST = 2_000_000_000
"""Parameters of a model above which a second copy of the weights is too much to ask for."""


def can_pack(model: Any) -> bool:
    """Whether this torch can pack the layers of this model on this processor."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return False
    if model.device.type != "cpu" or not packs(model.dtype):
        return False
    return model.num_parameters() <= LARGEST


def packs(dtype: torch.dtype) -> bool:
    """Whether this processor has products of this dtype with packed weights."""
    if dtype == torch.bfloat16:  # not on processors without AVX512
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


class Packed:
    """Copies of a model's linear weights as they are at the first use."""

    def __init__(self, model: Any) -> None:
        linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
        self.layers = [layer for layer in linear if layer.weight.dtype == model.dtype]
        self.weights: list[Tensor] | None = None

    def forget(self) -> None:
        """Copy the weights anew at the next use."""
        self.weights = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """In here the model uses the copies; hooks on its layers work as ever, gradients do not."""
        if self.weights is None:
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self.weights = [reorder(layer.weight.detach()) for layer in self.layers]
        for layer, weight in zip(self.layers, self.weights, strict=True):
            layer.forward = partial(_linear, layer, weight)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward


def _linear(layer: torch.nn.Linear, packed: Tensor, input: Tensor) -> Tensor:
    # of one token in float32 the plain product is the quicker one
    if input.numel() == layer.in_features and input.dtype == torch.float32:
        return torch.nn.functional.linear(input, layer.weight, layer.bias)
    return torch.ops.mkldnn._linear_pointwise(input, packed, layer.bias, "none", [], "")
