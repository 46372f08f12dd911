"""Memory is known before a run and heeded: defaults, refusals, warnings; and nothing of that when a
run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comas import machine
from comas.config.policies import Resolved
from comas.config.resolve import resolve
from comas.config.schema import read
from comas.forecast import fitting, precision
from comas.hooks import Hook
from comas.hosts.local_table import MAX_ROWS, TOKENS_PER_PASS
from comas.learners import products
from comas.learners.logprobs import few_logits
from comas.learners.memory import Shape, pass_bytes
from comas.machine import Memory
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.start import resume_async
from comas.types import UserMistake
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


def needs_of(resolved: Resolved, name: str = "home", **_: object) -> dict[str, int]:
    """Of that host: everything is in proportion; recomputing makes a pass ten times smaller, half
    precision what is kept.
    """
    host = resolved.config.hosts[name]
    longest = min(ROW_TOKENS, host.context or ROW_TOKENS)
    rows = min(256, host.max_rows or MAX_ROWS)
    passes = (
        PER_TOKEN
        * max(longest, host.tokens_per_pass or TOKENS_PER_PASS)
        // (10 if host.checkpointing else 1)
    )
    samples = PER_ROW * rows * longest // ROW_TOKENS
    kept = KEPT // (2 if host.dtype == "bfloat16" else 1)
    return {
        "tokens of a row, at most": longest,
        "rows sampled at once": rows,
        "bytes of the base": kept,
        "bytes of a learner's pass": passes,
        "bytes of sampling, caches included": samples,
        "bytes at the peak": kept + max(passes, samples),
    }


@pytest.fixture
def proportional(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    """The host of closed forms on a machine with so many GB free."""
    monkeypatch.setattr(fitting, "host_needs", needs_of)
    monkeypatch.setattr(fitting, "question_tokens", lambda *_: 100)
    monkeypatch.setattr(fitting, "longest_row", lambda *_: (400, ROW_TOKENS))

    def free(gigabytes: float | None) -> None:
        known = None if gigabytes is None else int(gigabytes * 1e9)
        monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(known, known))

    return free


def resolved(folder: Path | str, *keys: str) -> Any:
    return resolve(
        read(None, [f"hosts.home.base={folder}", "lr=1e-3", "hosts.home.device=cpu", *keys])
    )


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
    assert machine.linux_memory(tmp_path) == Memory(5000 * 1024, 8000 * 1024)
    put("proc/self/cgroup", "4:memory:/jobs/mine\n3:cpu,cpuacct:/jobs\n0::/user/session\n")
    put("sys/fs/cgroup/user/memory.max", "max\n")
    put("sys/fs/cgroup/user/memory.current", "77")
    assert machine.linux_memory(tmp_path) == Memory(5000 * 1024, 8000 * 1024)
    put("sys/fs/cgroup/user/session/memory.max", "4000000")
    put("sys/fs/cgroup/user/session/memory.current", "1000000")
    put("sys/fs/cgroup/user/session/memory.stat", "anon 5\ninactive_file 300000\n")
    assert machine.linux_memory(tmp_path) == Memory(3_300_000, 4_000_000)
    # a container sees its own group as the root
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000")
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "2500000")
    put("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100\n")
    assert machine.linux_memory(tmp_path) == Memory(500_100, 3_000_000)
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert machine.linux_memory(tmp_path) == Memory(3_300_000, 4_000_000)


@pytest.mark.parametrize("odd", [b"", b"odd\n", b"4:memory\n", b"0::/a\0b\n", b"\xff\xfe0::/\n"])
def test_a_control_group_that_cannot_be_read_is_no_limit(odd: bytes, tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 8000 kB\nMemAvailable: 5000 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_bytes(odd)
    assert machine.linux_memory(tmp_path) == Memory(5000 * 1024, 8000 * 1024)


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
    assert machine.memory_of("mps") == Memory(None, None)
    assert [
        str(m) for m in (Memory(2 * 10**9, 3 * 10**9), Memory(None, 3 * 10**9), Memory(None, None))
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
    fitted, found = fitting.fit(resolved(untaught))
    host = fitted.config.hosts["home"]
    room = 0.5e9 * free - KEPT
    recomputing = room < PER_TOKEN * ROW_TOKENS
    per_token = PER_TOKEN // 10 if recomputing else PER_TOKEN
    # a pass has one row at least
    tokens = next(
        (n for n in (1024, 512) if per_token * max(ROW_TOKENS, n) <= room), fitting.LEAST_TOKENS
    )
    rows = next((n for n in (64, 32, 16, 8, 4, 2) if PER_ROW * n <= room), 1)
    assert (host.tokens_per_pass, host.max_rows) == (tokens, rows)
    chosen = {"tokens_per_pass": tokens, "max_rows": rows}
    assert host.checkpointing is recomputing
    assert found.hosts[0].chosen == chosen | ({"checkpointing": True} if recomputing else {})
    assert found.peak_of("cpu") == needs_of(fitted)["bytes at the peak"]


def test_what_is_set_stays_and_an_allowance_counts_instead_of_what_is_free(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(7.0)
    (config, *_), found = fitting.fit(resolved(untaught, "hosts.home.max_rows=40"))
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 40)
    assert found.hosts[0].chosen == {"tokens_per_pass": 1024}
    (config, *_), found = fitting.fit(resolved(untaught, "memory=4"))  # 3.6 GB of it
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 16)
    (note,) = found.notes()
    assert note.startswith(
        "memory: about 2.6 GB at the peak (sampling), 4.0 GB that memory=4 allows on the CPU, with"
        " hosts."
    )


def test_hosts_on_one_device_share_it(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(14.0)
    keys = [f"hosts.{n}.{k}" for n in ("home", "away") for k in ("device=cpu", f"base={untaught}")]
    (config, *_), found = fitting.fit(resolve(read(None, [*keys, "agents=2", "lr=1e-3"])))
    # 14 / 2 / 2 - 1 GB each
    assert {(h.tokens_per_pass, h.max_rows) for h in config.hosts.values()} == {(1024, 16)}
    assert found.peak_of("cpu") == sum(h.peak for h in found.hosts) == 2 * (KEPT + 16 * PER_ROW)


def test_where_nobody_knows_the_memory_or_the_model_careful_values_are_taken_and_told(
    proportional: Callable[[float | None], None], untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proportional(None)
    (config, *_), found = fitting.fit(resolved(untaught))
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 64)
    assert found.too_large() == found.tight() == []
    monkeypatch.setattr(fitting, "host_needs", lambda *_, **__: "it has a shape of its own")
    (config, *_), found = fitting.fit(resolved(untaught, "hosts.home.max_rows=5"))
    assert (config.hosts["home"].tokens_per_pass, config.hosts["home"].max_rows) == (1024, 5)
    assert found.notes() == [
        "memory of host home is not known (it has a shape of its own): tokens_per_pass=1024"
    ]


@pytest.mark.parametrize("free", [0.001, 100.0])
def test_seed_models_get_the_same_on_every_machine(
    free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(int(free * 1e9), 10**12))
    given = resolve(read(None))
    assert (given[0].hosts["home"].tokens_per_pass, given[0].hosts["home"].max_rows) == (8192, 512)
    (config, *_), found = fitting.fit(given)
    assert config.hosts == given[0].hosts
    assert bool(found.too_large()) == (free < 1)
    assert not found.notes()


def test_seed_models_never_need_what_is_called_ample(untaught: Path) -> None:
    """The longest rows that they can have, all at once, for more agents than a team has."""
    keys = ["agents=16", "options.rounds=9", "room.solution=400", "threads=16", "questions=600"]
    needs = fitting.host_needs(resolve(read(None, keys)), "home")
    assert isinstance(needs, dict)
    assert needs["bytes at the peak"] < fitting.AMPLE


# --- the dtype of passes on a CPU


@pytest.mark.parametrize(("speed", "wanted"), [(4.0, "bfloat16"), (1.5, "bfloat16"), (1.4, "auto")])
def test_large_models_on_a_cpu_take_bfloat16_where_it_is_clearly_faster(
    speed: float, wanted: str, untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(products, "bfloat16_speed", lambda _: tried.append(1) or speed)
    notes: list[str] = []
    assert precision.with_dtypes(resolved(untaught), notes.append).config.hosts["home"].dtype == (
        "auto"
    )
    monkeypatch.setattr(products, "LARGE", 1)
    config = precision.with_dtypes(resolved(untaught), notes.append).config
    assert config.hosts["home"].dtype == wanted
    assert len(tried) == 1
    told = ["hosts.home.dtype=bfloat16: this processor multiplies it"] * (wanted == "bfloat16")
    assert [note.partition(" it ")[0] + " it" for note in notes] == told
    for keys in ["hosts.home.dtype=float32", "agents.a0.frozen=true"]:
        settled = resolved(untaught, keys)
        assert precision.with_dtypes(settled, notes.append).config == settled.config
    seeds = resolve(read(None))
    assert precision.with_dtypes(seeds, notes.append).config == seeds.config
    assert len(tried) == 1


def test_the_speed_of_bfloat16_is_measured_on_this_processor(untaught: Path) -> None:
    assert products.bfloat16_speed(str(untaught)) > 0


# --- refused, warned of


def test_a_run_that_cannot_fit_is_refused_with_keys_that_make_it_fit(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    explicit = ("hosts.home.tokens_per_pass=8192", "hosts.home.max_rows=256")
    for free, keys, wanted in [
        (7.0, explicit, ["hosts.home.tokens_per_pass=1024", "hosts.home.max_rows=16"]),
        (7.0, explicit[:1], ["hosts.home.tokens_per_pass=1024"]),
        (1.9, ("hosts.home.checkpointing=false",), ["hosts.home.checkpointing=true"]),
        (1.05, (), ["hosts.home.dtype=bfloat16"]),
        (0.58, (), ["hosts.home.dtype=bfloat16", "hosts.home.context=400"]),
    ]:
        proportional(free)
        given = resolved(untaught, *keys)
        config, found = fitting.fit(given)
        with pytest.raises(
            UserMistake, match=r"the run does not fit into memory: about .* GB at the peak"
        ) as refused:
            fitting.check(found, config)
        said = str(refused.value).rpartition(": set ")[2].split()
        assert said == wanted
        again = resolved(
            untaught,
            *[k for k in keys if k.split("=")[0] not in {s.split("=")[0] for s in said}],
            *said,
        )
        fitted, found = fitting.fit(again)
        fitting.check(found, fitted)
    proportional(0.2)
    given = resolved(untaught)
    config, found = fitting.fit(given)
    with pytest.raises(UserMistake, match="no setting makes it fit; have fewer agents"):
        fitting.check(found, config)


def test_a_tight_run_is_warned_of(
    proportional: Callable[[float | None], None], untaught: Path
) -> None:
    proportional(3.2)
    keys = ["hosts.home.tokens_per_pass=2048", "hosts.home.max_rows=4"]
    _, found = fitting.fit(resolved(untaught, *keys))
    told = "memory is tight: about 3.0 GB at the peak (learning), 3.2 GB free on the CPU"
    assert found.notes() == [f"{told}; lower hosts.home.tokens_per_pass if it runs out"]
    proportional(4.0)
    assert fitting.fit(resolved(untaught, *keys))[1].notes() == []


def test_training_refuses_before_anything_is_written(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(10**6, 10**6))
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
    assert line.startswith("error: the run does not fit into memory: about 0.")
    assert not (tmp_path / "r").exists()


def test_a_run_that_goes_on_keeps_its_values_whatever_the_memory_is_and_is_warned(
    untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(10**12, 10**12))
    keys = {"agents": 2, "steps": 2, "threads": 1}
    whole = run_of(tmp_path / "whole", untaught, **keys)
    home = whole.config()["hosts"]["home"]
    assert (home["tokens_per_pass"], home["max_rows"], home["dtype"]) == (1024, 64, "auto")
    assert home["checkpointing"] is False
    run_of(tmp_path / "cut", untaught, **{**keys, "steps": 1})
    file = tmp_path / "cut" / "config.toml"
    file.write_text(file.read_text().replace("steps = 1", "steps = 2"))
    kept = Run(tmp_path / "cut").config()
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(10**6, 10**6))
    notes: list[str] = []

    class Listening(Hook):
        def note(self, text: str) -> None:
            notes.append(text)

    run_sync(resume_async(tmp_path / "cut", Listening()))
    assert [n for n in notes if "may not fit into memory now: about 0." in n]
    assert Run(tmp_path / "cut").config() == kept
    assert essence(Run(tmp_path / "cut")) == essence(whole)


# --- the estimate itself


def test_a_row_that_is_longer_than_a_pass_is_counted_whole(tmp_path: Path) -> None:
    folder = folder_of(llama(), tmp_path)
    short, long = (pass_bytes(Shape(folder, False, longest), 64, False) for longest in (64, 128))
    assert long == pass_bytes(Shape(folder, False, 128), 128, False) > 1.5 * short


def test_a_row_that_is_longer_than_a_pass_has_its_logits_made_in_chunks() -> None:
    model = llama()  # 50 words, 128 positions
    assert few_logits(model, 64, 50 * 128)
    assert not few_logits(model, 64, 50 * 128 - 1)
    assert not few_logits(model, 256, 50 * 128)


def test_all_agents_of_a_host_are_measured_at_once(untaught: Path) -> None:
    keys = ["agents=3", "questions=2", "test_questions=50", "eval_every=0", "task=pick"]
    found = fitting.host_needs(resolved(untaught, *keys), "home")
    assert isinstance(found, dict)
    assert found["rows sampled at once"] == 150
