"""The gap between the engine that sampled and the learner, and the weights that correct it.

Leaves out: the forms of the correction (`objective.corrections`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comas.learners.recipe import Recipe
from comas.objective import corrections
from comas.objective.corrections import Correction
from comas.types import Row


def gap_to_engine(
    policy: str, rows: Sequence[tuple[Row, np.ndarray]], recipe: Recipe
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """How far the engine's log-probs were from the learner's, and the importance weights that this
    calls for.
    """
    differences = _differences(rows)
    if not differences:  # all words were given: there is no engine to be measured
        return {}, {}
    gaps = np.abs(np.concatenate([d_T[row.mask_T] for row, d_T in differences]))
    stats = {"gap_mean": float(gaps.mean()), "gap_max": float(gaps.max())}
    if stats["gap_mean"] > recipe.gap_limit:
        raise RuntimeError(
            f"policy {policy}: engine and learner disagree by {stats['gap_mean']:.2f} nats per"
            " token: engine not refreshed"
        )
    if stats["gap_mean"] <= recipe.gap_tolerance:
        return stats, {}
    return stats, corrections_of(rows, recipe)


def corrections_of(rows: Sequence[tuple[Row, np.ndarray]], recipe: Recipe) -> dict[str, np.ndarray]:
    """Turn -> importance weights (T,) of rows with the learner's own log-probs; of each row by
    itself.
    """
    correct: Correction = getattr(corrections, recipe.correction)
    return {
        row.turn: correct(difference_T, row.mask_T, recipe.gap_clip)
        for row, difference_T in _differences(rows)
    }


def _differences(rows: Sequence[tuple[Row, np.ndarray]]) -> list[tuple[Row, np.ndarray]]:
    """Learner's minus engine's log-probs (T,) of the rows that an engine has sampled."""
    differences: list[tuple[Row, np.ndarray]] = []
    for row, own_T in rows:
        if row.sampled_logprobs_T is not None:
            differences.append((row, own_T - row.sampled_logprobs_T))
    return differences
