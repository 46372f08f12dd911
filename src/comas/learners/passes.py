"""Forward passes: which rows go into one together, and their arrays as tensors.

Leaves out: what is done in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from comas.types import Row

SPREAD = 1.25
FULL = 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too
small to be worth its calls.
"""

Owned = tuple[str, Row]
"""A row and the policy that said it."""


def passes(owned: Sequence[Owned], tokens_per_pass: int) -> list[list[int]]:
    """Row indices of forward passes below `tokens_per_pass`; similar lengths together, so that
    little is padding.

    Inside a pass rows are sorted by policy, as `Population` wants them.
    """
    lengths = [len(row.token_ids_T) for _, row in owned]
    parts: list[list[int]] = []
    for i in sorted(range(len(owned)), key=lengths.__getitem__):
        if parts and _joins(parts[-1], i, lengths, tokens_per_pass):
            parts[-1].append(i)
        else:
            parts.append([i])
    return [sorted(part, key=lambda i: owned[i][0]) for part in parts]


def _joins(part: Sequence[int], i: int, lengths: Sequence[int], tokens_per_pass: int) -> bool:
    """Whether row i, which is no shorter than those of the pass, goes with them."""
    if (len(part) + 1) * lengths[i] > tokens_per_pass:
        return False
    shortest = lengths[part[0]]
    return lengths[i] <= SPREAD * shortest or len(part) * shortest < FULL


def pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    padded = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded).to(like.device)
