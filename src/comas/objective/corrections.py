"""Importance weights where the engine that sampled is not the learner that trains. numpy only.

Each function takes log(pi_learner / pi_engine) of a row's tokens, shape (T,), and the mask of its
generated tokens, and returns weights (T,) for the terms of its loss, 1 outside the mask. Leaves
out: when a correction is called for (`learners.step`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Correction = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def token_truncate(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """Each token's ratio, at most `bound`: truncated importance sampling."""
    ratio_T = np.exp(np.where(mask_T, log_ratio_T, 0.0))
    return ratio_T.clip(max=bound)


def token_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """Each token's ratio, and 0 where it is above `bound` or below 1 / bound."""
    ratio_T = np.exp(np.where(mask_T, log_ratio_T, 0.0))
    return np.where(_near_one(ratio_T, bound), ratio_T, 0.0)


def sequence_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """The ratio of the whole reply on all its tokens, and 0 where it is above `bound` or below
    1 / bound: exact, and harsh on long replies.
    """
    ratio = float(np.exp(log_ratio_T[mask_T].sum()))
    weight = ratio if _near_one(ratio, bound) else 0.0
    return np.where(mask_T, weight, 1.0)


def geometric_mask(log_ratio_T: np.ndarray, mask_T: np.ndarray, bound: float) -> np.ndarray:
    """1 on all tokens of a reply, and 0 where the geometric mean of its ratios is above `bound` or
    below 1 / bound: a test that does not depend on length.
    """
    generated = log_ratio_T[mask_T]
    mean = float(np.exp(generated.mean())) if len(generated) else 1.0
    weight = 1.0 if _near_one(mean, bound) else 0.0
    return np.where(mask_T, weight, 1.0)


def _near_one(ratio: np.ndarray | float, bound: float) -> np.ndarray:
    """Whether ratios lie within 1 / bound and bound."""
    return np.logical_and(np.asarray(ratio) <= bound, np.asarray(ratio) >= 1 / bound)
