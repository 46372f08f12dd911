"""Whole runs of adapters: killed and resumed, out of memory, and what users get wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

import comas
from comas.config.plan import plan
from comas.config.schema import read
from comas.engines.stacked import StackedEngine
from comas.hooks import Hook
from comas.learners.lora.learner import AdapterLearner
from comas.learners.whole import FullLearner
from comas.memory import memory_plan
from comas.storage.run import Run
from comas.testing import tiny_model
from tests.support.apart import ApartForCausalLM
from tests.support.command import run
from tests.support.runs import Killed, essence

pytestmark = pytest.mark.usefixtures("one_thread")


def pairs(keys: dict[str, Any]) -> list[str]:
    flat = {
        f"{k}.{role}": n for k, v in keys.items() if isinstance(v, dict) for role, n in v.items()
    }
    plain = {k: v for k, v in keys.items() if not isinstance(v, dict) and v is not None}
    return [f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in {**plain, **flat}.items()]


MIXED = [
    "agents.a.rank=2",
    "agents.b.rank=6",
    "agents.b.lr=1e-4",
    'agents.c.targets=["q_proj", "up_proj"]',
    "hosts.home.checkpointing=true",
    "hosts.home.tokens_per_pass=1500",
    "epochs=2",
    "minibatches=2",
]


@pytest.fixture(scope="module")
def whole(tiny: Path, paid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        assert (
            run(["train", *pairs(paid), *MIXED, f"hosts.home.base={tiny}", f"out={folder}"], patch)
            == 0
        )
    return Run(folder)


def test_ranks_and_rates_are_those_of_the_config(whole: Run) -> None:
    folder = whole.path / "checkpoints" / "step-3"
    told = {p: json.loads((folder / p / "adapter_config.json").read_text()) for p in "abc"}
    assert {p: (t["r"], t["lora_alpha"]) for p, t in told.items()} == {
        "a": (2, 4.0),
        "b": (6, 12.0),
        "c": (16, 32.0),
    }
    assert told["c"]["target_modules"] == ["q_proj", "up_proj"]
    policies = [m["policies"] for m in whole.metrics()]
    assert [policies[0][f"home/{p}"]["lr"] for p in "abc"] == [1e-3, 1e-4, 1e-3]
    assert all(
        p["updates"] == 4 and p["gap_max"] < 1e-4 for step in policies for p in step.values()
    )
    assert whole.config()["hosts"]["home"]["learner"] == "adapters"


def test_killed_and_resumed_is_the_uninterrupted_run(
    whole: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Killing(Hook):
        def step(self, metrics: Any, episodes: Any) -> None:
            if metrics["step"] == 1:  # written, not yet committed
                raise Killed

    config = tmp_path / "c.toml"
    config.write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path), str(tmp_path / "cut"))
    )
    with pytest.raises(Killed):
        comas.train(config, [Killing()])
    assert Run(tmp_path / "cut").marker()["step"] == 1  # type: ignore[index]
    assert run(["resume", str(tmp_path / "cut")], monkeypatch) == 0
    assert essence(Run(tmp_path / "cut")) == essence(whole)
    moved = [
        v
        for _, tensors in essence(whole)[1]
        for k, v in tensors.items()
        if k.endswith("lora_B.weight")
    ]
    assert any(np.any(v) for v in moved)


# --- out of memory

SHORT: list[tuple[Callable[[], Exception], str]] = [
    (
        lambda: torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"
        ),
        "Tried to allocate 2.00 GiB",
    ),
    (
        lambda: RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
            " bytes"
        ),
        "9 bytes",
    ),
    (lambda: RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), "9 GB"),
    (lambda: RuntimeError("Invalid buffer size: 9.02 GB"), "9.02 GB"),
    (MemoryError, "out of memory while"),
]
KNOBS = {
    "sampling": ["hosts.home.max_rows", "hosts.home.context", "fewer agents"],
    "learning": [
        "hosts.home.tokens_per_pass",
        "hosts.home.context",
        "hosts.home.checkpointing=true",
        "fewer agents",
    ],
}


def failing(
    monkeypatch: pytest.MonkeyPatch, doing: str, at: int, error: Callable[[], Exception]
) -> None:
    """From the call `at` on there is no room."""
    owner, name = (StackedEngine, "generate") if doing == "sampling" else (AdapterLearner, "finish")
    real: Any = getattr(owner, name)
    calls: list[int] = []

    def act(*given: Any) -> Any:
        calls.append(0)
        if len(calls) > at:
            raise error()
        return real(*given)

    monkeypatch.setattr(owner, name, act)


@pytest.mark.parametrize(
    ("doing", "error", "said"), [("learning", *SHORT[0]), *(("sampling", *each) for each in SHORT)]
)
def test_out_of_memory_is_one_line_that_says_which_keys_help_and_nothing_is_lost(
    doing: str,
    error: Callable[[], Exception],
    said: str,
    whole: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path), str(tmp_path / "r"))
    )
    with monkeypatch.context() as patch:
        # in the second step, after one policy has learnt
        failing(patch, doing, 5 if doing == "sampling" else 13, error)
        assert run(["train", str(config)], patch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"host home: out of memory while {doing} on cpu" in line
    assert [s for s in (said, *KNOBS[doing]) if s not in line] == []
    assert Run(tmp_path / "r").marker()["step"] == 1  # type: ignore[index]
    less = ["hosts.home.max_rows=9", "hosts.home.tokens_per_pass=900"]
    assert run(["resume", str(tmp_path / "r"), *less, "hosts.home.context=900"], monkeypatch) == 2
    assert (
        "of a host with weights max_rows, tokens_per_pass, checkpointing" in capsys.readouterr().err
    )
    assert run(["resume", str(tmp_path / "r"), *less], monkeypatch) == 0
    assert [m["step"] for m in Run(tmp_path / "r").metrics()] == [0, 1, 2]
    home = Run(tmp_path / "r").config()["hosts"]["home"]
    assert (home["max_rows"], home["tokens_per_pass"]) == (9, 900)


def test_a_run_goes_on_with_half_and_keeps_that(
    whole: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path), str(tmp_path / "r"))
    )
    calls = {"generate": 0, "forward": 0}

    def once(owner: Any, name: str, at: int) -> None:
        real: Any = getattr(owner, name)

        def act(*given: Any, **keywords: Any) -> Any:
            calls[name] += 1
            if calls[name] == at:
                raise MemoryError
            return real(*given, **keywords)

        monkeypatch.setattr(owner, name, act)

    once(StackedEngine, "generate", 3)
    once(AdapterLearner, "forward", 2)
    comas.train(config)
    home = Run(tmp_path / "r").config()["hosts"]["home"]
    before = whole.config()["hosts"]["home"]
    assert 1 <= home["max_rows"] <= before["max_rows"] // 2
    assert 64 <= home["tokens_per_pass"] <= before["tokens_per_pass"] // 2
    assert [m["step"] for m in Run(tmp_path / "r").metrics()] == [0, 1, 2]
    said = [record.getMessage() for record in caplog.records]
    for key in ("max_rows", "tokens_per_pass"):
        line = f"hosts.home.{key}={home[key]} from now on: there was no memory left for more"
        assert said.count(line) == 1
    episodes = [Run(tmp_path / "r").episodes(0), whole.episodes(0)]
    texts = [[[turn["text"] for turn in e["turns"]] for e in steps] for steps in episodes]
    assert texts[0] == texts[1]  # no text depends on its batch


def test_other_errors_are_not_taken_for_a_lack_of_memory(
    whole: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path), str(tmp_path / "r"))
    )
    failing(monkeypatch, "sampling", 3, lambda: RuntimeError("shapes do not fit"))
    with pytest.raises((RuntimeError, ExceptionGroup)) as raised:
        comas.train(config)
    assert "out of memory" not in str(raised.value)


@pytest.mark.parametrize("learner", ["full", "adapters"])
def test_a_base_that_does_not_fit_is_one_line(
    learner: str,
    tiny: Path,
    paid: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for kind in (FullLearner, AdapterLearner):
        monkeypatch.setattr(kind, "__init__", short)
    given = [
        *pairs(paid),
        f"hosts.home.base={tiny}",
        f"hosts.home.learner={learner}",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *given], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "host home: out of memory while loading" in line
    assert "hosts.home.learner=adapters" in line
    assert not (tmp_path / "r").exists()


# --- bad input


NOTHING = ["lr=1e-3", "steps=0", "test_questions=0"]
"""Keys of a run that ends as soon as nothing is wrong with it."""
MISTAKES: list[tuple[list[str], list[str]]] = [
    (["hosts.home.rank=0"], ["hosts.home.rank = 0", "greater than or equal to 1"]),
    (["agents.a.rank=0"], ["agents.a.rank = 0", "greater than or equal to 1"]),
    (["hosts.home.alpha=9"], ["hosts.home.alpha: adapters count alpha / rank = 2 times"]),
    (["hosts.home.targets=[]"], ["hosts.home.targets = []", "at least 1 item"]),
    (
        ["hosts.home.targets=q_proj,v_proj"],
        ["hosts.home.targets = 'q_proj,v_proj'", 'a list is wanted: ["q_proj", "v_proj"]'],
    ),
    (
        ['hosts.home.targets=["query"]'],
        ["LlamaForCausalLM has no module 'query'", "down_proj, gate_proj, k_proj"],
    ),
    (
        ['hosts.home.targets=["input_layernorm"]'],
        ["input_layernorm is a LlamaRMSNorm, not a linear layer"],
    ),
    (['hosts.home.targets=["embed_tokens"]'], ["embed_tokens is the embedding or the head"]),
    (['agents.a.targets=["lm_head"]'], ["lm_head is the embedding or the head"]),
    (
        ["hosts.home.learner=full", "hosts.home.rank=2"],
        ["hosts.home.rank is for hosts.home.learner=adapters"],
    ),
    (
        ["agents.a.policy=p", "agents.b.policy=p", "agents.a.lr=1", "agents.b.lr=2"],
        ["agents.b.lr is 2", "agents.a.lr, of the same policy p, is 1"],
    ),
    (
        ["agents.a.policy=p", "agents.b.policy=p", "agents.a.rank=2", "agents.b.rank=3"],
        ["agents.b.rank is 3", "agents.a.rank, of the same policy p, is 2"],
    ),
    (
        ["agents.a.base=tiny", "agents.b.host=home", "hosts.home.learner=adapters"],
        [
            "agents a and b of host home start from",
            "adapters share one base",
            "hosts.home.learner=full",
        ],
    ),
]


@pytest.mark.parametrize(("given", "said"), MISTAKES, ids=lambda a: a[0] if "=" in a[0] else "")
def test_a_mistake_is_one_line_that_names_it_and_writes_nothing(
    given: list[str],
    said: list[str],
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert (
        run(
            ["train", *NOTHING, f"hosts.home.base={tiny}", *given, f"out={tmp_path / 'r'}"],
            monkeypatch,
        )
        == 2
    )
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert [s for s in said if s not in err] == [], err
    assert not (tmp_path / "r").exists()


def test_two_agents_of_one_name_are_refused(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'lr = 1e-3\n[hosts.home]\nbase = "{tiny}"\n[agents.a]\nrank = 2\n[agents.a]\nrank = 3\n'
    )
    assert run(["train", str(config)], monkeypatch) == 2
    assert (
        "c.toml is not TOML: Cannot declare ('agents', 'a') twice (at line 6"
        in capsys.readouterr().err
    )
    given = [
        f"hosts.home.base={tiny}",
        "lr=1e-3",
        "agents.a.rank=2",
        "agents.A.rank=3",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *given], monkeypatch) == 2
    assert (
        "policies A, a: two would share files where capitals do not count"
        in capsys.readouterr().err
    )


def edited(whole: Run, folder: Path, **changes: Any) -> Path:
    shutil.copytree(whole.path, folder)
    file = folder / "config.toml"
    text = file.read_text()
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return folder


def test_what_adapters_are_stays_what_it_was(
    whole: Run,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A run whose config was edited in a place where it must not be."""
    other = tiny_model(tmp_path / "other", seed=9)
    more = "steps = 3"
    cases = {
        "rank": (
            ("rank = 6", "rank = 5"),
            "step-3/b has rank 6 and alpha 12, and policy b rank 5 and alpha 10",
        ),
        "targets": (
            ('"up_proj"', '"v_proj"'),
            "adapter of policy c: model.layers.0.mlp.up_proj.lora_A is in it only",
        ),
        "base": ((str(tiny), str(other)), "made for another base"),
        "learner": (
            ('learner = "adapters"', 'learner = "full"'),
            "agents.a.rank is for hosts.home.learner=adapters",
        ),
    }
    for name, (change, said) in cases.items():
        folder = edited(whole, tmp_path / name, steps=(more, "steps = 4"), change=change)
        assert run(["resume", str(folder)], monkeypatch) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line, line


def test_an_adapter_is_no_whole_model(
    whole: Run,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    adapter = whole.path / "checkpoints" / "step-3" / "a"
    given = [
        "lr=1e-3",
        f"hosts.home.base={adapter}",
        "hosts.home.learner=full",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *given], monkeypatch) == 2
    assert (
        "step-3/a' is an adapter: set hosts.home.learner=adapters, or give a whole model"
        in capsys.readouterr().err
    )
    nested = tmp_path / "nested"
    shutil.copytree(adapter, nested)
    config = json.loads((nested / "adapter_config.json").read_text())
    (nested / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": str(adapter)})
    )
    assert (
        run(["train", "lr=1e-3", f"hosts.home.base={nested}", f"out={tmp_path / 'r'}"], monkeypatch)
        == 2
    )
    assert "is an adapter, no whole model" in capsys.readouterr().err


def test_an_adapter_keeps_its_shape_and_its_base(
    whole: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = whole.path / "checkpoints" / "step-3"
    for name, base in (("gone", "./nowhere"), ("seeds", "tiny")):
        shutil.copytree(folder / "b", tmp_path / name)
        told = json.loads((folder / "b" / "adapter_config.json").read_text())
        (tmp_path / name / "adapter_config.json").write_text(
            json.dumps({**told, "base_model_name_or_path": base})
        )
    same = [
        "hosts.home.rank=6",
        "agents.b.targets=" + json.dumps(told["target_modules"]),
    ]
    for given, said in [
        (["hosts.home.rank=8"], "hosts.home.rank is 8, but the adapter in"),
        (['agents.b.targets=["q_proj"]'], "agents.b.targets is ['q_proj']"),
        (
            ["agents.b.rank=6", f"agents.b.base={tmp_path / 'gone'}"],
            "is an adapter for './nowhere', and there is no such folder",
        ),
        # and not learner=full
        (["agents.b.host=home", f"agents.c.base={tmp_path / 'seeds'}"], "hosts of their own\n"),
    ]:
        keys = [*NOTHING, f"hosts.home.base={folder / 'b'}", *given, f"out={tmp_path / 'r'}"]
        assert run(["train", *keys], monkeypatch) == 2
        assert said in capsys.readouterr().err
    # a host's rank is for adapters that begin, not for one that an agent brings along
    shape = [
        "hosts.home.rank=3",
        f"hosts.home.base={told['base_model_name_or_path']}",
        f"agents.b.base={folder / 'b'}",
    ]
    for keys in ([f"hosts.home.base={folder / 'b'}", *same], [*shape, "agents.c.rank=2"]):
        assert run(["train", *keys, *NOTHING, f"out={tmp_path / keys[0][-1]}"], monkeypatch) == 0
    dry = ["--dry-run", f"hosts.home.base={whole.path}", "lr=1e-3", "agents.a.host=home"]
    assert run(["train", *dry], monkeypatch) == 0
    assert " to learn from; about " in capsys.readouterr().out


def test_a_base_whose_weights_have_changed_since_is_named(
    tiny: Path,
    whole: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    base = tiny_model(tmp_path / "base", seed=9)
    adapter = tmp_path / "adapter"
    shutil.copytree(whole.path / "checkpoints" / "step-3" / "a", adapter)
    file = adapter / "adapter_config.json"
    file.write_text(file.read_text().replace(json.dumps(str(tiny)), json.dumps(str(base))))
    assert (
        run(["train", *NOTHING, f"hosts.home.base={adapter}", f"out={tmp_path / 'r'}"], monkeypatch)
        == 2
    )
    assert (
        f"was made for other weights than those that are in '{base}' now" in capsys.readouterr().err
    )


def test_models_that_cannot_be_sampled_or_adapted_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recurrent = tiny_model(tmp_path / "recurrent", family="mamba")
    assert (
        run(
            ["train", *NOTHING, f"hosts.home.base={recurrent}", f"out={tmp_path / 'r'}"],
            monkeypatch,
        )
        == 2
    )
    assert "(MambaForCausalLM) has no layer with attention" in capsys.readouterr().err
    apart = tiny_model(tmp_path / "apart")
    shutil.copy(Path(__file__).parents[1] / "support" / "apart.py", apart / "modeling_apart.py")
    ApartForCausalLM(AutoConfig.from_pretrained(apart)).save_pretrained(apart)
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_apart.ApartForCausalLM"}}
    (apart / "config.json").write_text(
        json.dumps({**json.loads((apart / "config.json").read_text()), **own})
    )
    keys = [
        *NOTHING,
        f"hosts.home.base={apart}",
        "hosts.home.trust_remote_code=true",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *keys], monkeypatch) == 2
    assert "mlp.experts.0 gets (" in (said := capsys.readouterr().err)
    assert "tokens apart from their" in said
    assert not (tmp_path / "r").exists()


def test_room_on_disk_is_counted_in_adapters(whole: Run, tiny: Path, paid: dict[str, Any]) -> None:
    needed = memory_plan(plan(read(whole.path / "config.toml"))).checkpoint
    files = [
        f
        for p in "abc"
        for f in (whole.path / "checkpoints" / "step-3" / p).glob("adapter_model.safetensors")
    ]
    kept = sum(f.stat().st_size for f in files)
    assert 0.8 * kept < (needed or 0) / 3 < kept
