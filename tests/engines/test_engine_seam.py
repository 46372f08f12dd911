"""The seam of engines: every engine of ours keeps its contract, and so does one of thirty lines in a
user's file, named from a config; what cannot be served is one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comas
from comas.config.plugins import load_plugin, plugin_names
from comas.engines import auto, hf, stacked, vllm
from comas.engines.hf import HFEngine
from comas.engines.stacked import StackedEngine
from comas.learners.lora.population import Population
from comas.seams import Adapter, AdapterSpec, EnginePlan, Request, StaleWeights, Weights, WholeModel
from comas.storage.run import Run
from comas.testing import check_engine
from comas.types import UserMistake
from tests.support.models import llama

OURS = {
    "hf": hf.build,
    "stacked": stacked.build,
    "together": partial(HFEngine, continuous=False),
    "columns": partial(HFEngine, prefill=5),
}
"""`auto` is one of the first two; weights of the contract are float64, which is never packed."""
MINE = '''"""An engine that decodes one request at a time, without a cache."""

import numpy as np
import torch

from comas.seams import EngineFacts, Generation, StaleWeights


class Plain:
    facts = EngineFacts(deterministic=True, margin_known=False)

    def __init__(self, plan, models):
        self.plan, self.models = plan, dict(models)

    async def sample(self, request):
        model = self.models[request.policy].model
        noise = np.random.Generator(np.random.Philox(key=request.seed))
        temperature = request.sampling.temperature
        ids, logprobs = request.prompt_ids.tolist(), []
        for _ in range(request.sampling.max_tokens):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            scaled = (logits / (temperature or 1)).log_softmax(-1)
            point = noise.random()
            drawn = int((scaled.exp().cumsum(-1) < point).sum().clamp(max=len(scaled) - 1))
            ids.append(drawn if temperature else int(scaled.argmax()))
            logprobs.append(float(scaled[ids[-1]]))
            if ids[-1] in self.plan.end_ids:
                break
        own = np.array(ids[len(request.prompt_ids) :])
        return Generation(own, np.array(logprobs, np.float32), own[-1] in self.plan.end_ids, 1.0)

    def publish(self, policy, weights, version):
        if policy not in self.models:
            raise StaleWeights(policy)
        self.models[policy] = weights

    def close(self):
        pass


def build(plan, models):
    return Plain(plan, models)
'''


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hf", "whole"),
        ("hf", "adapters"),
        ("stacked", "whole"),
        ("stacked", "adapters"),
        ("together", "adapters"),
        ("columns", "adapters"),
    ],
)
def test_every_engine_keeps_the_contract(name: str, kind: Any) -> None:
    asyncio.run(check_engine(OURS[name], kind))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


@pytest.mark.slow
def test_an_engine_in_a_file_keeps_the_contract(mine: Path) -> None:
    asyncio.run(check_engine(load_plugin("engine", str(mine), "hosts.home.engine").build))


def test_an_engine_in_a_file_is_named_from_a_config_and_trained_with(
    mine: Path, untaught: Path, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {
        "hosts__home__base": str(untaught),
        "hosts__home__learner": "full",
        "agents": 2,
        "questions": 3,
        "steps": 2,
        "max_tokens": 6,
        "lr": 1e-3,
        "test_questions": 0,
        "eval_every": 0,
        "method": "ttrl",
        "options__votes": 4,
        "room__solution": 6,
        "monitors": [],
    }
    comas.train(out=str(tmp_path / "mine"), hosts__home__engine=str(mine), **keys)
    comas.train(out=str(tmp_path / "ours"), **keys)
    texts = []
    for name in ("mine", "ours"):
        run = Run.open(tmp_path / name)
        metrics = list(run.metrics())
        assert all(p["gap_max"] < 1e-3 for m in metrics for p in m["policies"].values())
        turns = [t for step in (0, 1) for e in run.episodes(step) for t in e["turns"]]
        texts.append([turn["text"] for turn in turns])
    assert texts[0] == texts[1]  # the same noise, the same weights
    assert Run.open(tmp_path / "mine").config()["hosts"]["home"]["engine"] == str(mine)


def broken(how: str) -> Any:
    """An engine of ours with one thing wrong."""

    class Broken(HFEngine):
        def publish(self, policy: str, weights: Weights, version: int) -> None:
            if how == "stale":
                known = self._decoders[
                    policy
                ]  # raises for strangers as it should, and does nothing
                assert known is not None
                return
            super().publish(policy, weights, version)

        async def sample(self, request: Request) -> Any:
            if how == "mixed":
                request = Request("a", request.prompt_ids, request.sampling, request.seed)
            if how == "seed":
                request = Request(request.policy, request.prompt_ids, request.sampling, 1)
            done = await super().sample(request)
            if how == "long":
                done.token_ids = np.concatenate([done.token_ids, [5]])
            return done

    def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Any:
        copied = {p: WholeModel(copy_of(w.model)) for p, w in models.items()}  # type: ignore[union-attr]
        return Broken(plan, copied if how == "stale" else models)

    return build


def copy_of(model: Any) -> Any:
    import copy

    return copy.deepcopy(model)


@pytest.mark.parametrize(
    ("how", "said"),
    [("stale", "stale"), ("mixed", "another policy"), ("seed", "seed"), ("long", "tokens")],
)
def test_a_broken_engine_is_found_out(how: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        asyncio.run(check_engine(broken(how)))


def test_engines_are_known_by_name() -> None:
    assert plugin_names("engine") == ["auto", "hf", "stacked", "vllm"]
    for name in plugin_names("engine"):
        load_plugin("engine", name, "hosts.home.engine")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stackd", r"hosts.home.engine = 'stackd': .*stacked"),
        ("./none.py", "no such file"),
    ],
)
def test_an_unknown_engine_is_one_line(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=said) as told:
        comas.train(hosts__home__engine=name, out=str(tmp_path / "run"))
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_file_without_build_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text('"""Nothing."""\n')
    with pytest.raises(UserMistake, match="defines no `build"):
        load_plugin("engine", str(tmp_path / "empty.py"), "hosts.home.engine")


@pytest.mark.parametrize(
    "models", [[llama(), llama(num_hidden_layers=1)], [llama().bfloat16()]], ids=["shapes", "half"]
)
def test_what_cannot_be_stacked_is_one_line(models: list[Any]) -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, host="home")
    weights = {f"p{i}": WholeModel(m) for i, m in enumerate(models)}
    with pytest.raises(UserMistake, match=r"hosts.home.engine = 'stacked' .*set it to hf"):
        stacked.build(plan, weights)
    assert isinstance(auto.build(plan, weights), HFEngine)


def test_auto_takes_the_stack_for_small_llamas_and_runs_of_older_versions_resume() -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64)
    assert isinstance(auto.build(plan, {"p": WholeModel(llama())}), StackedEngine)
    from comas.config.schema import HostConfig

    assert HostConfig.model_validate({"engine": "torch"}).engine == "auto"


@pytest.mark.parametrize(
    ("device", "parameters", "models", "taken"),
    [
        ("cuda:0", auto.LARGE, 1, True),
        ("cuda", 7 * 10**9, 1, True),
        ("cuda:1", 7 * 10**9, 1, False),  # vLLM takes the first
        ("cuda:0", auto.LARGE - 1, 1, False),
        ("cuda:0", 7 * 10**9, 2, False),
        ("cpu", 7 * 10**9, 1, False),
        ("mps:0", 7 * 10**9, 1, False),
    ],
)
def test_vllm_is_tried_for_one_large_model_on_the_first_gpu(
    device: str, parameters: int, models: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "find_spec", lambda name: name)
    assert auto.takes_vllm(device, parameters, models) is taken
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert not auto.takes_vllm(device, parameters, models)


def test_auto_is_vllm_where_it_is_tried_and_starts_otherwise_hf_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(auto, "takes_vllm", lambda *facts: asked.append(facts) or True)
    started = object()
    monkeypatch.setattr(vllm, "build", lambda plan, models: started)
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, host="home")
    base = llama().bfloat16()
    shared = Population(base, {"a": AdapterSpec(2), "b": AdapterSpec(2)})
    weights = {"a": Adapter(shared), "b": Adapter(shared)}
    assert auto.build(plan, weights) is started
    assert asked == [("cpu", base.num_parameters(), 1)]
    for reason in (UserMistake("rank 600"), StaleWeights("not the base")):
        monkeypatch.setattr(vllm, "build", lambda plan, models, reason=reason: raised(reason))
        with caplog.at_level("WARNING", "comas"):
            assert isinstance(auto.build(plan, weights), HFEngine)
        assert f"hosts.home samples with engine hf, not vllm: {reason}" in caplog.text


def test_gpus_that_stand_idle_are_told(caplog: pytest.LogCaptureFixture) -> None:
    for gpus in (1, 3):
        plan = EnginePlan(end_ids=[3], pad_id=0, context=64, gpus=gpus, host="home")
        hf.build(plan, {"p": WholeModel(llama())}).close()
    (told,) = caplog.messages
    assert told.startswith("hosts.home.gpus=3: engine hf samples on one of them")


def raised(error: Exception) -> Any:
    raise error


def test_a_stack_holds_what_was_published_bit_for_bit() -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64)
    engine = StackedEngine(plan, {f"p{i}": WholeModel(llama(i)) for i in range(3)})
    engine.publish("p1", WholeModel(llama(7)), 1)
    fresh = StackedEngine(plan, {f"p{i}": WholeModel(llama(s)) for i, s in enumerate((0, 7, 2))})
    stacks = zip(engine.stack._stacks, fresh.stack._stacks, strict=True)
    assert all(torch.equal(a, b) for a, b in stacks)
    assert torch.equal(engine.stack.embedding, fresh.stack.embedding)


@pytest.mark.parametrize(("dtype", "promised"), [(torch.float32, True), (torch.bfloat16, False)])
def test_texts_are_called_independent_of_their_batch_in_float32_only(
    dtype: torch.dtype, promised: bool
) -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64)
    engine = hf.build(plan, {"p": WholeModel(llama().to(dtype))})
    assert engine.facts.deterministic is promised
    engine.close()
