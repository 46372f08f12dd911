"""Importance weights where the engine that sampled is not the learner that trains. numpy only.

Each function takes log(pi_learner / pi_engine) of a row's tokens, shape (T,), and the mask of its
generated tokens, and returns weights (T,) for the terms of its loss, 1 outside the mask. Leaves
out: when a correction is called for (`learners.step`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Correction = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def token_truncate(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """Each token's ratio, at most `bound`: truncated importance sampling."""
    return _ratios(log_ratio_T, mask_T).clip(max=bound)


def token_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """Each token's ratio, and 0 where it is above `bound` or below 1 / bound."""
    ratio_T = _ratios(log_ratio_T, mask_T)
    near_T = (ratio_T <= bound) & (ratio_T >= 1 / bound)
    return np.where(near_T, ratio_T, 0.0)


def sequence_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """The ratio of the whole reply on all its tokens, and 0 where it is above `bound` or below
    1 / bound: exact, and harsh on long replies.
    """
    log_ratio = float(log_ratio_T[mask_T].sum())
    weight = math.exp(log_ratio) if _near(log_ratio, bound) else 0.0
    return np.where(mask_T, weight, 1.0)


def geometric_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """1 on all tokens of a reply, and 0 where the geometric mean of its ratios is above `bound` or
    below 1 / bound: a test that does not depend on length.
    """
    tokens = max(1, int(mask_T.sum()))
    mean = float(log_ratio_T[mask_T].sum()) / tokens
    weight = float(_near(mean, bound))
    return np.where(mask_T, weight, 1.0)


def _ratios(log_ratio_T: np.ndarray, mask_T: np.ndarray) -> np.ndarray:
    """Each token's ratio, 1 outside the mask."""
    generated_T = np.where(mask_T, log_ratio_T, 0.0)
    return np.exp(generated_T)


def _near(log_ratio: float, bound: float) -> bool:
    """Whether a ratio lies within 1 / bound and bound; in logs, since that of a long reply may be
    no float.
    """
    return abs(log_ratio) <= math.log(bound)
