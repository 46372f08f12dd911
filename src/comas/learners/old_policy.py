"""Log-probs of the old policy and of the reference; how far the engine that sampled was from the
former, and the weights that correct it.

Leaves out: passes that make the old log-probs while they learn (`learners.at_once`), the forms of
the correction (`objective.corrections`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from comas.learners.learning_batch import LearningBatch, Weights
from comas.learners.passes import Owned, passes
from comas.learners.recipe import Recipe
from comas.objective import corrections
from comas.objective.corrections import Correction
from comas.types import Row


def refer(batch: LearningBatch) -> None:
    """Set `ref_logprobs_T` of rows whose role has a KL or a reference."""
    roles = {role for role, beta in batch.method.kl.items() if beta}
    roles.update(batch.method.reference)
    referred = [(policy, row) for policy, row in batch.owned if row.role in roles]
    if referred:
        references = logprobs(batch.weights, referred, reference=True)
        for (_, row), reference_T in zip(referred, references, strict=True):
            row.ref_logprobs_T = reference_T


def recompute(batch: LearningBatch) -> None:
    """Set `logprobs_T` of all rows."""
    if batch.sampled:
        _take_sampled(batch)
        return
    if batch.updates_once:
        batch.graphs = _graphs(batch.weights, batch.owned)
    if batch.graphs is None:
        for (_, row), old_T in zip(batch.owned, logprobs(batch.weights, batch.owned), strict=True):
            row.logprobs_T = old_T


def logprobs(weights: Weights, owned: Sequence[Owned], reference: bool = False) -> list[np.ndarray]:
    """Per row float32 log-probs of its generated tokens at its temperature, shape (T,), 0 outside
    the mask.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(owned)
    with torch.no_grad():
        for part in passes(owned, weights.recipe.tokens_per_pass, weights.shares):
            chosen = [owned[i] for i in part]
            logprobs_BT = weights.forward(chosen, reference).cpu().numpy()
            for i, (_, row), logprobs_T in zip(part, chosen, logprobs_BT, strict=True):
                found[i] = logprobs_T[: len(row.token_ids_T)]
            weights.meter.read(len(chosen))
    return found


def _graphs(weights: Weights, owned: Sequence[Owned]) -> list[torch.Tensor] | None:
    """The forward passes of a step that takes only one update, kept for its backward; None where
    they would need too much room.
    """
    if not fits_in_a_pass(weights, owned):
        return None
    parts = passes(owned, weights.recipe.tokens_per_pass, weights.shares)
    graphs = [weights.forward([owned[i] for i in part]) for part in parts]
    for part, graph in zip(parts, graphs, strict=True):
        take_own([owned[i] for i in part], graph)
    return graphs


def fits_in_a_pass(weights: Weights, owned: Sequence[Owned]) -> bool:
    """Whether the passes of these rows together have no more padded tokens than one may have."""
    lengths = [len(row.token_ids_T) for _, row in owned]
    parts = passes(owned, weights.recipe.tokens_per_pass, weights.shares)
    padded = sum(len(part) * max(lengths[i] for i in part) for part in parts)
    return padded <= weights.recipe.tokens_per_pass


def take_own(chosen: Sequence[Owned], logprobs_BT: torch.Tensor) -> None:
    """Set `logprobs_T` of the rows of a pass to what it made."""
    for (_, row), own_T in zip(chosen, logprobs_BT.detach().cpu().numpy(), strict=True):
        row.logprobs_T = own_T[: len(row.token_ids_T)]


def _take_sampled(batch: LearningBatch) -> None:
    """Set `logprobs_T` of all rows to what the engine said; of rows whose words were given, which
    no engine has sampled, to what the learner says.
    """
    for _, row in batch.owned:
        if row.sampled_logprobs_T is not None:
            row.logprobs_T = row.sampled_logprobs_T.copy()
    given = [(policy, row) for policy, row in batch.owned if row.sampled_logprobs_T is None]
    for (_, row), own_T in zip(given, logprobs(batch.weights, given), strict=True):
        row.logprobs_T = own_T


def measure_gaps(batch: LearningBatch) -> None:
    """Measure how far the engine is from the learner, where the old policy is the learner's own."""
    if batch.sampled:
        return
    for policy in batch.policies:
        own = [(row, row.logprobs_T) for row in batch.rows[policy]]
        batch.gaps[policy], importance = gap_to_engine(policy, own, batch.weights.recipe)
        if batch.method.fresh:  # whose losses are of given replies, whoever said them
            importance = {}
        batch.importance |= importance
        batch.weights.corrected.discard(policy)
        if importance:
            batch.weights.corrected.add(policy)


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
