"""Choices are weighed in float32 whatever the model's dtype, and never by who else is weighed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, Qwen2Config

from comas.engines.hf import exact_logits
from comas.seams import Weighing, WholeModel
from tests.support.engines import engine_of
from tests.support.models import llama

CHOICES = [np.array([5]), np.array([9])]
SMALL = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
FAMILIES = {
    "plain": Qwen2Config(**SMALL),
    "capped": Gemma2Config(**SMALL, final_logit_softcapping=30.0),
    "scaled": GraniteConfig(**SMALL, logits_scaling=4.0),
}


def loud(family: str) -> torch.nn.Module:
    """A model in bfloat16 whose logits are as large as those of pretrained ones."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=4.0)
    return model.eval()


def weighings(count: int, seed: int = 0) -> list[Weighing]:
    """Weighings of prompts of different lengths, all of the same two words."""
    rng = np.random.default_rng(seed)
    return [Weighing("p0", rng.integers(20, 50, 10 + n % 7), CHOICES) for n in range(count)]


def about(questions: int, works: int, common: int = 12) -> list[Weighing]:
    """Weighings of several works of each question; works of a question are no neighbours."""
    rng = np.random.default_rng(2)
    heads = rng.integers(20, 50, (questions, 12))
    prompts = [
        np.concatenate([head, rng.integers(20, 50, 3 + work)])
        for work in range(works)
        for head in heads
    ]
    return [Weighing("p0", prompt, CHOICES, common) for prompt in prompts]


def shares(results: list[list[np.ndarray]]) -> np.ndarray:
    """The difference of the two choices' log-probs, per weighing."""
    return np.array([float(yes[0]) - float(no[0]) for yes, no in results])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_last_product_and_what_follows_it_are_in_float32(family: str) -> None:
    model = loud(family)
    ids = torch.from_numpy(weighings(1)[0].prompt_ids)[None]
    head = model.get_output_embeddings()
    hidden: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0][0, -1]))
    with exact_logits(model, [5, 9]):
        logits = model(ids).logits[0, -1]
    hook.remove()
    product = head.weight[[5, 9]].double() @ hidden[0].double()
    config = model.config
    if cap := getattr(config, "final_logit_softcapping", None):
        product = cap * torch.tanh(product / cap)
    product = product / getattr(config, "logits_scaling", 1.0)
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(logits[[5, 9]].double(), product, rtol=1e-5)
    # others are those of the model, and nothing stays behind
    plain = model(ids).logits[0, -1]
    assert plain.dtype == torch.bfloat16
    others = [token for token in range(len(plain)) if token not in (5, 9)]
    np.testing.assert_allclose(logits[others], plain[others].float(), rtol=0.02)


def test_beliefs_of_bfloat16_have_as_many_values_as_prompts() -> None:
    model = loud("plain")
    engine = engine_of({"p0": model}, [15], 0, 128)
    differences = shares(engine.weigh_all(weighings(60)))
    assert len(set(np.round(differences, 5))) == 60
    rounded = np.round(differences * 8) / 8  # what logits in bfloat16 would leave
    assert len(set(rounded)) < 60


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("hf", torch.bfloat16), ("hf", torch.float32), ("stacked", torch.float32)],
)
@pytest.mark.parametrize("own", [weighings(9), about(3, 3)], ids=["apart", "common"])
def test_a_weighing_is_the_same_bit_by_bit_whoever_else_is_weighed(
    kind: str, dtype: torch.dtype, own: list[Weighing]
) -> None:
    models = {"p0": llama(0).to(dtype), "p1": llama(1).to(dtype)}
    engine = engine_of(models, [15], 0, 128, engine=kind)
    others = [replace(w, policy="p1", common=5) for w in weighings(6, seed=1)]
    alone = [engine.weigh_all([weighing])[0] for weighing in own]
    for mixed in ([*own, *others], [*others, *own[::-1]], own[3:] + others):
        results = engine.weigh_all(mixed)
        for weighing, result in zip(mixed, results, strict=True):
            if weighing.policy == "p0":
                place = next(n for n, one in enumerate(own) if one is weighing)
                assert all(map(np.array_equal, result, alone[place]))


def test_what_is_weighed_twice_is_computed_once() -> None:
    model = llama()
    engine = engine_of({"p0": model}, [15], 0, 128, engine="hf")
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    three = weighings(3)
    results = engine.weigh_all([*three, three[0], three[0]])
    assert len(passes) == 3
    assert np.array_equal(results[3][0], results[0][0])
    results[3][0][0] = 0.0  # results are not shared
    assert results[0][0][0] != 0.0


def test_what_works_of_a_question_have_in_common_is_read_once() -> None:
    model = llama()
    engine = engine_of({"p0": model}, [15], 0, 128, engine="hf")
    read: list[int] = []
    model.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: read.append(inputs[0].numel())
    )
    works = about(3, 4)
    results = engine.weigh_all(works)
    assert sum(read) == 3 * 12 + sum(len(work.prompt_ids) - 12 for work in works)
    whole = engine.weigh_all(about(3, 4, common=0))
    for result, expected in zip(results, whole, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_what_is_in_common_is_read_anew_when_weights_are() -> None:
    model = llama()
    engine = engine_of({"p0": model}, [15], 0, 128, engine="hf")
    before = engine.weigh_all(about(1, 2))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2.0)
    engine.publish("p0", WholeModel(model), 1)
    changed = engine.weigh_all(about(1, 2))
    np.testing.assert_allclose(changed, engine.weigh_all(about(1, 2, common=0)), rtol=1e-5)
    assert not np.allclose(before, changed)
