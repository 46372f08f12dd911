"""Rows behind one copy of their prompt: the same log-probs, gradients and updates as apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from comas.learners.logprobs import halve, token_logprobs
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.passes import can_share, pack_length, packs_of, passes
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.methods.rlvr import method as rlvr
from comas.seams import AdapterSpec
from comas.types import Method, Row
from tests.support.memory import model_of
from tests.support.models import llama

pytestmark = pytest.mark.usefixtures("one_thread")


def row(turn: str, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1.0) -> Row:
    ids = np.array([*prompt, *reply])
    mask = np.arange(len(ids)) >= len(prompt)
    made = Row(turn, "solution", temperature, ids, mask, np.zeros(len(ids), np.float32))
    made.reward = float(len(turn) % 2 + sum(reply) % 3)
    made.group = str(prompt)
    return made


def rows_of(seed: int, groups: int = 3, replies: int = 4, temperature: float = 1.0) -> list[Row]:
    rng = np.random.default_rng(seed)
    found = []
    for group in range(groups):
        prompt = rng.integers(4, 50, int(rng.integers(2, 12)))
        for reply in range(replies):
            said = rng.integers(4, 50, int(rng.integers(1, 9)))
            found.append(row(f"{group}/{reply}", prompt, said, temperature))
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2", "gemma"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("apart", [True, False])
def test_log_probs_and_gradients_are_those_of_rows_apart(
    family: str, temperature: float, apart: bool
) -> None:
    model = model_of(family).double()
    assert can_share(model)
    rows = rows_of(1, temperature=temperature)
    halves = halve(model) if apart else None
    packs = packs_of(["p"] * len(rows), rows, 1000)
    assert len(packs) == 3
    found = []
    for chosen in (None, packs):
        model.zero_grad()
        logprobs_BT = token_logprobs(model, halves, rows, 0, packs=chosen)
        (logprobs_BT * torch.arange(logprobs_BT.shape[1])).sum().backward()
        grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        found.append((logprobs_BT.detach(), torch.cat(grads)))
    torch.testing.assert_close(*[logprobs for logprobs, _ in found], rtol=1e-9, atol=1e-9)
    # norms are computed in float32 by these families, so that sums of gradients are rounded
    torch.testing.assert_close(*[grads for _, grads in found], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 4}),
        ("gemma2", {}),
        ("mamba", {"state_size": 4, "expand": 2}),
    ],
)
def test_families_that_do_not_look_back_over_everything_stand_apart(
    family: str, changes: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(
        family,
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        **changes,
    )
    assert not can_share(AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize(
    ("family", "changes", "dtype"),
    [
        (
            "gpt_neo",
            {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2},
            torch.float32,
        ),
        ("mpt", {"d_model": 32, "n_heads": 2, "n_layers": 2}, torch.bfloat16),
    ],
)
def test_families_that_count_places_of_the_pack_stand_apart(
    family: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    """By a window that no usual key names, or by distances: eight tokens do not show it."""
    config = AutoConfig.for_model(family, vocab_size=50, hidden_size=32, **changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 3 if weight.dim() > 1 else 1
    assert not can_share(model.to(dtype))


def test_a_model_that_ignores_the_mask_is_found_by_trying() -> None:
    model = llama()
    forward = model.model.forward

    def without_mask(*args: Any, **given: Any) -> Any:
        return forward(*args, **{**given, "attention_mask": None})

    assert can_share(model)
    model.model.forward = without_mask
    assert not can_share(model)


def test_a_model_that_ignores_positions_is_found_by_trying() -> None:
    model = llama()
    forward = model.model.forward

    def without_positions(*args: Any, **given: Any) -> Any:
        return forward(*args, **{**given, "position_ids": None})

    model.model.forward = without_positions
    assert not can_share(model)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(16, 80), st.integers(1, 3))
def test_passes_hold_every_row_once_and_stay_below_their_bound(
    seed: int, most: int, policies: int
) -> None:
    rows = rows_of(seed, groups=4, replies=5)
    owned = [(f"p{i % policies}", one) for i, one in enumerate(rows)]
    parts = passes(owned, most, shares=True)
    assert sorted(i for part in parts for i in part.rows) == list(range(len(rows)))
    for part in parts:
        names = [owned[i][0] for i in part.rows]
        assert names == sorted(names)
        chosen = [rows[i] for i in part.rows]
        packs = part.packs or [[i] for i in range(len(chosen))]
        assert sorted(i for pack in packs for i in pack) == list(range(len(chosen)))
        lengths = [pack_length(chosen, pack) for pack in packs]
        assert part.padded == len(packs) * max(lengths)
        assert len(packs) == 1 or part.padded <= most
        for pack in packs:
            prompts = {chosen[i].token_ids_T[: chosen[i].mask_T.argmax()].tobytes() for i in pack}
            assert len(prompts) == 1
            assert len({names[i] for i in pack}) == 1
            assert len(pack) == 1 or pack_length(chosen, pack) <= most


def test_rows_of_a_pass_are_of_similar_length_unless_they_are_few_tokens() -> None:
    def lengths_of(*lengths: int) -> list[list[int]]:
        owned = [("p", row(str(i), [5], [6] * (length - 1))) for i, length in enumerate(lengths)]
        return [part.rows for part in passes(owned, 4096)]

    assert lengths_of(10, 200, 100) == [[0, 2, 1]]
    assert lengths_of(600, 700, 1000) == [[0, 1], [2]]


def judged(seed: int, shared: int, own: int = 5, count: int = 6, replies: int = 1) -> list[Row]:
    """Prompts that begin with the same `shared` tokens and go on for `own` of their own."""
    rng = np.random.default_rng(seed)
    common = rng.integers(4, 50, shared).tolist()
    found: list[Row] = []
    for prompt in range(count):
        asked = [*common, 4 + prompt, *rng.integers(4, 50, own - 1).tolist()]
        for reply in range(replies):
            said = rng.integers(4, 50, 3).tolist()
            found.append(row(f"{prompt}/{reply}", asked, said))
    return found


@pytest.mark.parametrize("replies", [1, 2])
def test_prompts_that_begin_alike_are_read_behind_one_copy(replies: int) -> None:
    model = model_of("llama").double()
    rows = judged(1, shared=45, replies=replies)
    packs = packs_of(["p"] * len(rows), rows, 1000)
    assert packs == [list(range(len(rows)))]
    assert pack_length(rows, packs[0]) == 45 + len(rows) * 8
    found = []
    for chosen in (None, packs):
        model.zero_grad()
        logprobs_BT = token_logprobs(model, halve(model), rows, 0, packs=chosen)
        (logprobs_BT * torch.arange(logprobs_BT.shape[1])).sum().backward()
        grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        found.append((logprobs_BT.detach(), torch.cat(grads)))
    torch.testing.assert_close(*[logprobs for logprobs, _ in found], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*[grads for _, grads in found], rtol=1e-3, atol=2e-4)


def test_packs_are_joined_where_that_saves_enough() -> None:
    short = judged(2, shared=31)
    assert packs_of(["p"] * 6, short, 1000) == [[i] for i in range(6)]
    several = judged(3, shared=45, own=40, count=2, replies=4)
    # one prompt stands once for its replies: together each reply would have its prompt's end
    assert packs_of(["p"] * 8, several, 1000) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    alike = judged(4, shared=45)
    assert packs_of(["p", "q"] * 3, alike, 1000) == [[0, 2, 4], [1, 3, 5]]
    assert packs_of(["p"] * 6, alike, 45 + 3 * 8) == [[0, 1, 2], [3, 4, 5]]


def test_rows_of_one_prompt_that_just_fit_are_one_pack() -> None:
    rows = [row("a", [5, 6], [7, 8]), row("b", [5, 6], [9])]
    assert packs_of(["p", "p"], rows, 5) == [[0, 1]]
    assert packs_of(["p", "p"], rows, 4) == [[0], [1]]


def test_a_row_whose_reply_is_not_its_end_stands_alone() -> None:
    rows = [row("a", [5, 6], [7, 8, 9]), row("b", [5, 6], [7, 8])]
    rows[0].mask_T[3] = False
    assert packs_of(["p", "p"], rows, 100) == [[0], [1]]


METHOD = Method(rlvr.play, rlvr.settle, rlvr.credit, rlvr.loss, kl={"solution": 0.1})


def stepped(learner: Any, rows: dict[str, list[Row]]) -> dict[str, dict[str, float]]:
    for part in rows.values():
        for one in part:
            one.sampled_logprobs_T = None
    return learner.step(rows)


@pytest.mark.parametrize("tokens", [40, 4096])
def test_a_step_of_whole_models_is_the_same_but_for_rounding(tokens: int) -> None:
    weights = []
    stats = []
    for share in (False, True):
        recipe = Recipe(1e-3, tokens_per_pass=tokens, share_prompts=share)
        learner = FullLearner({"p": llama(0)}, recipe, METHOD, 0)
        assert learner.shares is share
        stats.append(stepped(learner, {"p": rows_of(3)}))
        weights.append(torch.cat([w.flatten() for w in learner.models["p"].parameters()]))
    assert stats[0]["p"]["loss"] == pytest.approx(stats[1]["p"]["loss"], abs=1e-5)
    assert stats[0]["p"]["grad_norm"] == pytest.approx(stats[1]["p"]["grad_norm"], rel=1e-4)
    close = (weights[0] - weights[1]).abs() < 1e-5
    assert close.float().mean() > 0.99  # AdamW's first step is a sign: a gradient of rounding flips


@pytest.mark.parametrize("tokens", [40, 4096])
def test_a_step_of_adapters_is_the_same_but_for_rounding(tokens: int) -> None:
    grads = []
    for share in (False, True):
        population = Population(llama(0), {"a": AdapterSpec(4), "b": AdapterSpec(2)})
        recipe = Recipe(1e-3, tokens_per_pass=tokens, share_prompts=share)
        learner = AdapterLearner(population, recipe, METHOD, 0, "base")
        seen: dict[str, torch.Tensor] = {}
        finish = learner.finish

        def kept(policy: str, loss: float, learner: Any = learner, finish: Any = finish) -> Any:
            number = learner.population.policies.index(policy)
            seen[policy] = learner.grads_PN[number].clone()  # noqa: B023 - called in this turn
            return finish(policy, loss)

        learner.finish = kept  # type: ignore[method-assign]
        stepped(learner, {"a": rows_of(4), "b": rows_of(4)})
        grads.append(torch.cat([seen["a"], seen["b"]]))
    assert grads[0].abs().max() > 1e-3
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-6)
