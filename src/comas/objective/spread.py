"""Rewards that are compared: whether they differ at all, and by how much relative to their spread.

Every division by a spread happens here, because it makes a rounding error as large as any real
difference where nothing differs. Leaves out: which rewards are compared (`credit`, settlements).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-6
"""Difference of two rewards, relative to the largest one (at least 1), up to which they are equal.

Scores come from log-probs in float32: 24 bits, so that a log-prob of -16 is known to 1e-6, and
the probability of a choice to about 2e-7. Adding and averaging them loses no more than that.
"""


def is_flat(values: Sequence[float] | np.ndarray) -> bool:
    """Whether values, shape (N,), are equal but for rounding; True of none and of one."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return True
    scale = max(1.0, float(np.abs(array).max()))
    return bool(np.ptp(array) <= ROUNDING * scale)


def centred(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values minus their mean, float64 of shape (N,); exactly 0 where they are flat, since the mean
    of equal numbers may be off by a rounding error. Whatever the order of the values, the mean is
    the same.
    """
    array = np.asarray(values, dtype=np.float64)
    if is_flat(array):
        return np.zeros_like(array)
    return array - math.fsum(array) / len(array)


def standardised(values: Sequence[float] | np.ndarray, scale: bool = True) -> np.ndarray:
    """Values minus their mean, over their standard deviation (of the N values, not of N - 1),
    float64 of shape (N,); exactly 0 where they are flat.

    Equation 3 of arXiv 2402.03300; `scale = False` leaves the division out (arXiv 2503.20783).
    """
    distances = centred(values)
    if not scale or not distances.any():
        return distances
    variance = math.fsum(distances**2) / len(distances)
    return distances / math.sqrt(variance)
