"""Preference losses as credit: their gradients are those of the published losses, by autograd."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from comas.learners.logprobs import token_logprobs
from comas.learners.recipe import Recipe
from comas.learners.step import Step
from comas.learners.whole import FullLearner
from comas.objective.credit import given
from comas.objective.losses import plain
from comas.objective.preference import dpo, ipo, log_ratio, pairs, sppo
from comas.testing import tiny_model
from comas.types import Method, Row
from tests.support.learning import rows

BETA = 0.3
ETA = 2.0
LR = 0.005


def closeness(sums: dict[str, torch.Tensor], at_start: dict[str, torch.Tensor]) -> Any:
    return {turn: sums[turn] - at_start[turn] for turn in sums}


def dpo_loss(batch: list[Row], ratio: dict[str, torch.Tensor]) -> torch.Tensor:
    margins = [ratio[batch[a].turn] - ratio[batch[b].turn] for a, b in pairs(batch)]
    return torch.stack([-torch.nn.functional.logsigmoid(BETA * m) for m in margins]).mean()


def ipo_loss(batch: list[Row], ratio: dict[str, torch.Tensor]) -> torch.Tensor:
    margins = [ratio[batch[a].turn] - ratio[batch[b].turn] for a, b in pairs(batch)]
    return torch.stack([(m - 1 / (2 * BETA)) ** 2 for m in margins]).mean()


def sppo_loss(batch: list[Row], ratio: dict[str, torch.Tensor]) -> torch.Tensor:
    terms = [(ratio[row.turn] - ETA * (row.reward - 0.5)) ** 2 for row in batch]
    return torch.stack(terms).mean()


LOSSES = {
    "dpo": (partial(dpo, beta=BETA), dpo_loss),
    "ipo": (partial(ipo, beta=BETA), ipo_loss),
    "sppo": (partial(sppo, eta=ETA), sppo_loss),
}


class Descent:
    """Plain gradient descent, so that weights tell the gradient: SGD in the place of AdamW."""

    def __init__(self, learner: FullLearner) -> None:
        for policy, model in learner.models.items():
            learner.optimizers[policy] = torch.optim.SGD(model.parameters(), lr=LR)  # type: ignore[assignment]


def sums_of(model: Any, batch: list[Row]) -> dict[str, torch.Tensor]:
    """Turn -> log-prob of its whole reply, with gradients."""
    logprobs_BT = token_logprobs(model, None, batch, 0)
    return {row.turn: logprobs_BT[i].sum() for i, row in enumerate(batch)}


def parts_of(batch: list[Row], minibatches: int) -> list[list[Row]]:
    groups = list(dict.fromkeys(row.group for row in batch))
    return [
        [row for row in batch if row.group in groups[k::minibatches]] for k in range(minibatches)
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "m")


@pytest.mark.parametrize("updates", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_published_loss_over_all_updates(
    name: str, updates: int, base: Path
) -> None:
    advantage, loss = LOSSES[name]
    batch = rows(24)
    for i, row in enumerate(batch):
        row.group = f"g{i // 3}"
    ours = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    method = Method(
        lambda: None,  # type: ignore[arg-type, return-value]
        lambda: None,
        advantage,
        plain,
        epochs=updates,
        minibatches=updates,
        fresh=True,
        reference=("solution", "evaluation"),
    )
    learner = FullLearner({"a": ours}, Recipe(LR, grad_norm=1e9), method, 0)
    Descent(learner)
    learner.step({"a": batch})

    at_start = {turn: value.detach() for turn, value in sums_of(theirs, batch).items()}
    optimizer = torch.optim.SGD(theirs.parameters(), lr=LR)
    for _ in range(updates):
        for part in parts_of(batch, updates):
            optimizer.zero_grad()
            ratios = closeness(sums_of(theirs, part), {r.turn: at_start[r.turn] for r in part})
            loss(part, ratios).backward()
            optimizer.step()
    for (key, mine), published in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, published, rtol=1e-6, atol=1e-6, msg=key)


def test_pairs_are_the_best_and_the_worst_of_a_group_that_differ() -> None:
    batch = rows(5)
    for row, group, reward in zip(
        batch, ["a", "a", "a", "b", "b"], [0.5, 1.0, 0.0, 0.3, 0.3], strict=True
    ):
        row.group = group
        row.reward = reward
    assert pairs(batch) == [(1, 2)]
    batch[3].group = None
    batch[4].reward = 0.9
    assert pairs(batch) == [(1, 2)], "a row without a group is no pair"
    batch[3].group = "b"
    batch[3].reward, batch[4].reward = 0.1 + 0.2, 0.3
    assert pairs(batch) == [(1, 2)], "what differs by the rounding of floats is equal"


def test_a_row_without_a_reference_is_an_error_that_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"Method\(reference=...\)"):
        log_ratio(rows(1)[0], "start")


def test_fresh_credit_reads_the_weights_as_they_are_before_each_update() -> None:
    row = rows(1)[0]
    row.now_T = row.logprobs_T + row.mask_T * np.float32(0.5)
    assert log_ratio(row, "step") == pytest.approx(0.5 * row.mask_T.sum())


def test_the_best_and_the_worst_of_a_group_are_paired_wherever_they_stand() -> None:
    batch = rows(5)
    for row, reward in zip(batch, (0.5, 0.1, 0.9, 0.4, 0.3), strict=True):
        row.group, row.reward = "g", reward
    batch[4].group = None
    assert pairs(batch) == [(2, 1)]


def test_minibatches_of_fresh_credit_keep_groups_together() -> None:
    from comas.learners.step import Step

    batch = rows(12)
    for i, row in enumerate(batch):
        row.group = f"g{i % 3}"
    method = Method(
        lambda: None,  # type: ignore[arg-type, return-value]
        lambda: None,
        dpo,
        plain,
        minibatches=2,
        fresh=True,
    )
    weights: Any = SimpleNamespace(recipe=Recipe(1e-3), method=method)
    learning = Step(weights, {"a": batch}, 1.0)
    parts = [[row.group for _, row in learning.minibatch(k)] for k in range(2)]
    assert set(parts[0]).isdisjoint(parts[1])
    assert len(parts[0]) + len(parts[1]) == 12
    for row in batch:
        row.group = None  # each is a group of its own
    assert [len(learning.minibatch(k)) for k in range(2)] == [6, 6]
    weights.method = dataclasses.replace(method, fresh=False)
    apart = Step(weights, {"a": batch}, 1.0)
    assert [len(apart.minibatch(k)) for k in range(2)] == [6, 6]


def test_minibatches_of_an_epoch_hold_every_row_once() -> None:
    batch = rows(7)
    method = Method(*[lambda: None] * 2, given, plain, minibatches=3)
    weights: Any = SimpleNamespace(recipe=Recipe(1e-3), method=method)
    learning = Step(weights, {"a": batch, "b": batch[:2]}, 1.0)
    seen = [(policy, row.turn) for k in range(3) for policy, row in learning.minibatch(k)]
    assert sorted(seen) == sorted((policy, row.turn) for policy, row in learning.owned)


def test_minibatches_mix_what_comes_in_turn_and_are_dealt_anew_in_each_epoch() -> None:
    batch = rows(64)
    for index, row in enumerate(batch):
        row.role = ("solution", "revision")[index % 2]
    method = Method(*[lambda: None] * 2, given, plain, minibatches=2, epochs=2)
    weights: Any = SimpleNamespace(recipe=Recipe(1e-3), method=method)
    learning = Step(weights, {"a": batch}, 1.0)
    parts = [[row for _, row in learning.minibatch(k, epoch)] for epoch in (0, 1) for k in (0, 1)]
    for part in parts:
        assert 8 < sum(row.role == "solution" for row in part) < 24
    assert {row.turn for row in parts[0]} != {row.turn for row in parts[2]}
