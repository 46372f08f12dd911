"""Passes that make the old log-probs of their rows and learn from them: a forward pass less.

Leaves out: steps of several updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from comas.learners.gradients import apply, gradients
from comas.learners.learning_batch import LearningBatch
from comas.learners.old_policy import corrections_of, fits_in_a_pass, measure_gaps, take_own
from comas.learners.passes import Owned
from comas.objective.credit import in_parts

InParts = Callable[[Sequence[int]], list[np.ndarray]]
"""Places among a policy's rows -> their advantages, (T,) each."""


def at_once(batch: LearningBatch) -> bool:
    """Take the one update of a step in passes of which each makes the old log-probs of its rows,
    their advantages and their gradients; False, with nothing done, where that is not the same as
    with all old log-probs first.

    It is the same where credit gives a row its advantages from rewards and its own log-probs. Which
    policies get importance weights is known at the end only: it is taken to be as in the last step,
    and where it was not, the gradients are thrown away.
    """
    weights = batch.weights
    wanted = weights.recipe.old_logprobs == "first_pass"
    if not wanted or not batch.updates_once or batch.method.fresh:
        return False
    if fits_in_a_pass(weights, batch.owned):  # one forward pass as well, and any credit
        return False
    parts = _credit_in_parts(batch)
    if parts is None:
        return False

    def prepare(chosen: Sequence[Owned], logprobs_BT: torch.Tensor) -> None:
        take_own(chosen, logprobs_BT)
        _credit_own(batch, chosen, parts)
        for policy, row in chosen:
            if policy in weights.corrected:  # expected to have importance weights
                batch.importance |= corrections_of([(row, row.logprobs_T)], weights.recipe)

    expected = weights.corrected & {*batch.policies}
    losses = gradients(batch, batch.owned, prepare)
    batch.importance.clear()
    measure_gaps(batch)
    if weights.corrected & {*batch.policies} == expected:
        apply(batch, losses)
        return True
    for policy in losses:
        weights.finish(policy, math.nan)  # forgets the gradients
    weights.meter.learnt(-len(batch.owned))
    return False


def _credit_in_parts(batch: LearningBatch) -> dict[str, InParts] | None:
    """The credit of each policy for some of its rows; None where there is no such thing."""
    parts: dict[str, InParts] = {}
    for policy in batch.policies:
        part = in_parts(batch.method.advantage, batch.rows[policy], batch.method.kl)
        if part is None:
            return None
        parts[policy] = part
    return parts


def _credit_own(
    batch: LearningBatch, chosen: Sequence[Owned], parts: Mapping[str, InParts]
) -> None:
    """Set the advantages of the rows of a pass, whose log-probs are known."""
    places: dict[str, list[int]] = {}
    for policy, row in chosen:
        places.setdefault(policy, []).append(batch.places[policy][row.turn])
    for policy, own_places in places.items():
        rows = batch.rows[policy]
        for place, advantages_T in zip(own_places, parts[policy](own_places), strict=True):
            rows[place].advantages_T = advantages_T
