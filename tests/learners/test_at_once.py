"""Passes that make the old log-probs of their rows and learn from them: the numbers of a pass of
its own before, to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comas.learners.recipe import Recipe
from comas.learners.step import truncated_ratios
from comas.learners.whole import FullLearner
from comas.objective.credit import filtered, given, grpo, in_parts, reinforce_pp, rloo
from comas.objective.losses import cispo, gspo
from comas.objective.preference import sppo
from comas.types import Meter, Method, Row
from tests.support import runs
from tests.support.adapters import UNEVEN, learner_of, parts_of, population
from tests.support.learning import METHOD, logprobs_of, rows
from tests.support.models import llama

pytestmark = pytest.mark.usefixtures("one_thread")

CREDITS: Mapping[str, Any] = {
    "reinforce_pp": reinforce_pp,
    "with entropy": partial(reinforce_pp, normalise="role", entropy=0.1, min_rows=3),
    "grpo": grpo,
    "dr. grpo": partial(grpo, scale=False, entropy=0.01),
    "rloo": rloo,
    "given": given,
    "filtered": partial(filtered, above=0.3),
}
"""Credit that a row's own log-probs and all rewards suffice for."""


class Counting(FullLearner):
    """How many rows went through a forward pass that was not the reference's."""

    passed = 0

    def forward(self, owned: Any, packs: Any, reference: bool = False) -> torch.Tensor:
        self.passed += len(owned) * (not reference)
        return super().forward(owned, packs, reference)


def whole(old: Any, method: Method = METHOD, **recipe: Any) -> Counting:
    how = Recipe(1e-2, tokens_per_pass=40, old_logprobs=old, **recipe)
    return Counting({"p": llama(0)}, how, method, 0, meter=Meter())


def sampled(drift: float, learner: FullLearner) -> list[Row]:
    """Rows whose engine said this much less than the learner says, per token."""
    part = rows()
    for row, logprobs_T in zip(part, logprobs_of(learner, "p", part), strict=True):
        row.sampled_logprobs_T = logprobs_T - row.mask_T * np.float32(drift)
    return part


def same_weights(one: FullLearner, other: FullLearner) -> bool:
    return all(
        torch.equal(weight, other.models["p"].state_dict()[name])
        for name, weight in one.models["p"].state_dict().items()
    )


@pytest.mark.parametrize("credit", CREDITS)
def test_a_step_is_the_same_to_the_bit_and_has_a_forward_pass_less(credit: str) -> None:
    method = replace(METHOD, credit=CREDITS[credit])
    before = whole("recomputed", method)
    at_once = whole("first_pass", method)
    for seed in range(2):
        wanted = rows(seed=seed)
        got = rows(seed=seed)
        stats = before.step({"p": wanted})
        assert at_once.step({"p": got}) == stats
        assert stats["p"]["updates"] == 1
        for one, other in zip(wanted, got, strict=True):
            assert one.advantages_T is not None
            assert np.array_equal(one.advantages_T, other.advantages_T)
            assert np.array_equal(one.logprobs_T, other.logprobs_T)
    assert same_weights(before, at_once)
    assert (before.passed, at_once.passed) == (48, 24)


@pytest.mark.parametrize("loss", [gspo, cispo])
@pytest.mark.parametrize("recipe", [{}, {"checkpointing": True}])
def test_other_losses_and_recomputed_activations(loss: Any, recipe: dict[str, Any]) -> None:
    method = replace(METHOD, loss=loss)
    learners = [whole(old, method, **recipe) for old in ("recomputed", "first_pass")]
    for learner in learners:
        learner.step({"p": rows()})
    assert same_weights(*learners)
    assert learners[1].passed == 12


def test_policies_that_share_passes() -> None:
    parts = parts_of(UNEVEN)
    flat: list[torch.Tensor] = []
    stats: list[Any] = []
    for old in ("recomputed", "first_pass"):
        learner = learner_of(population(dtype=torch.float32), old_logprobs=old, tokens_per_pass=40)
        stats.append(learner.step(copy.deepcopy(parts)))
        flat.append(learner.population.flat_PN.clone())
    assert torch.equal(*flat)
    assert stats[0] == stats[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"credit": partial(reinforce_pp, normalise="all")},
        {"credit": sppo},
        {"credit": lambda rows, kl: grpo(rows, kl)},
        {"fresh": True},
        {"epochs": 2},
        {"minibatches": 2},
    ],
)
def test_where_it_would_not_be_the_same_the_old_logprobs_come_first(
    changes: dict[str, Any],
) -> None:
    method = replace(METHOD, **changes)
    learners = [whole(old, method) for old in ("recomputed", "first_pass")]
    for learner in learners:
        learner.step({"p": rows()})
    assert same_weights(*learners)
    assert learners[0].passed == learners[1].passed


def test_importance_weights_are_expected_as_in_the_last_step() -> None:
    """The first step with a gap, and the first without one, are made again; those between not."""
    drifts = [0.0, 0.1, 0.1, 0.0, 0.0]
    made_again = [False, True, False, True, False]
    before = whole("recomputed")
    at_once = whole("first_pass")
    for drift, twice in zip(drifts, made_again, strict=True):
        part = sampled(drift, before)
        at_once.passed = 0
        got = at_once.step({"p": copy.deepcopy(part)})
        assert got == before.step({"p": copy.deepcopy(part)})
        assert at_once.passed == 12 * (3 if twice else 1)
        assert same_weights(before, at_once)
    assert at_once.meter.rows_learnt == 12 * len(drifts)


def test_importance_weights_are_the_truncated_ratios_of_generated_tokens() -> None:
    mask_T = np.array([False, True, True, True])
    log_ratio_T = np.log(np.array([7.0, 4.0, 0.25, 1.5]))
    assert truncated_ratios(log_ratio_T, mask_T, 2.0) == pytest.approx([1.0, 2.0, 0.25, 1.5])


def test_a_stale_engine_stops_the_run_before_anything_has_changed() -> None:
    learner = whole("first_pass")
    before = copy.deepcopy(learner.models["p"].state_dict())
    part = sampled(0.6, learner)
    with pytest.raises(RuntimeError, match="engine not refreshed"):
        learner.step({"p": part})
    assert all(torch.equal(before[n], w) for n, w in learner.models["p"].state_dict().items())


def test_credit_in_parts_knows_what_it_cannot_divide() -> None:
    part = rows()
    assert in_parts(partial(reinforce_pp, normalise="all"), part, {}) is None
    assert in_parts(sppo, part, {}) is None
    divided = in_parts(partial(grpo, scale=True), part, {})
    assert divided is not None
    wanted = grpo(part, {})
    for place in (5, 0, 11):
        assert np.array_equal(divided([place])[0], wanted[place])


def test_shipped_models_keep_their_pass_and_others_learn_at_once(untaught: Path) -> None:
    for keys, wanted in [
        ([], ("recomputed", False)),
        ([f"hosts.home.base={untaught}", "lr=1e-3"], ("first_pass", True)),
    ]:
        team = runs.team(keys)
        recipe = team.hosts["home"].learner.recipe  # type: ignore[attr-defined]
        team.close()
        assert (recipe.old_logprobs, recipe.share_prompts) == wanted
