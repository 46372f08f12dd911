"""One host over several GPUs, where no vLLM is needed: bad values, parts of tensors, memory,
variables of the processes, words for one that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from comas.config.schema import Config
from comas.engines import vllm
from comas.engines.module import EngineLoad, ModelSize, TensorParallel
from comas.engines.vllm import ranks
from comas.engines.vllm.worker import Part
from comas.forecast import at_once
from comas.hosts.line import Call
from comas.transports.process import environment
from comas.types import UserMistake
from tests.support.command import run

ADAPTERS = ["engine=vllm", "learner=adapters", "lr=1e-4", "out=run"]


def mistake(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """The line with which a run is refused before it has a folder."""
    assert run(["train", *arguments], monkeypatch) == 2
    assert not Path("run").exists()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tensor_parallel=0"], "hosts.home.tensor_parallel"),
        (["tensor_parallel=-2"], "hosts.home.tensor_parallel"),
        (["tensor_parallel=two"], "hosts.home.tensor_parallel"),
        (
            ["tensor_parallel=2"],
            "error: hosts.home.tensor_parallel=2: engine 'auto' samples on one device: set"
            " hosts.home.engine=vllm, or leave it out",
        ),
        (["tensor_parallel=2", "engine=hf"], "engine 'hf' samples on one device"),
        (["tensor_parallel=2", "engine=stacked"], "engine 'stacked' samples on one device"),
        (
            ["tensor_parallel=2", "engine=vllm", "learner=full", "lr=1e-4"],
            "error: hosts.home.tensor_parallel=2: vLLM spreads adapters on one base over several",
        ),
    ],
)
def test_bad_values_are_one_line_before_the_run(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in mistake([*arguments, "out=run"], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("sizes", "count", "words"),
    [
        ({}, 3, "the base has 4 attention heads (num_attention_heads), which 3 GPUs cannot share"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3},
            2,
            "the base has 3 heads of keys and values (num_key_value_heads), which 2 GPUs cannot",
        ),
        ({"intermediate_size": 49}, 2, "49 hidden units (intermediate_size)"),
    ],
)
def test_a_base_that_cannot_be_shared_evenly_is_one_line(
    sizes: dict[str, int],
    count: int,
    words: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, "base")
    file = Path("base/config.json")
    config = json.loads(file.read_text())
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48}
    file.write_text(json.dumps(config | heads | sizes))
    line = mistake([f"tensor_parallel={count}", "base=base", *ADAPTERS], monkeypatch, capsys)
    assert line.startswith(f"error: hosts.home.tensor_parallel={count}: ")
    assert words in line
    assert line.endswith(f"set hosts.home.tensor_parallel={2 if count == 3 else 1}")


def test_more_gpus_than_there_are_is_one_line(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(at_once, "gpus", lambda: 2)
    monkeypatch.setattr(at_once, "device_of", lambda host: "cuda:1")
    arguments = ["tensor_parallel=2", f"base={tiny}", "where=process", *ADAPTERS]
    line = mistake(arguments, monkeypatch, capsys)
    assert line.startswith(
        "error: hosts.home.tensor_parallel=2 from hosts.home.device=auto on, and"
    )
    assert "2 GPUs can be seen here: lower it" in line
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    ranks.check_gpus(1, torch.device("cuda"), "hosts.home")
    ranks.check_gpus(8, torch.device("cpu"), "hosts.home")
    with pytest.raises(UserMistake, match="and 1 of the machine's GPUs can be seen"):
        ranks.check_gpus(2, torch.device("cuda"), "hosts.home")


def test_a_host_behind_an_api_has_no_gpus_of_ours() -> None:
    host = {"api": "http://localhost:1/v1", "base": "m", "tensor_parallel": 2}
    with pytest.raises(ValueError, match=r"hosts.judge.tensor_parallel is for hosts with weights"):
        Config.model_validate({"hosts": {"judge": host}})


def asked(count: int, **config: Any) -> TensorParallel:
    return TensorParallel(host="hosts.home", ranks=count, whole=False, configs=[config])


def test_a_head_may_be_kept_by_several_ranks_and_a_text_model_lies_deeper() -> None:
    vllm.check_tensor_parallel(asked(4, num_attention_heads=8, num_key_value_heads=2))
    vllm.check_tensor_parallel(asked(4, num_attention_heads=8, num_key_value_heads=8))
    vllm.check_tensor_parallel(asked(4, model_type="unknown"))
    deeper = {"num_attention_heads": 24, "num_key_value_heads": 8}
    with pytest.raises(UserMistake, match=r"which 16 GPUs .* set hosts.home.tensor_parallel=8"):
        vllm.check_tensor_parallel(asked(16, text_config=deeper))
    assert [ranks.kept_of(count, 2) for count in (1, 2, 4)] == [1, 2, 2]


def test_each_rank_has_its_part_of_a_tensor() -> None:
    rows = torch.arange(12.0)[:, None]
    parts = [Part(rank, 4).of(rows, 0, [(3, 1)]) for rank in range(4)]
    assert torch.equal(torch.cat(parts), rows)
    assert torch.equal(Part(2, 4).of(rows.mT, 1, [(3, 1)]), rows[6:9].mT)
    assert all(torch.equal(Part(rank, 4).of(rows, 0, [(12, 1)]), rows) for rank in range(4))
    shared = [Part(rank, 4).of(rows, 0, [(6, 1)])[0].item() for rank in range(4)]
    assert shared == [0, 0, 6, 6], "two ranks after each other keep the same head"
    # queries 8, keys 2 and values 2, of which two ranks have the same ones
    together = [(2, 1), (1, 2), (1, 2)]
    assert Part(1, 4).of(rows, 0, together).flatten().tolist() == [2, 3, 8, 10]
    assert Part(3, 4).of(rows, 0, together).flatten().tolist() == [6, 7, 9, 11]
    assert Part(1, 4).of(rows, 0, [(5, 1)]) is rows, "no part: it will not compare as equal"


def test_memory_is_told_of_the_first_gpu_or_of_all_ranks_on_a_cpu() -> None:
    size = ModelSize(1000, 50, "llama", lambda _: 7000)
    parts = {"models": [size], "policies": 4, "rows": 8, "adapter_parameters": 10}
    gpu = vllm.memory(EngineLoad(**parts, half=True, gpu=True, tensor_parallel=4))
    assert gpu.copies == 2 * 1000 // 4 + 2 * 10 * 14
    cpu = vllm.memory(EngineLoad(**parts, half=True, tensor_parallel=4))
    assert cpu.copies == 2 * 1000 + 4 * (2 * 10 * 14 + vllm.PROCESS)
    alone = vllm.memory(EngineLoad(**parts, half=True))
    assert (gpu.sampling, cpu.sampling) == (alone.sampling, 4 * alone.sampling)


def test_ranks_share_the_threads_and_leave_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    with ranks.started(2, "cpu"):
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert "JUDGE_API_KEY" not in os.environ
        os.environ["VLLM_OMP_NUM_THREADS_SET_BY_VLLM"] = "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["JUDGE_API_KEY"] == "secret"
    assert not {"PYTHONWARNINGS", "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"} & os.environ.keys()


def test_the_rank_that_ended_by_itself_is_named() -> None:
    killed, terminated = -signal.SIGKILL, -signal.SIGTERM
    assert ranks.last_words([None, None]) is None
    assert ranks.last_words([]) is None
    assert ranks.last_words([terminated, killed]) == "rank 1 was ended by SIGKILL"
    assert ranks.last_words([0, 1]) == "rank 1 ended with exit code 1"
    assert ranks.last_words([terminated, terminated]) == "rank 0 was ended by SIGTERM"


def test_a_host_in_a_process_sees_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(host="left", shipment=b"", device="cuda:2", threads=1, gpus=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment(call)["CUDA_VISIBLE_DEVICES"] == "2,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4")
    assert environment(call)["CUDA_VISIBLE_DEVICES"] == "5,4"
