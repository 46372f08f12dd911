"""Sampling from a population is what is trained, whatever the batch; saved and loaded it goes on as
if nothing had happened.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from comas.hosts.local import make_local_host
from comas.learners import step as old_policy
from comas.learners.logprobs import halve
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.seams import AdapterSpec, Request
from comas.types import Row, Sampling, TurnReward
from tests.support.adapters import EVEN, SPECS, UNEVEN, fill, learner_of, parts_of, population
from tests.support.engines import engine_of, is_stacked, publish
from tests.support.families import FAMILIES, family_model
from tests.support.learning import METHOD, logprobs_of, rows, say
from tests.support.mixed_rows import requests
from tests.support.models import llama

pytestmark = pytest.mark.usefixtures("one_thread")


def sampler(made: Population, max_rows: int = 512, stacked: bool = True) -> Any:
    return engine_of(made, [3, 4], 0, 128, max_rows, engine="auto" if stacked else "hf")


def as_rows(asked: Sequence[Request], said: Sequence[Any]) -> list[tuple[str, Row]]:
    made = []
    for i, (request, got) in enumerate(zip(asked, said, strict=True)):
        ids = np.concatenate([request.prompt_ids, got.token_ids])
        mask = np.arange(len(ids)) >= len(request.prompt_ids)
        sampled = np.concatenate([np.zeros(len(request.prompt_ids), np.float32), got.logprobs])
        made.append(
            (
                request.policy,
                Row(
                    f"t{i}",
                    "solution",
                    request.sampling.temperature,
                    ids,
                    mask,
                    np.zeros(len(ids), np.float32),
                    f"g{i % 2}",
                    float(i % 3),
                    sampled_logprobs_T=sampled,
                ),
            )
        )
    return made


def gap(learner: AdapterLearner, owned: list[tuple[str, Row]]) -> float:
    told = old_policy.logprobs(learner, owned)
    return max(
        float(np.abs(lp - r.sampled_logprobs_T).max())
        for lp, (_, r) in zip(told, owned, strict=True)
    )


@pytest.mark.parametrize(
    ("family", "temperature"),
    [
        ("llama", 0.7),
        ("llama", 1.0),
        ("llama-plain", 0.7),
        ("llama-plain", 1.0),
        *((family, 0.7) for family in ("qwen2.5", "qwen3", "llama3", "gemma3", "phi3")),
    ],
)
def test_engine_and_learner_agree(family: str, temperature: float, tmp_path: Path) -> None:
    stacked = family == "llama"
    model = llama(7)
    size = 50
    if family in FAMILIES:
        model = AutoModelForCausalLM.from_pretrained(family_model(tmp_path, family)).eval()
        size = model.config.vocab_size
    fused = family == "phi3"
    specs = {
        "a": AdapterSpec(4, 8.0),
        "b": AdapterSpec(6, 32.0),
        "c": AdapterSpec(3, 5.0, ("qkv_proj" if fused else "q_proj", "down_proj")),
    }
    made = population(specs, torch.float32, model=model)
    learner = learner_of(made)
    engine = sampler(made, stacked=stacked)
    assert (is_stacked(engine)) == stacked
    asked = requests(24, "abc", size, temperature=temperature)
    owned = as_rows(asked, engine.generate(asked))
    assert gap(learner, owned) < 1e-4
    wrong = [("abc"[("abc".index(p) + 1) % 3], r) for p, r in owned]
    assert gap(learner, sorted(wrong, key=lambda o: o[0])) > 0.1
    parts: dict[str, list[Row]] = {}
    for p, r in owned:
        parts.setdefault(p, []).append(r)
    learner.step(parts)
    assert gap(learner, owned) > 1e-3
    publish(engine, learner.weights())
    assert gap(learner, as_rows(asked, engine.generate(asked))) < 1e-4


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_same_texts_whatever_the_batch_and_the_path_in_fp64(temperature: float) -> None:
    made = population()
    asked = requests(40, "abcd", temperature=temperature)
    wanted = sampler(made).generate(asked)
    assert {g.finished for g in wanted} == {True, False}
    for max_rows, stacked in ((7, True), (512, False), (5, False), (1, False)):
        for a, b in zip(wanted, sampler(made, max_rows, stacked).generate(asked), strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    back = sampler(made, stacked=False).generate(asked[::-1])[::-1]
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(wanted, back, strict=True))
    moved = replace(asked[0], policy="a" if asked[0].policy != "a" else "b")
    assert not np.array_equal(sampler(made).generate([moved])[0].logprobs, wanted[0].logprobs)


def flips(made: Population, asked: Sequence[Request], max_rows: int) -> tuple[int, int]:
    """Texts that a small batch changes, and those that were near a tie; none may change that was
    not.
    """
    one, two = (sampler(made, n, stacked=False).generate(asked) for n in (512, max_rows))
    near = [min(a.margin, b.margin) < 1e-4 for a, b in zip(one, two, strict=True)]
    other = [not np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one, two, strict=True)]
    assert not [i for i, flip in enumerate(other) if flip and not near[i]]
    return sum(other), sum(near)


def test_in_fp32_only_near_ties_may_differ(record_property: Any) -> None:
    made = population(dtype=torch.float32)
    asked = requests(200, "abcd")
    flipped, near = flips(made, asked, 7)
    record_property("flipped", f"{flipped} of 200 texts, {near} near a tie")
    assert near < 20


def test_sampling_leaves_nothing_behind_and_bare_calls_are_the_base() -> None:
    made = population(dtype=torch.bfloat16)
    ids = torch.arange(6, 12)[None]
    with torch.no_grad():
        wanted = llama(7).bfloat16()(ids).logits
        sampler(made).generate(requests(6, "abcd"))
        assert torch.equal(made.model(ids).logits, wanted)
        with made.routed([1]):
            adapted = made.model(ids).logits
    assert made.flat_PN.dtype == torch.float32
    assert not torch.equal(adapted, wanted)
    with pytest.raises(ValueError, match="sorted by policy"), made.routed([1, 0]):
        pass


# --- going on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_and_loaded_it_goes_on_as_if_it_had_not_stopped(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    one = learner_of(population(dtype=dtype), weight_decay=0.1)
    for counts in (UNEVEN, {"b": 3}):
        one.step(parts_of(counts))
    one.save(tmp_path)
    two = learner_of(population(dtype=dtype, spread=0.1), weight_decay=0.1)
    two.load(tmp_path)
    assert torch.equal(one.population.flat_PN, two.population.flat_PN)
    for learner in (one, two):
        # they began elsewhere; what is asked is that they go on alike
        learner.population.start_PN = None
        for counts in (EVEN, UNEVEN):
            learner.step(parts_of(counts))
    assert torch.equal(one.population.flat_PN, two.population.flat_PN)
    for p in SPECS:
        there, here = (learner.optimizers[p].state_dict()["state"][0] for learner in (one, two))
        assert {k: torch.equal(v, here[k]) for k, v in there.items()} == dict.fromkeys(
            ("step", "exp_avg", "exp_avg_sq"), True
        )


def test_without_its_moments_it_would_go_on_otherwise(tmp_path: Path) -> None:
    one = learner_of(population())
    one.step(parts_of(EVEN))
    one.save(tmp_path)
    two = learner_of(population())
    two.load(tmp_path)
    two.optimizers["b"].state.clear()
    for learner in (one, two):
        learner.step(parts_of(EVEN))
    same = [
        torch.equal(a, b)
        for a, b in zip(one.population.flat_PN, two.population.flat_PN, strict=True)
    ]
    assert same == [True, False, True, True]


def test_after_loading_the_reference_is_still_the_start(tmp_path: Path) -> None:
    part = rows()
    one = learner_of(population(spread=0.1))
    two = learner_of(population())
    one.save(tmp_path)
    start = logprobs_of(two, "b", part, reference=True)
    two.load(tmp_path)
    for now, wanted in (
        (logprobs_of(two, "b", part, reference=True), start),
        (logprobs_of(two, "b", part), logprobs_of(one, "b", part)),
    ):
        np.testing.assert_array_equal(np.concatenate(now), np.concatenate(wanted))
    assert np.abs(np.concatenate(start) - np.concatenate(logprobs_of(two, "b", part))).max() > 0.1


def test_what_is_sampled_is_what_is_trained(tiny: Path) -> None:
    shapes = {"a": SPECS["a"], "b": SPECS["b"]}
    bases = dict.fromkeys("ab", str(tiny))
    host = make_local_host(
        "home", bases, method=METHOD, recipe=Recipe(1e-2), under=str(tiny), shapes=shapes
    )
    engine = host.engine
    learner = host.learner
    assert isinstance(learner, AdapterLearner)
    for i, p in enumerate("ab"):
        fill(learner.population, p, 0.3, i)
    publish(engine, learner.weights())
    texts = {
        f"{p}{i}": asyncio.run(say(host, f"{p}{i}", p, temperature=0.9)).text
        for i in range(3)
        for p in "ab"
    }
    trained: dict[str, list[Row]] = {}

    def watched(parts: Any, lr_scale: float) -> Any:
        trained.update(copy.deepcopy(parts))
        return AdapterLearner.step(learner, parts, lr_scale)

    learner.step = watched  # type: ignore[method-assign]
    asyncio.run(
        host.learn({p: [TurnReward(f"{p}{i}", float(i)) for i in range(3)] for p in "ab"}, 1.0)
    )
    for p, part in trained.items():
        before = population(shapes, torch.float32, model=AutoModelForCausalLM.from_pretrained(tiny))
        for row, logprobs in zip(part, logprobs_of(learner_of(before), p, part), strict=True):
            ended = bool(row.token_ids_T[-1] == host.chat.tokenizer.eos_token_id)
            assert host.chat.decode(row.token_ids_T[row.mask_T], ended)[0] == texts[row.turn]
            np.testing.assert_allclose(row.sampled_logprobs_T, logprobs, atol=1e-4)
    assert len(set(texts.values())) > 1
    host.close()


def test_new_adapters_depend_on_seed_and_policy_alone() -> None:
    alone = Population(llama(7), {"b": SPECS["b"]}, seed=3).tensors("b")
    among = Population(llama(7), SPECS, seed=3).tensors("b")
    assert all(torch.equal(among[n], t) for n, t in alone.items())
    other = Population(llama(7), SPECS, seed=4).tensors("b")
    drawn = [n for n in alone if n.endswith("lora_A")]
    assert drawn
    assert not any(torch.equal(other[n], alone[n]) for n in drawn)
    assert not any(t.any() for n, t in alone.items() if n.endswith("lora_B"))


def test_halves_of_a_population_carry_its_adapters() -> None:
    made = population()
    halves = halve(made.model)
    assert halves is not None
    ids = torch.arange(6, 14)[None]
    with torch.no_grad(), made.routed([1]):
        whole = made.model(ids).logits
        assert torch.equal(
            halves.head(inputs_embeds=halves.body(input_ids=ids).last_hidden_state).logits, whole
        )
    assert not torch.equal(whole, made.model(ids).logits)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4), (torch.bfloat16, 0.1)]
)
@pytest.mark.parametrize("owners", [("a", "b", "c", "d"), ("a", "b", "b", "d", "b"), ("c",)])
def test_layers_that_read_together_say_what_they_say_apart(
    owners: Sequence[str], dtype: torch.dtype, tolerance: float
) -> None:
    made = population(dtype=dtype)
    asked = [
        Request(owners[i % len(owners)], np.arange(4, 7 + i % 5), Sampling(max_tokens=9), i)
        for i in range(2 * len(owners))
    ]
    apart = sampler(made, stacked=False).generate(asked)
    made.joins = True
    together = sampler(made, stacked=False).generate(asked)
    for one, other in zip(apart, together, strict=True):
        if dtype != torch.bfloat16:  # whose rounding draws other tokens
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logprobs[0], other.logprobs[0], atol=tolerance)
    assert all(layer.siblings is None for layer in made.layers)


def test_what_reads_together_is_seen_in_a_trial() -> None:
    groups = [[layer.name for layer in group.layers] for group in population().siblings]
    ends = [sorted(name.rpartition(".")[2] for name in group) for group in groups]
    of_a_block = [["k_proj", "q_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"]]
    assert ends == 2 * [*of_a_block, ["down_proj"]]
    assert not population().joins  # on a CPU each layer's product is what it was


def test_nothing_broken_of_one_policy_reaches_another_where_layers_read_together() -> None:
    made = population(dtype=torch.float32)
    made.joins = True
    asked = [Request("ab"[i % 2], np.arange(4, 9), Sampling(max_tokens=5), i) for i in range(6)]
    wanted = [x.token_ids for x in sampler(made, stacked=False).generate(asked)]
    with torch.no_grad():
        made.flat_PN[1] = float("nan")
    for i, reply in enumerate(sampler(made, stacked=False).generate(asked)):
        if i % 2 == 0:
            np.testing.assert_array_equal(reply.token_ids, wanted[i])


def test_learning_goes_on_from_the_learners_own_weights_after_layers_read_together() -> None:
    steps = []
    for joins in (False, True):
        learner = learner_of(population())
        learner.population.joins = joins
        asked = [Request(p, np.arange(4, 9), Sampling(max_tokens=5), 7) for p in "abcd"]
        sampler(learner.population, stacked=False).generate(asked)
        learner.step(parts_of(UNEVEN))
        steps.append(learner.population.flat_PN.detach().clone())
    assert torch.equal(*steps)
