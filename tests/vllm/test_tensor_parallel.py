"""One model over two ranks on a CPU: the same texts and log-probs as on one, faults of one rank
alone are found, and no process is left behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from comas.engines import vllm
from comas.engines.vllm import parts, worker
from comas.engines.vllm.engine import VLLMEngine
from comas.engines.vllm.library import Library, Loaded
from comas.learners.lora.population import Population, Spec
from comas.seams import Adapter, Engine, EnginePlan, StaleWeights, Weights, WholeModel
from comas.storage.run import Run
from comas.testing import check_engine
from comas.types import HostLost, UserMistake
from tests.support.adapted import PLAN, ROOM, SPECS, gap, own, requests, shake
from tests.support.models import llama

TWO = dataclasses.replace(PLAN, tensor_parallel=2, host="home")
COMAS = [sys.executable, "-m", "comas"]
TEAM = """
method = "comas"
steps = 40
questions = 8
test_questions = 0
eval_every = 0
checkpoint_every = 1
threads = 2
lr = 1e-3
agents = 2
[hosts.home]
learner = "adapters"
engine = "vllm"
tensor_parallel = 2
"""


@pytest.fixture(scope="module")
def shared(population: Population) -> Iterator[VLLMEngine]:
    """An engine that is expensive to start."""
    engine = parts.build(TWO, dict.fromkeys(SPECS, Adapter(population)))
    yield engine
    engine.close()
    assert not ranks_below(os.getpid()), "ranks are left behind"


def ranks_below(process: int) -> list[psutil.Process]:
    """Ranks that this process has started; multiprocessing's tracker ends with the process."""
    children = psutil.Process(process).children()
    names = {child: f"{child.name()} {' '.join(child.cmdline())}" for child in children}
    return [child for child, name in names.items() if "VLLM" in name or "spawn_main" in name]


def test_two_ranks_say_what_one_says(engine: VLLMEngine, population: Population) -> None:
    assert len(ranks_below(os.getpid())) == 2
    alone = parts.build(PLAN, dict.fromkeys(SPECS, Adapter(population)))
    try:
        wanted = alone.generate(requests("ab"))
    finally:
        alone.close()
    for ours, theirs in zip(engine.generate(requests("ab")), wanted, strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert np.abs(ours.logprobs - theirs.logprobs).max() < 1e-4
    for policy in SPECS:
        assert gap(engine, population, policy) < 1e-4


def test_versions_follow_each_other(engine: VLLMEngine, population: Population) -> None:
    for version in range(1, 4):
        shake(own(population, "a"), version)
        engine.publish("a", Adapter(population), version)
        assert gap(engine, population, "a") < 1e-4
        assert gap(engine, population, "b") < 1e-4
    assert len(engine.vllm.numbers()) == len(SPECS)


@pytest.mark.slow
def test_it_keeps_the_contract_of_engines() -> None:
    def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
        return vllm.build(dataclasses.replace(plan, tensor_parallel=2), models)

    asyncio.run(check_engine(build, "adapters"))


def lose_a_bit(rank: Any, number: int, on: int) -> None:
    """A tensor of this rank is another by the least of steps."""
    if rank.rank == on:
        adapters = worker._adapters(rank)
        slot = adapters.lora_index_to_id.index(number)
        module = next(m for name, m in adapters.modules.items() if name.endswith("0.mlp.down_proj"))
        module.lora_b_stacked[0][slot, 0, 0, 0] += 1e-6


def swap_parts(rank: Any, number: int) -> None:
    """Each rank has the other one's part of a tensor."""
    adapters = worker._adapters(rank)
    slot = adapters.lora_index_to_id.index(number)
    module = next(m for name, m in adapters.modules.items() if name.endswith("0.mlp.gate_up_proj"))
    whole = adapters.get_adapter(number).get_lora("model.layers.0.mlp.gate_up_proj").lora_b[0]
    half = len(whole) // 2
    other = whole[half:] if rank.rank == 0 else whole[:half]
    module.lora_b_stacked[0][slot, 0, :, : whole.shape[1]] = other


def unbind(rank: Any, number: int) -> None:
    """Rank 1 leaves a module out."""
    if rank.rank == 1:
        adapter = worker._adapters(rank).get_adapter(number)
        del adapter.loras["model.layers.1.mlp.down_proj"]


def other_base(rank: Any, number: int, factor: float = 2.0) -> None:
    """Rank 1 has another base below its adapters."""
    if rank.rank == 1:
        model = rank.model_runner.get_model()
        layer = model.get_submodule("model.layers.0.input_layernorm")
        layer.weight.data.mul_(factor)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            partial(lose_a_bit, on=1),
            "the tensors of model.layers.0.mlp.down_proj in vLLM on rank 1 of 2 are not the",
        ),
        (
            partial(lose_a_bit, on=0),
            "the tensors of model.layers.0.mlp.down_proj in vLLM on rank 0 of 2 are not the",
        ),
        (swap_parts, "the tensors of model.layers.0.mlp.gate_proj in vLLM on rank 0 of 2 are"),
        (unbind, "vLLM has bound 13 of its 14 modules on rank 1 of 2 (model.layers.1.mlp.down_pr"),
        (other_base, "nats per token from the learner's"),
    ],
    ids=["a bit of rank 1", "a bit of rank 0", "parts swapped", "a module of rank 1", "a base"],
)
def test_a_fault_of_one_rank_alone_is_found(
    fault: Any,
    words: str,
    engine: VLLMEngine,
    population: Population,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = Library.add

    def add_and_spoil(self: Library, adapter: Loaded) -> None:
        add(self, adapter)
        self.call(fault, adapter.number)

    monkeypatch.setattr(Library, "add", add_and_spoil)
    with pytest.raises(StaleWeights) as refusal:
        engine.publish("a", Adapter(population), 30)
    monkeypatch.undo()
    if fault is other_base:
        engine.vllm.call(partial(other_base, factor=0.5), 0)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith("policy a, version 30: ")
    assert gap(engine, population, "a") < 1e-4, "the version before serves on"


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
def test_layers_that_a_checkpoint_has_as_one_are_shared_part_by_part(heads: int) -> None:
    """Of queries, keys and values that are one layer each rank has a part of each."""
    config = Phi3Config(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=heads,
        max_position_embeddings=256,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=3,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    specs = {"a": Spec(4, 8.0), "b": Spec(6, 6.0, ("qkv_proj",))}
    population = Population(Phi3ForCausalLM(config).eval(), specs)
    for seed, policy in enumerate(specs):
        shake(own(population, policy), seed)
    engine = parts.build(TWO, dict.fromkeys(specs, Adapter(population)))
    try:
        assert gap(engine, population, "a") < 1e-4
        assert gap(engine, population, "b") < 1e-4
    finally:
        engine.close()


def test_whole_models_and_heads_that_cannot_be_shared_are_one_line() -> None:
    with pytest.raises(UserMistake, match=r"hosts.home.tensor_parallel=2: vLLM spreads adapters"):
        parts.build(TWO, {"a": WholeModel(llama(2, tie_word_embeddings=False, **ROOM))})
    three = dataclasses.replace(TWO, tensor_parallel=3)
    population = Population(llama(1, **ROOM), SPECS)
    with pytest.raises(UserMistake, match=r"2 attention heads .* set hosts.home.tensor_parallel=2"):
        parts.build(three, dict.fromkeys(SPECS, Adapter(population)))


@pytest.mark.slow
def test_a_rank_that_dies_is_one_line_and_takes_the_others_with_it(population: Population) -> None:
    others = {process.pid for process in ranks_below(os.getpid())}
    engine = parts.build(TWO, dict.fromkeys(SPECS, Adapter(population)))
    own = {process.pid for process in ranks_below(os.getpid())} - others
    try:
        os.kill(max(own), signal.SIGKILL)
        with pytest.raises(HostLost, match=r"hosts.home.engine = 'vllm' is lost: rank 1 was ended"):
            engine.generate(requests("ab"))
    finally:
        engine.close()
    assert not own & {process.pid for process in ranks_below(os.getpid()) if alive(process)}


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def two_heads(folder: Path, untaught: Path) -> Path:
    """A random model with the tokenizer of the seed models, and heads that two ranks can share."""
    shutil.copytree(untaught, folder)
    config = LlamaConfig.from_pretrained(untaught)
    config.hidden_size = 64
    config.num_attention_heads = 4
    config.num_key_value_heads = 2
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, untaught: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run over two ranks that has learnt some steps, in a session of its own."""
    file = tmp_path / "team.toml"
    file.write_text(TEAM)
    folder = tmp_path / "run"
    base = two_heads(tmp_path / "base", untaught)
    process = subprocess.Popen(
        [*COMAS, "train", str(file), f"out={folder}", f"base={base}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 1):
        time.sleep(0.05)
    yield process, folder
    for left in session(process.pid):
        left.kill()


def session(leader: int) -> list[psutil.Process]:
    """All processes of a session that are alive."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and alive(process):
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def gone(leader: int, seconds: float) -> bool:
    """Whether all processes of a session end within these seconds."""
    deadline = time.monotonic() + seconds
    while session(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_process(
    run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, _ = run
    assert len(ranks_below(process.pid)) == 2
    process.kill()
    process.communicate()
    assert gone(process.pid, 20), session(process.pid)


@pytest.mark.slow
def test_ctrl_c_is_for_the_run_alone(run: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = run
    assert len(ranks_below(process.pid)) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, words = process.communicate(timeout=120)
    assert process.returncode == 130, words
    assert "Traceback" not in words
    assert gone(process.pid, 20), session(process.pid)
    recorded = Run.open(folder)
    for step in recorded.metrics():
        assert all(policy["gap_max"] < 1e-4 for policy in step["policies"].values())
    assert recorded.marker() is not None
