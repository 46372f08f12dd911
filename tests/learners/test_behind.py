"""Rows that were sampled by weights of an update earlier: they are corrected, and told apart from an
engine that is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from comas.learners.gap import gap_to_engine
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.objective.corrections import token_truncate
from comas.objective.credit import kl_to_go, surprise
from comas.objective.losses import clipped
from comas.objective.preference import sppo
from comas.types import Method, Row
from tests.support.learning import METHOD, rows
from tests.support.models import llama

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Counting(FullLearner):
    """How many rows went through a forward pass that was not the reference's."""

    passed = 0

    def forward(self, owned: Any, reference: bool = False) -> torch.Tensor:
        self.passed += len(owned) * (not reference)
        return super().forward(owned, reference)


def learner(method: Method = METHOD, **recipe: Any) -> Counting:
    return Counting({"p": llama(0)}, Recipe(1e-2, tokens_per_pass=40, **recipe), method, 0)


def said_before(
    behind: int, drift: float, seed: int = 0, reader: FullLearner | None = None
) -> list[Row]:
    """Rows whose tokens were up to so much more or less likely to the `reader`, by default a
    learner as it begins, when they were sampled.
    """
    part = rows(seed=seed)
    rng = np.random.default_rng(1)
    reader = reader or learner()
    for row, logprobs_T in zip(part, reader.logprobs("p", part), strict=True):
        away_T = rng.uniform(-drift, drift, len(logprobs_T)).astype(np.float32)
        row.sampled_logprobs_T = logprobs_T + row.mask_T * away_T
        row.behind = behind
    return part


def weights_after(one: FullLearner, part: Sequence[Row], method: Method = METHOD) -> Any:
    stats = one.step({"p": part}, method)["p"]
    return {n: w.clone() for n, w in one.models["p"].state_dict().items()}, stats


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("drift", [0.001, 1.5])
def test_staleness_is_not_called_a_gap_and_stops_no_run(drift: float) -> None:
    _, stats = weights_after(learner(), said_before(1, drift))
    assert stats["behind"] == 1
    assert 0 < stats["stale_mean"] < stats["stale_max"] <= drift + 1e-5
    assert not {"gap_mean", "gap_max"} & set(stats)
    with pytest.raises(RuntimeError, match="engine not refreshed"):
        weights_after(learner(), said_before(0, 1.5))


def test_the_smallest_staleness_is_corrected_as_a_gap_above_the_tolerance_is() -> None:
    small = 0.001
    free = replace(METHOD, kl={})  # the KL of a gap is the learner's own
    stale, _ = weights_after(learner(free), said_before(1, small), free)
    corrected, _ = weights_after(learner(free, gap_tolerance=0.0), said_before(0, small), free)
    left, _ = weights_after(learner(free), said_before(0, small), free)
    assert equal(stale, corrected)
    assert not equal(stale, left)


def test_weights_are_the_ratio_of_who_learns_to_who_said_it() -> None:
    """The old policy of the loss stays the learner's own: its ratio begins at 1."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(logprobs_BT: Any, batch: Any) -> Any:
        seen.append((logprobs_BT.detach(), batch.old_logprobs_BT))
        return clipped(logprobs_BT, batch)

    part = said_before(1, 1.0)
    one = learner()
    one.step({"p": part}, replace(METHOD, loss=watched))
    for now_BT, old_BT in seen:
        assert torch.allclose(now_BT, old_BT, atol=1e-6)
    known = [(row, row.logprobs_T) for row in part]
    _, importance = gap_to_engine("p", known, one.recipe)
    for row in part:
        assert row.sampled_logprobs_T is not None
        ratio_T = np.exp(row.logprobs_T - row.sampled_logprobs_T)
        expected_T = np.where(row.mask_T, np.minimum(ratio_T, 2.0), 1.0)
        assert importance[row.turn] == pytest.approx(expected_T, rel=1e-5)
        difference_T = row.logprobs_T - row.sampled_logprobs_T
        assert np.array_equal(importance[row.turn], token_truncate(difference_T, row.mask_T, 2.0))


def test_the_kl_and_the_entropy_are_those_of_who_said_it() -> None:
    """Log-probs of newer weights on older words are no KL: where an update made a word unlikely,
    all words before it would be paid for it.
    """
    for behind in (0, 1):
        (row,) = rows(1)
        tokens = int(row.mask_T.sum())
        assert tokens > 1
        row.ref_logprobs_T = np.where(row.mask_T, -1.0, 0.0).astype(np.float32)
        row.sampled_logprobs_T = row.ref_logprobs_T + row.mask_T * np.float32(0.25)
        row.logprobs_T = row.sampled_logprobs_T.copy()
        row.logprobs_T[-1] -= 15.0
        row.behind = behind
        price_T = kl_to_go(row, 1.0)[row.mask_T]
        expected_T = 0.25 * np.arange(tokens, 0, -1) - (0.0 if behind else 15.0)
        assert price_T == pytest.approx(expected_T, abs=1e-5)
        assert bool(surprise(row, 1.0).any()) != bool(behind)


def test_passes_that_do_both_know_it_beforehand() -> None:
    """No gradients are thrown away where stale and other steps take turns."""
    separate = learner(old_logprobs="recomputed")
    at_once = learner(old_logprobs="first_pass")
    for seed, behind in enumerate([0, 1, 1, 0, 1]):
        part = said_before(behind, 0.001, seed, separate)
        again = said_before(behind, 0.001, seed, at_once)
        before = (separate.passed, at_once.passed)
        expected, _ = weights_after(separate, part)
        found, _ = weights_after(at_once, again)
        assert equal(expected, found)
        assert (separate.passed - before[0], at_once.passed - before[1]) == (24, 12)


def test_the_samplers_logprobs_as_old_policy_need_no_weights() -> None:
    """The ratio of the loss has the staleness in it."""
    stale, stats = weights_after(learner(old_logprobs="sampled"), said_before(1, 0.3))
    other, _ = weights_after(learner(old_logprobs="sampled"), said_before(0, 0.3))
    assert equal(stale, other)
    assert stats["behind"] == 1
    assert stats["stale_mean"] > 0.1


def test_losses_of_given_replies_need_no_weights() -> None:
    method = replace(METHOD, advantage=partial(sppo), fresh=True, kl={})
    stale, stats = weights_after(learner(method), said_before(1, 0.3), method)
    exact, _ = weights_after(learner(method), said_before(0, 0.0), method)
    assert equal(stale, exact)
    assert stats["behind"] == 1
