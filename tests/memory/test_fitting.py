"""Memory is known before a run and heeded: defaults, refusals, warnings; and nothing of that when a
run goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from comas import machine, memory
from comas.config.plan import Plan
from comas.engines import auto, vllm
from comas.learners import precision as products
from comas.learners.logprobs import few_logits
from comas.machine import DeviceMemory, usable_cpus
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.start import resume_async
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.memory import folder_of
from tests.support.models import llama
from tests.support.runs import essence, run_of

KEPT = 1_000_000_000
PER_TOKEN = 1_000_000
PER_ROW = 100_000_000
ROW_TOKENS = 1000
"""A host for closed forms: bytes that it keeps, of a token that is learnt from, of a row that is
sampled; tokens of a row.
"""


class Proportional:
    """That host: everything is in proportion; recomputing makes a pass ten times smaller."""

    kept = KEPT
    trained = 1000
    gpu = False

    def learning(self, tokens: int, recomputing: bool) -> int:
        return PER_TOKEN * max(ROW_TOKENS, tokens) // (10 if recomputing else 1)

    def sampling(self, rows: int) -> int:
        return PER_ROW * min(256, rows)


@pytest.fixture
def proportional(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    """The host of closed forms on a machine with so many GB free."""
    monkeypatch.setattr(memory, "need_of", lambda *_: Proportional())

    def free(gigabytes: float | None) -> None:
        known = None if gigabytes is None else int(gigabytes * 1e9)
        monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(known, known))

    return free


def fit(plan: Plan) -> tuple[Plan, memory.MemoryPlan]:
    """The plan with its bounds, and what it takes."""
    found = memory.memory_plan(plan)
    return memory.with_bounds(plan, found), found


def resolved(folder: Path | str, *keys: str) -> Any:
    return runs.planned([f"hosts.home.base={folder}", "lr=1e-3", "hosts.home.device=cpu", *keys])


# --- what there is


def test_available_memory_is_the_least_that_the_kernel_and_the_control_groups_leave(
    tmp_path: Path,
) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put(
        "proc/meminfo",
        "MemTotal:       8000 kB\nMemFree:  10 kB\nMemAvailable:   5000 kB\nHugePages_Total:   0\n",
    )
    assert machine.linux_memory(tmp_path) == DeviceMemory(5000 * 1024, 8000 * 1024)
    put("proc/self/cgroup", "4:memory:/jobs/mine\n3:cpu,cpuacct:/jobs\n0::/user/session\n")
    put("sys/fs/cgroup/user/memory.max", "max\n")
    put("sys/fs/cgroup/user/memory.current", "77")
    assert machine.linux_memory(tmp_path) == DeviceMemory(5000 * 1024, 8000 * 1024)
    put("sys/fs/cgroup/user/session/memory.max", "4000000")
    put("sys/fs/cgroup/user/session/memory.current", "1000000")
    put("sys/fs/cgroup/user/session/memory.stat", "anon 5\ninactive_file 300000\n")
    assert machine.linux_memory(tmp_path) == DeviceMemory(3_300_000, 4_000_000)
    # a container sees its own group as the root
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000")
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "2500000")
    put("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100\n")
    assert machine.linux_memory(tmp_path) == DeviceMemory(500_100, 3_000_000)
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert machine.linux_memory(tmp_path) == DeviceMemory(3_300_000, 4_000_000)


def test_cpus_are_those_whose_time_the_control_groups_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert usable_cpus() == 64
    put("proc/self/cgroup", "3:cpu,cpuacct:/jobs\n0::/user/session\n")
    put("sys/fs/cgroup/user/session/cpu.max", "max 100000\n")
    put("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "-1\n")
    put("sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n")
    assert usable_cpus() == 64
    put("sys/fs/cgroup/user/cpu.max", "250000 100000\n")
    assert list(machine.cpu_quotas(tmp_path)) == [2.5]
    assert usable_cpus() == 3
    put("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "50000\n")
    assert usable_cpus() == 1


@pytest.mark.parametrize("odd", [b"", b"odd\n", b"4:memory\n", b"0::/a\0b\n", b"\xff\xfe0::/\n"])
def test_a_control_group_that_cannot_be_read_is_no_limit(odd: bytes, tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 8000 kB\nMemAvailable: 5000 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_bytes(odd)
    assert machine.linux_memory(tmp_path) == DeviceMemory(5000 * 1024, 8000 * 1024)


def test_what_a_control_group_could_drop_counts_as_used_where_it_cannot_be_read(
    tmp_path: Path,
) -> None:
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("odd\n0::/\n")
    (tmp_path / "proc" / "meminfo").write_bytes(b"\xff")
    (group / "memory.max").write_text("4000")
    (group / "memory.current").write_text("1000")
    (group / "memory.stat").write_bytes(b"inactive_file 300\n\xff\n")
    assert machine.linux_memory(tmp_path).free == 3000


def test_this_machine_says_something() -> None:
    found = machine.memory_of("cpu")
    assert found.total is not None
    assert 0 < (found.usable or 0) <= found.total
    assert machine.memory_of("xpu") == DeviceMemory(None, None)
    assert [
        str(m)
        for m in (
            DeviceMemory(2 * 10**9, 3 * 10**9),
            DeviceMemory(None, 3 * 10**9),
            DeviceMemory(None, None),
        )
    ] == [
        "2.0 GB free",
        "3.0 GB in all",
        "memory that is not known",
    ]


# --- defaults


@pytest.mark.parametrize("free", [1.0, 3.0, 3.9, 4.1, 7.0, 12.0, 20.0, 40.0, 500.0])
def test_defaults_are_the_largest_powers_of_two_with_which_the_host_takes_half_of_what_is_free(
    free: float, proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(free)
    fitted, found = fit(resolved(untaught))
    host = fitted.config.hosts["home"]
    room = 0.5e9 * free - KEPT
    recomputing = room < PER_TOKEN * ROW_TOKENS
    per_token = PER_TOKEN // 10 if recomputing else PER_TOKEN
    # a pass has one row at least
    tokens = next((n for n in (1024, 512) if per_token * max(ROW_TOKENS, n) <= room), 256)
    rows = next((n for n in (64, 32, 16, 8, 4, 2) if PER_ROW * n <= room), 1)
    assert (host.tokens_per_pass, host.max_rows) == (tokens, rows)
    chosen = {"tokens_per_pass": tokens, "max_rows": rows}
    assert host.checkpointing is recomputing
    assert found.hosts[0].chosen == chosen | ({"checkpointing": True} if recomputing else {})
    assert found.taken("cpu") == KEPT + max(
        Proportional().learning(tokens, recomputing), PER_ROW * rows
    )


def test_what_is_set_stays_and_what_is_chosen_is_told(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(7.0)
    fitted, found = fit(resolved(untaught, "hosts.home.max_rows=40"))
    config = fitted.config
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 40)
    assert found.hosts[0].chosen == {"tokens_per_pass": 1024}
    proportional(5.2)
    fitted, found = fit(resolved(untaught))
    config = fitted.config
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 16)
    (note,) = found.notes()
    assert note == (
        "memory: about 2.6 GB at the peak, 5.2 GB free on the CPU; so"
        " hosts.home.tokens_per_pass=1024, hosts.home.max_rows=16"
    )


def test_hosts_on_one_device_share_it(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(14.0)
    keys = [f"hosts.{n}.{k}" for n in ("home", "away") for k in ("device=cpu", f"base={untaught}")]
    fitted, found = fit(runs.planned([*keys, "agents=2", "lr=1e-3"]))
    config = fitted.config
    # 14 / 2 / 2 - 1 GB each
    assert {(h.tokens_per_pass, h.max_rows) for h in config.hosts.values()} == {(1024, 16)}
    assert found.taken("cpu") == 2 * (KEPT + 16 * PER_ROW)


def test_a_small_host_leaves_a_large_one_what_its_passes_need(
    proportional: Callable[[float | None], None], untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proportional(14.0)
    needs = {"home": Proportional(), "away": Proportional()}
    needs["away"].kept = 4 * KEPT  # more than half of what both may take
    monkeypatch.setattr(memory, "need_of", lambda _, name: needs[name])
    keys = [f"hosts.{n}.{k}" for n in ("home", "away") for k in ("device=cpu", f"base={untaught}")]
    fitted, found = fit(runs.planned([*keys, "agents=2", "lr=1e-3"]))
    # (14 / 2 - 5) / 2 GB for the passes of each: one row of 1000 tokens, or eight rows
    chosen = {(h.tokens_per_pass, h.max_rows) for h in fitted.config.hosts.values()}
    assert chosen == {(512, 8)}
    assert found.taken("cpu") == 5 * KEPT + 2 * 10**9


def test_where_nobody_knows_the_memory_or_the_model_careful_values_are_taken_and_told(
    proportional: Callable[[float | None], None], untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proportional(None)
    fitted, found = fit(resolved(untaught))
    config = fitted.config
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 64)
    found.check()
    monkeypatch.setattr(memory, "need_of", lambda *_: "it has a shape of its own")
    fitted, found = fit(resolved(untaught, "hosts.home.max_rows=5"))
    config = fitted.config
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 5)
    assert list(found.notes()) == [
        "memory of host home is not known (it has a shape of its own):"
        " hosts.home.tokens_per_pass=1024"
    ]


@pytest.mark.parametrize("free", [0.001, 100.0])
def test_shipped_models_get_the_same_on_every_machine(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(int(free * 1e9), 10**12))
    given = runs.planned()
    assert (given.config.hosts["home"].tokens_per_pass, given.config.hosts["home"].max_rows) == (
        8192,
        512,
    )
    fitted, found = fit(given)
    config = fitted.config
    assert config.hosts == given.config.hosts
    assert (found.taken("cpu") > free * 1e9) == (free < 1)
    assert len(list(found.notes())) == (free < 1)  # passes may not fit


# --- the dtype of passes on a CPU


@pytest.mark.parametrize(("speed", "wanted"), [(4.0, "bfloat16"), (1.5, "bfloat16"), (1.4, "auto")])
def test_large_models_on_a_cpu_take_bfloat16_where_it_is_clearly_faster(
    speed: float, wanted: str, untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(products, "bfloat16_speed", lambda *_: tried.append(1) or speed)
    notes: list[str] = []
    assert memory.with_dtypes(resolved(untaught), notes.append).config.hosts["home"].dtype == (
        "auto"
    )
    monkeypatch.setattr(products, "LARGE", 1)
    config = memory.with_dtypes(resolved(untaught), notes.append).config
    assert config.hosts["home"].dtype == wanted
    assert len(tried) == 1
    told = ["hosts.home.dtype=bfloat16: this processor multiplies it"] * (wanted == "bfloat16")
    assert [note.partition(" it ")[0] + " it" for note in notes] == told
    settled = resolved(untaught, "hosts.home.dtype=float32")
    assert memory.with_dtypes(settled, notes.append).config == settled.config


def test_a_frozen_host_takes_bfloat16_as_learning_ones_do(
    untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "bfloat16_speed", lambda *_: 4.0)
    frozen = resolved(untaught, "agents.a0.frozen=true")
    assert memory.with_dtypes(frozen, print).config.hosts["home"].dtype == "bfloat16"


def test_the_speed_of_bfloat16_is_measured_on_this_processor(untaught: Path) -> None:
    assert products.bfloat16_speed(str(untaught)) > 0


# --- refused, warned of


def test_a_run_whose_weights_do_not_fit_is_refused_and_large_passes_are_told(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(0.9)
    _, found = fit(resolved(untaught))
    with pytest.raises(UserMistake, match=r"weights.*take 1\.0 GB"):
        found.check()
    for free, keys in [
        (7.0, ["hosts.home.tokens_per_pass=8192"]),
        (7.0, ["hosts.home.max_rows=256"]),
        (1.9, ["hosts.home.checkpointing=false"]),
        (1.02, []),
    ]:
        proportional(free)
        _, found = fit(resolved(untaught, *keys))
        found.check()
        *_, note = found.notes()
        assert note.startswith("memory: passes may not fit: about ")
        assert "lower tokens_per_pass, max_rows or context" in note


def test_training_refuses_before_anything_is_written(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10**6, 10**6))
    keys = [
        f"hosts.home.base={untaught}",
        "lr=1e-3",
        "steps=1",
        "agents=2",
        "questions=2",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *keys], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the run does not fit into memory: weights, adapters")
    assert not (tmp_path / "r").exists()


def test_a_run_that_goes_on_keeps_its_values_whatever_the_memory_is(
    untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10**12, 10**12))
    keys = {"agents": 2, "steps": 2, "threads": 1}
    whole = run_of(tmp_path / "whole", untaught, **keys)
    home = whole.config()["hosts"]["home"]
    assert (home["tokens_per_pass"], home["max_rows"], home["dtype"]) == (1024, 64, "auto")
    assert home["checkpointing"] is False
    run_of(tmp_path / "cut", untaught, **{**keys, "steps": 1})
    file = tmp_path / "cut" / "config.toml"
    file.write_text(file.read_text().replace("steps = 1", "steps = 2"))
    kept = Run(tmp_path / "cut").config()
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10**6, 10**6))
    run_sync(resume_async(tmp_path / "cut"))
    assert Run(tmp_path / "cut").config() == kept
    assert essence(Run(tmp_path / "cut")) == essence(whole)


# --- the formula


SHAPES = {
    "smollm2": ("llama", 576, 1536, 30, 9, 3, 49152, 134_515_008),
    "qwen": ("qwen2", 896, 4864, 24, 14, 2, 151936, 494_032_768),
}


def shaped(name: str, **changes: Any) -> Any:
    """The config of a model of one of these shapes."""
    family, width, inner, layers, heads, keys, vocabulary, _ = SHAPES[name]
    return AutoConfig.for_model(
        family,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        vocab_size=vocabulary,
        **changes,
    )


COUNTED = {
    # a pass of 1,024 tokens with rows of 512, in MB, counted tensor by tensor
    ("smollm2", "adapters", "float32"): (1804, 479),
    ("smollm2", "adapters", "bfloat16"): (1175, 442),
    ("smollm2", "full", "float32"): (2051, 595),
    ("qwen", "adapters", "float32"): (3088, 500),
    ("qwen", "adapters", "bfloat16"): (1833, 453),
    ("qwen", "full", "float32"): (4493, 1736),
}


@pytest.mark.parametrize(("name", "learner", "dtype"), COUNTED)
def test_the_formula_is_near_what_was_counted(
    name: str, learner: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SCATTERED", 0.0)
    monkeypatch.setattr(memory, "QUESTION", 512 - 3 * 40)
    size = SHAPES[name][-1]
    shaped(name, tie_word_embeddings=True).save_pretrained(tmp_path)
    given = [
        f"hosts.home.learner={learner}",
        f"hosts.home.dtype={dtype}",
        "agents=1",
        "max_tokens=40",
    ]
    load = memory.need_of(resolved(tmp_path, "task=sums", *given), "home")
    assert isinstance(load, memory.HostNeed)
    assert load.size.parameters == pytest.approx(size, rel=0.001)
    gradients = 4 * load.size.parameters if learner == "full" else 0
    kept, recomputed = COUNTED[name, learner, dtype]
    assert (load.learning(1024, False) - gradients) / 1e6 == pytest.approx(kept, rel=0.08)
    assert (load.learning(1024, True) - gradients) / 1e6 == pytest.approx(recomputed, rel=0.2)


def test_a_row_that_is_longer_than_a_pass_is_counted_whole(untaught: Path) -> None:
    load = memory.need_of(resolved(untaught), "home")
    assert isinstance(load, memory.HostNeed)
    assert load.learning(64, False) == load.learning(load.longest, False)
    assert load.learning(2 * load.longest, False) > 1.5 * load.learning(64, False)


def test_all_agents_of_a_host_are_measured_at_once(untaught: Path) -> None:
    keys = ["agents=3", "questions=2", "test_questions=50", "eval_every=0", "task=pick"]
    load = memory.need_of(resolved(untaught, *keys), "home")
    assert isinstance(load, memory.HostNeed)
    assert load.asked == 150
    assert load.sampling(150) == load.sampling(500)


def test_a_base_that_is_not_here_is_not_known() -> None:
    away = runs.planned(["hosts.home.base=nobody/nothing", "lr=1"])
    assert memory.need_of(away, "home") == "nobody/nothing is not on this disk"
    assert memory.memory_plan(away).checkpoint is None


@pytest.mark.parametrize(
    "weights",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
        b"",
        b"\x02\0\0\0\0\0\0\0[]",
        b'\x08\0\0\0\0\0\0\0{"a":{}}',
        b'\x0d\0\0\0\0\0\0\0{"a":{}, nil}',
        b'\x17\0\0\0\0\0\0\0{"a":{"shape":[1,"x"]}}',
        b'\x15\0\0\0\0\0\0\0{"a":{"shape":null}}  ',
    ],
)
def test_weights_that_are_none_have_no_known_size_and_loading_says_why(
    weights: bytes, untaught: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(untaught, tmp_path / "base")
    (folder / "model.safetensors").write_bytes(weights)
    assert memory.parameters(str(folder)) is None
    memory.bounds_of_new(resolved(folder), lambda _: None)  # as training does before it loads


def test_what_is_kept_adds_up(tmp_path: Path) -> None:
    model = llama()
    folder = folder_of(model, tmp_path)
    size = model.num_parameters()
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)][:-1]
    adapter = sum(8 * (m.in_features + m.out_features) for m in linear)

    def load(*keys: str) -> memory.HostNeed:
        found = memory.need_of(resolved(folder, *keys), "home")
        assert isinstance(found, memory.HostNeed)
        return found

    # weights, moments, the reference and what is packed
    whole = load("agents=3", "hosts.home.learner=full")
    assert (whole.kept, whole.trained) == (20 * 3 * size, 3 * size)
    keys = ["hosts.home.learner=adapters", "hosts.home.rank=8"]
    three = load(*keys, "agents=3")
    assert (three.kept, three.trained) == (8 * size + 3 * 16 * adapter, 3 * adapter)
    alone = runs.planned([f"base={folder}", "task=sums", "agents=1"], learn=False)
    asked = memory.need_of(alone, "home")
    assert isinstance(asked, memory.HostNeed)
    assert asked.kept == 8 * size, "weights and what is packed of them"
    frozen = load(*keys, "agents.a0.frozen=true", "agents.a1={}", "agents.a2={}")
    assert frozen.kept == 8 * size + (3 * 8 + 2 * 8) * adapter


def test_a_row_that_is_longer_than_a_pass_has_its_logits_made_in_chunks() -> None:
    model = llama()  # 50 words, 128 positions
    assert few_logits(model, 64, 50 * 128)
    assert not few_logits(model, 64, 50 * 128 - 1)
    assert not few_logits(model, 256, 50 * 128)


EIGHT = [f"hosts.h{i}.kind=ray" for i in range(8)]
"""Actors on a machine with eight GPUs."""


@pytest.mark.parametrize(("gpus", "fits"), [(1, True), (2, True), (0.25, False)])
def test_each_actor_has_cards_of_its_own(
    gpus: float, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaped(next(iter(SHAPES))).save_pretrained(tmp_path)
    monkeypatch.setattr(memory, "place_of", lambda *_: (torch.device("cuda", 0), torch.bfloat16))
    monkeypatch.setattr(auto, "takes_vllm", lambda *_: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    keys = [f"hosts.h{i}.{key}" for i in range(8) for key in (f"gpus={gpus}", "learner=adapters")]
    bases = [f"hosts.h{i}.base={tmp_path}" for i in range(8)]
    run = runs.planned(["task=sums", "agents=16", "lr=1e-3", *EIGHT, *keys, *bases])
    need = memory.need_of(run, "h0")
    assert isinstance(need, memory.HostNeed)
    card = 2 * need.kept
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(card, card))
    found = memory.memory_plan(run)
    assert [host.device for host in found.hosts] == [
        f"the first GPU of hosts.h{i}" for i in range(8)
    ]
    assert all(memory.usable == int(min(1, gpus) * card) for memory in found.memory.values())
    if fits:
        found.check()
    else:
        with pytest.raises(UserMistake, match=r"first GPU of hosts\.h0"):
            found.check()


def test_a_base_that_vllm_deals_to_two_gpus_takes_half_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaped(next(iter(SHAPES))).save_pretrained(tmp_path)
    monkeypatch.setattr(memory, "place_of", lambda *_: (torch.device("cuda", 0), torch.bfloat16))
    keys = ["task=sums", "hosts.home.learner=adapters", "hosts.home.kind=ray"]
    kept = {}
    for engine in ("vllm", "hf"):
        for gpus in (1, 2):
            run = resolved(
                tmp_path, *keys, f"hosts.home.engine={engine}", f"hosts.home.gpus={gpus}"
            )
            kept[engine, gpus] = memory.need_of(run, "home")
    base = 2 * kept["hf", 1].size.parameters
    assert kept["hf", 2].kept == kept["hf", 1].kept
    assert kept["vllm", 1].kept == kept["hf", 1].kept + base
    assert kept["vllm", 2].kept == kept["hf", 1].kept + base // 2


@pytest.mark.parametrize("total", [24, 80])
@pytest.mark.parametrize("name", SHAPES)
def test_learner_and_vllm_share_a_card_of_which_each_has_its_turn(
    name: str, total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights twice; keys and values while it samples, activations while it sleeps."""
    config = shaped(name)
    config.save_pretrained(tmp_path)
    size = total * 10**9
    monkeypatch.setattr(memory, "place_of", lambda *_: (torch.device("cuda", 0), torch.bfloat16))
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(size, size))
    run = resolved(tmp_path, "task=sums", "agents=4", "hosts.home.learner=adapters")
    monkeypatch.setattr(auto, "takes_vllm", lambda *_: False)
    without = memory.need_of(run, "home")
    monkeypatch.setattr(auto, "takes_vllm", lambda *_: True)
    load = memory.need_of(run, "home")
    assert isinstance(load, memory.HostNeed)
    assert isinstance(without, memory.HostNeed)
    weights = 2 * load.size.parameters
    assert load.kept == without.kept + weights
    fitted, found = fit(run)
    host = fitted.config.hosts["home"]
    (of_host,) = found.hosts
    assert of_host.kept + max(of_host.sampling, of_host.learning) <= 0.8 * size
    of_learner = load.kept - weights
    row = vllm.row_bytes(config, 1024, torch.bfloat16)
    reserved = weights + vllm.WORKSPACE
    cache = vllm.cache_bytes(row, host.max_rows, size - of_learner, reserved, "cuda", "hosts.home")
    assert row <= cache <= row * host.max_rows
    assert of_learner + reserved + cache <= size


def test_experts_have_a_width_of_their_own(tmp_path: Path) -> None:
    """Sizes of Qwen3-30B-A3B, whose weights are not on this disk."""
    config = AutoConfig.for_model(
        "qwen3_moe",
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        vocab_size=151936,
    )
    config.save_pretrained(tmp_path)
    assert memory.size_of(str(tmp_path), str(tmp_path)).parameters == pytest.approx(
        30.5e9, rel=0.02
    )


@pytest.mark.parametrize(
    ("free", "runs", "said"),
    [
        (40, 2, ["2 runs at once may not fit", "--jobs 1 is safe"]),
        (40, 1, []),
        (90, 3, []),
        (90, 4, ["4 runs at once", "--jobs 3 is safe"]),
        (10, 2, ["--jobs 1 is safe"]),
        (10, 1, []),
        (None, 9, []),
    ],
)
def test_runs_that_crowd_a_device_are_told(free: int | None, runs: int, said: list[str]) -> None:
    hosts = [  # while one learns the other has nothing to do
        memory.HostMemory("left", "cpu", kept=10, sampling=3, learning=10),
        memory.HostMemory("right", "cpu", kept=10, sampling=6),
    ]
    planned = memory.MemoryPlan(hosts, {"cpu": DeviceMemory(free, free)})
    notes = list(planned.crowding(runs))
    assert len(notes) == bool(said)
    assert all(words in notes[0][1] for words in said)
