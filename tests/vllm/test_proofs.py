"""What vLLM does silently wrong, planted one by one: each is found before it serves."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from comas.engines import vllm as vllm_engine
from comas.engines.vllm import VLLMEngine
from comas.engines.vllm import library as folders
from comas.engines.vllm.library import Library, Loaded, VllmOutput, VllmRequest
from comas.engines.vllm.proof import pairs_of
from comas.learners.lora.population import Population
from comas.seams import Adapter, AdapterSpec, Request, StaleWeights, WholeModel
from comas.types import Sampling, UserMistake
from tests.support.adapted import PLAN, ROOM, SPECS, gap, own, requests, shake
from tests.support.models import llama


@pytest.fixture(scope="module")
def shared(population: Population) -> Iterator[VLLMEngine]:
    """An engine that is expensive to start."""
    policies = dict.fromkeys(population.policies, Adapter(population))
    engine = vllm_engine.build(PLAN, policies)
    yield engine
    root = engine.weights.folders.root  # type: ignore[union-attr]
    assert root.is_dir()
    engine.close()
    assert not root.exists(), "folders of adapters are left behind"


def published(engine: VLLMEngine, policy: str) -> Loaded:
    return engine.weights.serving([policy])[policy]  # type: ignore[return-value]


def refused(engine: VLLMEngine, population: Population, version: int) -> str:
    """The words with which a new version of policy a is refused; the one before serves on."""
    before = population.flat_PN.clone()
    shake(own(population, "a"), version)
    try:
        with pytest.raises(StaleWeights) as refusal:
            engine.publish("a", Adapter(population), version)
    finally:
        population.flat_PN.copy_(before)
    return str(refusal.value)


def test_versions_follow_each_other_and_leave_nothing(
    engine: VLLMEngine, population: Population
) -> None:
    root = engine.weights.folders.root  # type: ignore[union-attr]
    for version in range(1, 4):
        shake(own(population, "a"), version)
        engine.publish("a", Adapter(population), version)
        assert gap(engine, population, "a") < 1e-4
        assert gap(engine, population, "b") < 1e-4
    assert len(list(root.glob("adapter-*"))) == len(SPECS)
    assert len(engine.vllm.numbers()) == len(SPECS)


def test_a_number_that_is_used_again_serves_the_old_adapter(
    engine: VLLMEngine, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folders.Folders.write
    number = published(engine, "a").number

    def used_again(self: Any, *arguments: Any) -> Loaded:
        new = write(self, *arguments)
        return Loaded(new.name, number, new.folder)

    monkeypatch.setattr(folders.Folders, "write", used_again)
    words = refused(engine, population, 11)
    assert words.startswith("policy a, version 11: the tensors of model.layers.")
    assert "it serves another version" in words
    monkeypatch.undo()
    assert gap(engine, population, "a") < 1e-4, "it was read again from its own folder"


def test_an_adapter_loaded_in_place_leaves_keys_and_values_of_the_old_one(
    engine: VLLMEngine, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Loaded("slot", 900, engine.weights.folders.root / "slot")  # type: ignore[union-attr]
    write = folders.Folders.write

    def in_place(self: Any, *arguments: Any) -> Loaded:
        new = write(self, *arguments)
        shutil.rmtree(slot.folder, ignore_errors=True)
        shutil.move(new.folder, slot.folder)
        return slot

    def add(self: Library, adapter: Loaded) -> None:
        from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

        request = LoRARequest(
            adapter.name, adapter.number, str(adapter.folder), load_inplace=adapter == slot
        )
        self.llm.llm_engine.add_lora(request)

    monkeypatch.setattr(folders.Folders, "write", in_place)
    monkeypatch.setattr(Library, "add", add)
    monkeypatch.setattr(engine.weights, "_drop", lambda adapter: None)
    engine.publish("a", Adapter(population), 20)  # nothing was read with this name before
    words = refused(engine, population, 21)
    assert "tokens of it in its prefix cache before any was read" in words


def test_names_of_tensors_that_vllm_does_not_know_serve_the_base(
    engine: VLLMEngine, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.publish("a", Adapter(population), 30)
    write = folders.Folders.write

    def foreign(self: Any, *arguments: Any) -> Loaded:
        new = write(self, *arguments)
        file = new.folder / "adapter_model.safetensors"
        tensors = load_file(file)
        renamed = {k.replace(".model.layers", ".language.layers"): t for k, t in tensors.items()}
        save_file(renamed, file)
        return new

    monkeypatch.setattr(folders.Folders, "write", foreign)
    words = refused(engine, population, 31)
    assert "vLLM has bound 0 of its 14 modules (model.layers.0.mlp.down_proj: vLLM has" in words
    monkeypatch.undo()
    assert gap(engine, population, "a") < 1e-4


def test_a_kernel_that_leaves_the_adapter_out_shows_in_log_probs(
    engine: VLLMEngine, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Library.run

    def without(self: Library, asks: Sequence[VllmRequest], *rest: Any) -> list[VllmOutput | None]:
        bare = [
            VllmRequest(prompt_ids=ask.prompt_ids, seed=ask.seed, reads=ask.reads) for ask in asks
        ]
        return run(self, bare, *rest)

    monkeypatch.setattr(Library, "run", without)
    engine.vllm.forget_prefixes()  # of the base's own probe, which this one would be found to be
    words = refused(engine, population, 41)
    assert "nats per token from the learner's" in words


def test_a_step_as_small_as_one_of_a_learner_is_seen(
    engine: VLLMEngine, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.publish("a", Adapter(population), 50)
    before = pairs_of(population, "a")
    old = {name: (a.clone(), b.clone()) for name, (a, b) in before.items()}
    write = folders.Folders.write

    def late(self: Any, policy: str, version: int, shape: AdapterSpec, _: Any) -> Loaded:
        return write(self, policy, version, shape, old)

    monkeypatch.setattr(folders.Folders, "write", late)
    shake(own(population, "a"), 3, 1e-6)
    with pytest.raises(StaleWeights, match="are not the learner's"):
        engine.publish("a", Adapter(population), 51)
    monkeypatch.undo()
    engine.publish("a", Adapter(population), 52)
    assert gap(engine, population, "a") < 1e-4


def test_what_vllm_drops_is_read_again_and_proved(
    engine: VLLMEngine, population: Population
) -> None:
    serving = {policy: published(engine, policy) for policy in SPECS}
    crowd(engine, population)
    assert not {adapter.number for adapter in serving.values()} & engine.vllm.numbers()
    for policy in SPECS:
        assert gap(engine, population, policy) < 1e-4
        assert published(engine, policy) == serving[policy]


def crowd(engine: VLLMEngine, population: Population) -> None:
    """Load more adapters than vLLM keeps."""
    table: Any = engine.weights
    for number in range(2 * len(SPECS) + 1):
        adapter = table.folders.write(
            "other", number, AdapterSpec(4, 8.0), pairs_of(population, "a")
        )
        engine.vllm.add(adapter)


def test_a_folder_that_vanished_is_one_line(engine: VLLMEngine, population: Population) -> None:
    folder = published(engine, "a").folder
    crowd(engine, population)
    kept = folder.with_name("kept")
    folder.rename(kept)
    try:
        with pytest.raises(StaleWeights, match="vanished") as error:
            engine.generate(requests("a"))
        assert str(error.value).startswith("policy a, version ")
        assert "\n" not in str(error.value)
    finally:
        kept.rename(folder)
    assert gap(engine, population, "a") < 1e-4


@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_model_is_proved_and_a_head_that_stays_old_is_found(
    tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama(2, tie_word_embeddings=tied, **ROOM)
    if tied:
        with pytest.raises(UserMistake, match="head is its embedding"):
            vllm_engine.build(PLAN, {"a": WholeModel(model)})
        monkeypatch.setattr(vllm_engine, "is_tied", lambda _: False)
    engine = vllm_engine.build(PLAN, {"a": WholeModel(model)})
    try:
        shake(list(model.parameters()), 5)
        if tied:
            with pytest.raises(StaleWeights, match="weights of lm_head"):
                engine.publish("a", WholeModel(model), 1)
            return
        engine.publish("a", WholeModel(model), 1)
        asked = requests("a")
        for request, done in zip(asked, engine.generate(asked), strict=True):
            ids = torch.tensor([[*request.prompt_ids, *done.token_ids]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0]
            wanted = logits[len(request.prompt_ids) - 1 : -1].log_softmax(-1)
            chosen = wanted.gather(1, torch.from_numpy(done.token_ids)[:, None])[:, 0].numpy()
            assert np.abs(chosen - done.logprobs).max() < 1e-4
        for emptied, words in ((False, "has not emptied its"), (True, "tokens of it in its")):
            monkeypatch.setattr(Library, "forget_prefixes", lambda _, said=emptied: said)
            with pytest.raises(StaleWeights, match=f"{words} prefix cache"):
                engine.publish("a", WholeModel(model), 2)
    finally:
        engine.close()


def test_prompts_of_more_tokens_than_are_computed_at_once(population: Population) -> None:
    """Of a prompt that is computed in parts vLLM rewinds the seed's generator, which fails on a
    CPU: whole prompts wait instead.
    """
    plan = dataclasses.replace(PLAN, max_rows=40)
    policies = dict.fromkeys(population.policies, Adapter(population))
    engine = vllm_engine.build(plan, policies)
    rng = np.random.default_rng(1)
    sampling = Sampling(temperature=1.0, max_tokens=3)
    prompts = [rng.integers(4, 50, 150 + i) for i in range(40)]
    assert sum(map(len, prompts)) > 4096
    asked = [Request("ab"[i % 2], ids, sampling, i) for i, ids in enumerate(prompts)]
    try:
        together = engine.generate(asked)
        alone = engine.generate(asked[-1:])
    finally:
        engine.close()
    assert all(0 < len(done.token_ids) <= 3 for done in together)
    assert together[-1].token_ids.tolist() == alone[0].token_ids.tolist()
