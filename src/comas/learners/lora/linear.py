"""A model's linear layers as adapters need them: which there are, their sizes, and in which order
they get a batch's tokens.

transformers' `Conv1D` (GPT-2) is one as well: it keeps its weight the other way round. Leaves out:
what is added to them (`population.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from comas.seams import in_float64

ROWS = 3
TOKENS = 8
"""Of the batch on which the order of tokens is tried; unlike each other, so that one is not taken
for the other.
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
) -> tuple[set[str], dict[str, tuple[int, ...]]]:
    """Layers that get all tokens of a batch, one row after the other, whatever the shape; and with
    its shape each that does not.

    A shape does not tell: tokens that were gathered for an expert may by chance be as many as fit.
    So one row is made of NaNs, which reach whatever depends on that row and nothing else: the
    tokens of a layer's input that are NaN must be that row's. A layer that is not called is in
    neither.
    """
    fine = set(layers)
    odd = dict[str, tuple[int, ...]]()
    for row in range(ROWS - 1):  # the last one's tokens are then those that are left
        seen = _nans_of(model, layers, row)
        for name, shape, nan_N in seen:
            own_N = (
                torch.arange(len(nan_N), device=nan_N.device) * ROWS // max(1, len(nan_N)) == row
            )
            if not len(nan_N) or len(nan_N) % (ROWS * TOKENS) or not torch.equal(nan_N, own_N):
                odd.setdefault(name, shape)
        fine &= {name for name, _, _ in seen}
    return fine - set(odd), odd


@torch.no_grad()
def _nans_of(
    model: Any, layers: Mapping[str, Any], row: int
) -> list[tuple[str, tuple[int, ...], Tensor]]:
    """Of a batch whose embeddings are NaN in this row: per call of a layer its name, the shape of
    its input, which tokens are NaN.

    Rows are of several lengths, since some models leave padding out.
    """
    words = model.get_input_embeddings()
    device = model.device
    seen: list[tuple[str, tuple[int, ...], Tensor]] = []

    def note(name: str, inputs: Sequence[Tensor]) -> None:
        seen.append((name, tuple(inputs[0].shape), inputs[0].isnan().flatten(0, -2).any(-1)))

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
