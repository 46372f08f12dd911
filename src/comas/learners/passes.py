"""Forward passes: which rows go into one together, and their arrays as tensors.

Leaves out: what is done in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from comas.learners.packs import pack_length, packs_of
from comas.types import Row

SPREAD = 1.25
FULL = 512
"""A pass takes rows up to so many times its shortest, unless it has fewer tokens than FULL: too
small to be worth its calls.
"""

Owned = tuple[str, Row]
"""A row and the policy that said it."""


def passes(owned: Sequence[Owned], tokens_per_pass: int, shares: bool = False) -> list[list[int]]:
    """Row indices of forward passes below `tokens_per_pass`; similar lengths together, so that
    little is padding, and with `shares` rows of one prompt side by side.

    Inside a pass rows are sorted by policy, as `Population` wants them.
    """
    if shares:
        rows = [row for _, row in owned]
        units = packs_of([policy for policy, _ in owned], rows, tokens_per_pass)
        lengths = [pack_length(rows, unit) for unit in units]
    else:
        units = [[i] for i in range(len(owned))]
        lengths = [len(row.token_ids_T) for _, row in owned]
    parts: list[list[int]] = []
    for unit in sorted(range(len(units)), key=lengths.__getitem__):
        if parts and _joins(parts[-1], unit, lengths, tokens_per_pass):
            parts[-1].append(unit)
        else:
            parts.append([unit])
    together = [[i for unit in part for i in units[unit]] for part in parts]
    return [sorted(part, key=lambda i: owned[i][0]) for part in together]


def _joins(part: Sequence[int], unit: int, lengths: Sequence[int], tokens_per_pass: int) -> bool:
    """Whether a unit, which is no shorter than those of the pass, goes with them."""
    if (len(part) + 1) * lengths[unit] > tokens_per_pass:
        return False
    shortest = lengths[part[0]]
    return lengths[unit] <= SPREAD * shortest or len(part) * shortest < FULL


def packs_in(owned: Sequence[Owned], tokens_per_pass: int, shares: bool) -> list[list[int]] | None:
    """The rows of a pass that share a prompt, together; None where none do, or none `shares`."""
    if not shares:
        return None
    policies = [policy for policy, _ in owned]
    packs = packs_of(policies, [row for _, row in owned], tokens_per_pass)
    return packs if len(packs) < len(owned) else None


def pad(arrays: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """Rows of arrays -> a tensor of the shape, dtype and device of `like`, 0 on the right."""
    padded = np.zeros(like.shape, dtype=np.float64 if like.dtype == torch.float64 else np.float32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded).to(like.device)
