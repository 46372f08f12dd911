"""Many adapters on one base: a shared step is the step of each alone, sampling is what is trained,
nobody reaches another.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comas.learners import logprobs as chunks
from comas.learners import step as old_policy
from comas.learners.lora import layers
from comas.learners.lora import layers as blocks
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.types import Row
from tests.support.adapters import (
    EVEN,
    SPECS,
    UNEVEN,
    distance,
    gradients,
    learner_of,
    parts_of,
    population,
)
from tests.support.learning import METHOD, logprobs_of, rows
from tests.support.models import llama

pytestmark = pytest.mark.usefixtures("one_thread")


CASES = [
    (UNEVEN, {}, {}),
    (EVEN, {}, {}),
    (UNEVEN, {"tokens_per_pass": 40}, {}),
    (UNEVEN, {"checkpointing": True}, {}),
    (EVEN, {"checkpointing": True, "tokens_per_pass": 64}, {}),
    ({"b": 6}, {}, {}),
    (UNEVEN, {}, {"epochs": 2, "minibatches": 3}),
    (EVEN, {}, {"epochs": 2, "minibatches": 2}),
]


@pytest.mark.parametrize(
    ("counts", "recipe", "method", "dtype", "tolerance"),
    [
        *((*case, torch.float64, 1e-10) for case in CASES),
        *((*case, torch.float32, 1e-4) for case in CASES[3:5]),
    ],
)
def test_a_shared_step_has_the_gradients_of_separate_steps(
    counts: dict[str, int],
    recipe: dict[str, Any],
    method: dict[str, Any],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    parts = parts_of(counts)
    how = replace(METHOD, **method)
    together = gradients(population(dtype=dtype), parts, how, **recipe)
    assert {p: len(steps) for p, steps in together.items()} == dict.fromkeys(
        parts, how.epochs * how.minibatches
    )
    for p in parts:
        alone = gradients(population(dtype=dtype, only=[p]), {p: parts[p]}, how, **recipe)
        assert distance(together[p], alone[p]) < tolerance


@pytest.mark.parametrize("counts", [UNEVEN, EVEN])
def test_one_misrouted_row_is_seen(counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(counts)
    index = AdapterLearner._index
    monkeypatch.setattr(
        AdapterLearner,
        "_index",
        lambda self, *given: [*index(self, *given)[1:], index(self, *given)[-1]],
    )
    together = gradients(population(), parts)
    monkeypatch.undo()
    apart = {
        p: distance(together[p], gradients(population(only=[p]), {p: parts[p]})[p]) for p in parts
    }
    assert max(apart.values()) > 1e-3


def test_the_chunked_head_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(UNEVEN)
    wanted = gradients(population(), parts)
    monkeypatch.setattr(chunks, "LOGITS", 50 * 7)
    monkeypatch.setattr("comas.learners.lora.learner.LOGITS", 0)
    calls: list[int] = []
    real = chunks._in_chunks
    monkeypatch.setattr(
        chunks, "_in_chunks", lambda *given: calls.append(len(given[1])) or real(*given)
    )
    got = gradients(population(), parts)
    assert calls
    assert max(distance(got[p], wanted[p]) for p in parts) < 1e-10


def test_rates_clipping_moments_and_steps_are_each_policys_own() -> None:
    """AdamW by hand: its first step is the sign of the gradient times lr, so the second is compared
    as well.
    """
    parts = parts_of(EVEN)
    rates = {"b": 3e-3, "c": 5e-4}
    recipe: dict[str, Any] = {"rates": rates, "grad_norm": 0.01, "weight_decay": 0.1}
    made = population()
    learner = learner_of(made, **recipe)
    stats = [
        learner.step(copy.deepcopy({p: parts[p] for p in here}))
        for here in (parts, ["b", "d"], parts)
    ]
    assert {s["grad_norm"] > 0.01 for part in stats for s in part.values()} == {True}
    assert [stats[0][p]["lr"] for p in "abcd"] == [1e-2, 3e-3, 5e-4, 1e-2]
    for p in parts:
        single = population(only=[p])
        alone = learner_of(single, **recipe)
        for _ in range(3 if p in "bd" else 2):
            alone.step({p: copy.deepcopy(parts[p])})
        for name, tensor in single.tensors(p).items():
            torch.testing.assert_close(made.tensors(p)[name], tensor, rtol=1e-8, atol=1e-10)
            assert not torch.equal(tensor, population().tensors(p)[name])


@pytest.mark.parametrize("bound", [0.01, 1e3])
def test_a_gradient_is_shortened_to_its_bound_and_never_made_longer(bound: float) -> None:
    learner = learner_of(population(), grad_norm=bound)
    for policy, stats in learner.step(parts_of(EVEN)).items():
        (state,) = learner.optimizers[policy].state.values()
        applied = float(state["exp_avg"].norm()) / (1 - 0.9)
        assert applied == pytest.approx(min(bound, stats["grad_norm"]), rel=1e-3)


def test_a_step_without_a_gradient_moves_no_adapter() -> None:
    made = population()
    learner = learner_of(made)
    learner.step(parts_of(EVEN))
    before = made.flat_PN.clone()
    nothing = lambda rows, kl: [np.zeros(len(row.token_ids_T)) for row in rows]  # noqa: E731
    learner.method = replace(METHOD, kl={}, credit=nothing)
    stats = learner.step(parts_of(EVEN))
    assert {each["grad_norm"] for each in stats.values()} == {0.0}
    assert torch.equal(made.flat_PN, before)


def test_padding_of_ranks_and_targets_stays_zero() -> None:
    made = population()
    unused = torch.ones_like(made.flat_PN)
    for p in SPECS:
        for tensor in made.tensors(p, unused).values():
            tensor.zero_()
    learner = learner_of(made, weight_decay=0.1)
    for _ in range(2):
        learner.step(parts_of(EVEN))
    assert unused.any()
    assert not made.flat_PN[unused.bool()].any()


def test_an_adapter_without_rows_does_not_move() -> None:
    made = population()
    learner = learner_of(made, weight_decay=0.1)
    learner.step(parts_of(EVEN))
    before = made.flat_PN.clone()
    assert set(learner.step({**parts_of(UNEVEN), "c": []})) == {"a", "b", "d"}
    moved = {p for i, p in enumerate(made.policies) if not torch.equal(made.flat_PN[i], before[i])}
    assert moved == {"a", "b", "d"}
    assert learner.step({"c": []}) == {}


@pytest.mark.parametrize("reference", [False, True])
def test_a_zero_adapter_is_the_base_and_the_reference_is_the_start(reference: bool) -> None:
    part = rows()
    base = logprobs_by_hand(llama(7).double(), part)
    zero = learner_of(population(spread=0.0))
    full = learner_of(population())
    told = [
        old_policy.logprobs(learner, [("b", r) for r in part], reference=reference)
        for learner in (zero, full)
    ]
    np.testing.assert_array_equal(np.concatenate(told[0]), np.concatenate(base))
    assert np.abs(np.concatenate(told[1]) - np.concatenate(base)).max() > 0.1
    for learner, before in ((zero, told[0]), (full, told[1])):
        learner.step({"b": rows(seed=3), "c": rows(seed=4)})
        after = np.concatenate(
            old_policy.logprobs(learner, [("b", r) for r in part], reference=reference)
        )
        assert np.array_equal(after, np.concatenate(before)) == reference


def logprobs_by_hand(model: Any, part: Sequence[Row]) -> list[np.ndarray]:
    """As `token_logprobs` makes them, of a plain model."""
    with torch.no_grad():
        got = chunks.token_logprobs(model, None, part, 0).numpy()
    return [g[: len(r.token_ids_T)] for g, r in zip(got, part, strict=True)]


def test_a_policy_is_the_base_with_its_merged_weights() -> None:
    made = population()
    part = rows()
    learner = learner_of(made)
    seen = []
    for p in SPECS:
        model = llama(7).double()
        model.load_state_dict(made.merged(p), strict=False)
        seen.append(np.concatenate(logprobs_by_hand(model, part)))
        np.testing.assert_allclose(
            np.concatenate(logprobs_of(learner, p, part)), seen[-1], atol=1e-5
        )
    assert min(np.abs(a - b).max() for i, a in enumerate(seen) for b in seen[:i]) > 1e-2


# --- what is not a number stays at home


def poisoned(
    made: Population, policy: str, kind: str, parts: dict[str, list[Row]]
) -> tuple[dict[str, list[Row]], Any]:
    method = METHOD
    if kind == "weights":
        next(iter(made.tensors(policy).values())).fill_(float("nan"))
    elif kind == "rows":  # a temperature of 0 makes its logits infinite
        parts[policy][0].temperature = 0.0
    else:
        turns = {id(r) for r in parts[policy]}

        def broken(part: list[Row], kl: Any) -> list[np.ndarray]:
            scale = np.nan if id(part[0]) in turns else 1.0
            return [a * scale for a in METHOD.credit(part, kl)]

        method = replace(METHOD, credit=broken)
    return parts, method


POISONS = [
    (policy, counts, kind, dtype, {})
    for policy in "ad"
    for counts in (UNEVEN, EVEN)
    for kind in ("weights", "rows", "gradients")
    for dtype in (torch.float32, torch.float64)
    if dtype == torch.float32 or (policy, counts) == ("a", UNEVEN)
]
POISONS += [
    ("b", UNEVEN, kind, torch.float32, {"checkpointing": True, "tokens_per_pass": 64})
    for kind in ("weights", "rows")
]


@pytest.mark.parametrize(("policy", "counts", "kind", "dtype", "recipe"), POISONS)
def test_a_nan_in_one_policy_leaves_the_others_bit_identical(
    policy: str,
    counts: dict[str, int],
    kind: str,
    dtype: torch.dtype,
    recipe: dict[str, Any],
    tmp_path: Path,
) -> None:
    clean = population(dtype=dtype)
    broken = population(dtype=dtype)
    learner = learner_of(clean, **recipe)
    for _ in range(2):
        learner.step(parts_of(counts))
    other = learner_of(broken, **recipe)
    before = broken.flat_PN.clone()
    for _ in range(2):
        parts, method = poisoned(broken, policy, kind, parts_of(counts))
        before = broken.flat_PN.clone() if kind == "weights" else before
        other.method = method
        stats = other.step(parts)
        assert {p for p, s in stats.items() if s["skipped"]} == {policy}
        assert all(np.isfinite(list(s.values())).all() for s in stats.values())
    for i, p in enumerate(clean.policies):
        if p == policy:
            torch.testing.assert_close(broken.flat_PN[i], before[i], rtol=0, atol=0, equal_nan=True)
        else:
            assert torch.equal(broken.flat_PN[i], clean.flat_PN[i])
    if kind == "weights":
        with pytest.raises(FloatingPointError, match=f"policy {policy}: .* not finite"):
            other.save(tmp_path)
        assert not list(tmp_path.iterdir())
    else:
        assert other.step(parts_of(counts))[policy]["updates"] == 1


@pytest.mark.parametrize("counts", [UNEVEN, EVEN])
def test_a_leak_of_nans_would_be_seen(
    counts: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = layers._scaled
    monkeypatch.setattr(
        layers, "_scaled", lambda h_NR, *given: real(h_NR, *given).add_(0 * h_NR.sum())
    )
    with pytest.raises(AssertionError):
        test_a_nan_in_one_policy_leaves_the_others_bit_identical(
            "d", counts, "weights", torch.float32, {}, tmp_path
        )


def test_without_a_grouped_product_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices, and for widths that are not whole 16 bytes."""
    wanted = gradients(population(dtype=torch.float32), parts_of(UNEVEN))
    calls: list[int] = []
    real = blocks.grouped_mm
    monkeypatch.setattr(
        blocks, "grouped_mm", lambda *given, **more: calls.append(1) or real(*given, **more)
    )
    gradients(population(dtype=torch.float32), parts_of(EVEN))
    assert not calls
    gradients(population(dtype=torch.float32), parts_of(UNEVEN))
    assert calls
    monkeypatch.setattr(blocks, "grouped", lambda *_: False)
    got = gradients(population(dtype=torch.float32), parts_of(UNEVEN))
    assert max(distance(got[p], wanted[p]) for p in got) < 1e-4
