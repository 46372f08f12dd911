"""One learning step, the same for whole models and for adapters: recompute log-probs, credit
turns, collect gradients, apply them.

The old policy is the learner's own recomputation, fixed before the first minibatch, or in a step
of one update made by the passes that learn; the engine's log-probs are kept to measure the gap,
which an importance weight corrects where it exceeds a tolerance. Terms are divided by each
policy's own token count over the whole optimizer step, so that policies may share passes. Leaves
out: who holds weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from comas.learners.at_once import at_once
from comas.learners.gradients import apply, gradients
from comas.learners.learning_batch import LearningBatch, Weights
from comas.learners.old_policy import logprobs, measure_gaps, recompute, refer
from comas.learners.passes import Owned
from comas.seams import out_of_memory
from comas.types import Method, Row


def learn(
    weights: Weights, rows: Mapping[str, Sequence[Row]], method: Method
) -> dict[str, dict[str, float]]:
    """One learning step for these policies together; statistics per policy.

    Where there is no memory left before anything was updated, passes are halved, once, and the step
    is taken anew.
    """
    batch = LearningBatch(weights, rows, method)
    try:
        return _learn(batch)
    except (MemoryError, RuntimeError) as error:
        recipe = weights.recipe
        if not out_of_memory(error) or recipe.halved or batch.applied:
            raise
    # the error, which holds the tensors of the pass, is gone by now
    for policy in batch.policies:
        weights.finish(policy, math.nan)  # forgets the gradients
    whole = min(recipe.tokens_per_pass, sum(len(row.token_ids_T) for _, row in batch.owned))
    weights.recipe = replace(recipe, tokens_per_pass=max(64, whole // 2), halved=True)
    return _learn(LearningBatch(weights, rows, method))


def _learn(batch: LearningBatch) -> dict[str, dict[str, float]]:
    weights = batch.weights
    method = batch.method
    for policy in batch.policies:
        weights.rate(policy, method.lr_scale)
    refer(batch)
    if not at_once(batch):
        recompute(batch)
        measure_gaps(batch)
        update(batch)
    return {policy: batch.stats(policy) for policy in batch.policies}


def update(batch: LearningBatch) -> None:
    """Take all optimizer steps from rows whose old policy is known."""
    method = batch.method
    if not method.fresh:
        credit(batch, batch.owned)
    for _ in range(method.epochs):
        for k in range(method.minibatches):
            part = minibatch(batch, k)
            if method.fresh:
                refresh(batch, part)
                credit(batch, part)
            losses = gradients(batch, part)
            apply(batch, losses)


def minibatch(batch: LearningBatch, k: int) -> list[Owned]:
    """The rows of the k-th update of an epoch; fresh credit never divides a group."""
    count = batch.method.minibatches
    part: list[Owned] = []
    for policy in batch.policies:
        rows = batch.rows[policy]
        chosen = _whole_groups(rows, k, count) if batch.method.fresh else rows[k::count]
        part += [(policy, row) for row in chosen]
    return part


def _whole_groups(rows: Sequence[Row], k: int, count: int) -> list[Row]:
    """The rows of every `count`-th group, from the k-th on; a row without a group is one."""
    keys = [row.turn if row.group is None else f"group {row.group}" for row in rows]
    chosen = set(list(dict.fromkeys(keys))[k::count])
    return [row for row, key in zip(rows, keys, strict=True) if key in chosen]


def refresh(batch: LearningBatch, part: Sequence[Owned]) -> None:
    """Set `now_T` of these rows to their log-probs at this moment, where those have changed."""
    unchanged = not batch.sampled and not any(batch.updates.values())
    if unchanged:
        return
    for (_, row), now_T in zip(part, logprobs(batch.weights, part), strict=True):
        row.now_T = now_T


def credit(batch: LearningBatch, part: Sequence[Owned]) -> None:
    """Set the advantages of these rows, policy by policy."""
    rows_of: dict[str, list[Row]] = {}
    for policy, row in part:
        rows_of.setdefault(policy, []).append(row)
    for rows in rows_of.values():
        advantages = batch.method.advantage(rows, batch.method.kl)
        for row, advantages_T in zip(rows, advantages, strict=True):
            row.advantages_T = advantages_T
