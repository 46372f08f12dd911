"""What may be written in a config, what it resolves to, and what is said of mistakes at every
level.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from comas.config import mistakes
from comas.config.checks import check_training
from comas.config.plan import OPTIMIZER, OURS, plan, tiny_recipe
from comas.config.plugins import filled, keywords, load_plugin, split_options
from comas.config.schema import Config, read
from comas.methods import comas
from comas.storage.records import without_none
from comas.types import UserMistake
from tests.support import runs


def resolved(*pairs: str) -> Config:
    return runs.planned(pairs).config


NEAREST = {
    "options.avoidself=true": "avoid_self",
    "credit.minrows=3": "min_rows",
    "loss.clipp=0.1": "clip",
    "task_options.larges=9": "largest",
    "hosts.home.bases=x": "base",
    "agents.a0.temprature=1.0": "temperature",
    "king=ray": "kind",
    "concurency=5": "concurrency",
    "bas=tiny": "base",
}


@pytest.mark.parametrize("pair", NEAREST)
def test_an_unknown_key_is_told_with_the_nearest(pair: str) -> None:
    key = pair.partition("=")[0]
    with pytest.raises(UserMistake) as caught:
        resolved(pair)
    assert str(caught.value) == f"unknown key {key}: did you mean {NEAREST[pair]}?"


@pytest.mark.parametrize("key", ["zzzzzz", "loss.zzz"])
def test_an_unknown_key_with_none_near_is_told_with_all(key: str) -> None:
    with pytest.raises(UserMistake, match=f"unknown key {key}: one of "):
        resolved(f"{key}=1")


@pytest.mark.parametrize(
    "pairs",
    [
        "options.rounds=0",
        "options.rounds=many",
        "options.rounds=true",
        "kl.solution=-1",
        "kl.solution=much",
        "kl.solution=nan",
        "loss.clip=0",
        "loss.clip=nan",
        "credit.normalise=1",
        "task_options.count=abc",
        "temperature=0",
        "room.solution=many",
        "steps=-1",
        "threads=5000",
        "warmup=9 steps=5 schedule=linear",
        "agents=100000000",
        "agents=-2",
        "agents.a.lag=0 agents.a.policy=b agents.b.frozen=false",
        "agents.a0.system=",
        "method=azr options.solve=-0.5",
        "method=mae options.refer=3",
        "method=mars options.penalty=-1",
        "method=mars options.gamma=2",
        "method=spell options.width=0",
        "method=spiral options.decay=3",
        "method=optima options.length=-2",
        "method=agent0_vl options.gate=7",
        "method=agent0_vl options.gate=-1.5",
    ],
)
def test_a_value_that_a_key_cannot_have_is_told(pairs: str) -> None:
    key, _, value = next(p for p in pairs.split() if not p.startswith("method=")).partition("=")
    with pytest.raises(UserMistake) as caught:
        resolved(*pairs.split())
    assert re.match(
        rf"{re.escape(key)} = '?{re.escape(value)}'?[:,]", str(caught.value), re.IGNORECASE
    )


@pytest.mark.parametrize(("key", "off"), [("ahead", 0), ("tensor_parallel", 1), ("compile", False)])
def test_former_keys_are_read_over_where_they_change_nothing(key: str, off: Any) -> None:
    for place in (key, f"hosts.home.{key}"):
        assert read(None, [f"{place}={json.dumps(off)}"]) == read(None)


def test_former_monitors_watch_no_run_and_runs_that_had_them_are_read() -> None:
    config = runs.planned({"monitors": ["probes", "flips"]})
    with pytest.raises(UserMistake, match=r"monitors = 'flips'"):
        check_training(config)


def test_keys_of_hosts_are_meant_at_the_top_level_only_where_they_may_stand_there() -> None:
    two = {"hosts": {"one": {}, "two": {}}}
    assert read(None, {"hosts": {"one": {}}, "max_rows": 5}).hosts["one"].max_rows == 5
    with pytest.raises(UserMistake, match=r"max_row: .* max_rows"):
        read(None, {"hosts": {"one": {}}, "max_row": 5})
    with pytest.raises(UserMistake, match="max_row") as caught:
        read(None, {**two, "max_row": 5})
    assert "max_rows" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "..",
        "",
        " ",
        "a/b",
        "/tmp/a",
        "a\nb",
        "home.json",
        "team.toml",
        "a\\b",
        ".a",
        "a.",
    ],
)
def test_names_that_are_no_folders_are_refused(name: str) -> None:
    host = {"hosts": {name: {}}, "agents": {"a": {"host": name}}}
    for data in ({"agents": {name: {}}}, {"agents": {"a": {"policy": name}}}, host):
        with pytest.raises(UserMistake, match="named after"):
            read(None, data)
    for taken in ("manifest", "state", "monitors"):  # of a checkpoint
        with pytest.raises(UserMistake, match="named after"):
            read(None, {"hosts": {taken: {}}, "agents": {"a": {"host": taken}}})
    assert list(read(None, {"agents": {n: {} for n in ("a", "Ann Lee", "gpt-4.1", "ä_1")}}).agents)


def test_names_of_hosts_that_keys_cannot_reach_are_refused() -> None:
    """`hosts.big.2.base=...` would set a key of a host `big`."""
    with pytest.raises(UserMistake, match=r"host 'big\.2'"):
        read(None, {"hosts": {"big.2": {}}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("3", 3),
        ("true", True),
        ('"3"', "3"),
        ("tiny", "tiny"),
        ("[1, 2]", [1, 2]),
        ("./a b.py", "./a b.py"),
        ("{x = 1}", {"x": 1}),
        ("", ""),
        ("a=b", "a=b"),
        ("1_000", 1000),
        ("0x10", 16),
        ("nope]", "nope]"),
    ],
)
def test_values_are_toml_and_otherwise_text(text: str, value: Any) -> None:
    from comas.config.schema import parse_pair

    assert parse_pair(f"key.of = {text}".replace("of = ", "of=")) == ("key.of", value)
    assert type(parse_pair(f"k={text}")[1]) is type(value)


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ("preset=paper",),
        ("method=ttrl",),
        ("method=rlvr", "agents=2"),
        ("task_options.form=two", "steps=3", "kl.scoring=0.1"),
        ("hosts.a.base=tiny", "hosts.b.base=tiny-b", "agents=3", "hosts.b.lr=1e-4"),
        ('agents.x.roles=["solution"]', "agents.y.policy=x"),
        (
            "betas=[0.8, 0.9]",
            "weight_decay=0.1",
            "tokens=1000",
            "room.solution=9",
            "preset=paper",
            "credit.min_rows=4",
        ),
    ],
)
def test_the_resolved_config_survives_toml_and_resolves_to_itself(
    pairs: tuple[str, ...], tmp_path: Path
) -> None:
    config = resolved(*pairs)
    (tmp_path / "config.toml").write_text(
        tomli_w.dumps(without_none(config.model_dump())), encoding="utf-8"
    )
    assert plan(read(tmp_path / "config.toml")).config == config


def test_every_default_is_written_out() -> None:
    config = resolved()
    assert config.options == {**keywords(comas.play), **keywords(comas.settle)}
    assert config.credit == {"normalise": "role", "min_rows": 2, "entropy": 0.0}
    assert config.loss == {"clip": 0.2, "clip_high": None}
    assert config.kl == comas.KL
    assert (config.preset, config.questions, config.samples, config.epochs, config.minibatches) == (
        "stable",
        128,
        1,
        1,
        1,
    )
    assert all(getattr(config, key) == OURS[key] for key in OPTIMIZER)
    assert tomllib.loads(tomli_w.dumps(without_none(config.model_dump())))["options"]["rounds"] == 1


@pytest.mark.parametrize(
    ("pairs", "kl"),
    [
        (["kl.scoring=0.2"], {**comas.KL, "scoring": 0.2}),
        (["kl.evaluation=0"], {**comas.KL, "evaluation": 0.0}),
        (["kl={solution = 0.7, scoring = 0.0}"], {**comas.KL, "solution": 0.7, "scoring": 0.0}),
        (["kl={}"], {}),
        (["preset=paper"], {}),
        (["preset=paper", "kl.scoring=0.2"], {"scoring": 0.2}),
        (["method=rise", "preset=paper"], {"solution": 0.01, "evaluation": 0.01}),
        (
            ["method=rise", "preset=paper", "kl.evaluation=0.4"],
            {"solution": 0.01, "evaluation": 0.4},
        ),
        (["method=eva", "kl.solution=0.3"], {"solution": 0.3}),
    ],
)
def test_kl_of_one_role_leaves_that_of_the_others(
    pairs: list[str], kl: dict[str, float], tmp_path: Path
) -> None:
    config = resolved(*pairs)
    assert config.kl == kl
    file = tmp_path / "again.toml"
    file.write_text(tomli_w.dumps(without_none(config.model_dump())), encoding="utf-8")
    again = plan(read(file))
    assert again.config.kl == again.method.kl == kl


def test_arguments_beat_the_file_and_both_beat_the_preset(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'preset = "paper"\n[options]\nformat_check = true\n[credit]\nmin_rows = 5\n',
        encoding="utf-8",
    )
    config = plan(read(tmp_path / "c.toml", ["credit.min_rows=7", "kl.scoring=0.3"])).config
    assert config.options["format_check"] is True  # the file's, before the preset's
    assert config.options["avoid_self"] is False  # the preset's, before the method's
    assert config.options["rounds"] == 1  # the method's
    assert config.credit == {"normalise": "all", "min_rows": 7, "entropy": 0.0}
    assert config.kl == {"scoring": 0.3}  # the preset has none
    assert plan(read(tmp_path / "c.toml", {"credit.min_rows": 9})).config.credit["min_rows"] == 9
    assert plan(read(tmp_path / "c.toml", ["preset=stable"])).config.credit["normalise"] == "role"


def test_hosts_and_agents_override_what_is_shared() -> None:
    config = resolved(
        "lr=1e-3",
        "hosts.big.lr=1e-5",
        "hosts.home.base=tiny",
        "agents.x.host=big",
        "agents.x.base=tiny-b",
        "agents.x.temperature=0.5",
        "agents.y.host=home",
        "temperature=0.9",
    )
    assert (config.hosts["big"].lr, config.hosts["home"].lr, config.lr) == (1e-5, None, 1e-3)
    assert (
        config.agents["x"].base,
        config.agents["x"].temperature,
        config.agents["y"].temperature,
    ) == ("tiny-b", 0.5, None)


def test_a_base_that_does_not_exist_is_told_before_its_learning_rate() -> None:
    with pytest.raises(UserMistake, match="base 'gpt-nope'"):
        resolved("hosts.home.base=gpt-nope")


def test_the_embedded_recipe_is_for_the_shipped_models_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "org" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolved("hosts.home.base=tiny-b").lr == tiny_recipe()["lr"]["full"]
    assert resolved("hosts.home.learner=adapters").lr == tiny_recipe()["lr"]["adapters"]
    with pytest.raises(UserMistake, match=r"model' .*task pick: set lr"):
        resolved("hosts.home.base=org/model")
    for base in ("org/model", "org/other", "gpt2"):
        config = resolved(f"hosts.home.base={base}", "lr=1e-6")
        assert config.lr == 1e-6
        assert config.betas == OURS["betas"]
        assert resolved(f"hosts.home.base={base}", "hosts.home.lr=1e-6").lr is None
    with pytest.raises(UserMistake, match="org/model"):
        resolved("agents.x.base=org/model", "agents.y.base=tiny")
    mixed = ("hosts.small.base=tiny", "hosts.big.base=org/model")
    with pytest.raises(UserMistake, match=r"set lr, or hosts\.big\.lr"):
        resolved(*mixed)
    assert (config := resolved(*mixed, "hosts.big.lr=1e-6")).lr == tiny_recipe()["lr"]["full"]
    assert config.hosts["big"].lr == 1e-6
    both = resolved(*mixed, "task=gsm8k", "data=questions.jsonl")
    # ten times, for adapters
    assert (both.lr, both.hosts["small"].lr, both.hosts["big"].lr) == (
        None,
        tiny_recipe()["lr"]["full"],
        1e-5,
    )
    assert (
        resolved("agents.judge.base=org/model", "agents.judge.frozen=true", "agents.y.base=tiny").lr
        == tiny_recipe()["lr"]["full"]
    )


def method_file(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(
        "from comas.objective.credit import grpo\nfrom comas.objective.losses import plain\nfrom"
        " comas.types import Method\n" + body
    )
    return str(path)


def test_a_value_that_no_toml_can_hold_is_a_mistake() -> None:
    def load(*, since: Any = None) -> None: ...

    for value in (object(), b"\xff"):
        with pytest.raises(UserMistake, match=r"task_options.since is .*TOML"):
            filled("task_options", {"since": value}, load)


def test_own_methods_bring_options_presets_and_numbers(tmp_path: Path) -> None:
    name = method_file(
        tmp_path,
        """
async def play(question, agents, rng, task, *, drafts: int = 3, depth: float = 0.5): ...
def settle(episodes, task, *, bonus: float = 1.0): ...
method = Method(play, settle, grpo, plain, kl={"solution": 0.3}, epochs=2, samples=5,
                presets={"mild": {"questions": 7, "options": {"bonus": 0.1}, "loss": {}}, "wild": {"samples": 9}})
""",
    )
    found = runs.planned([f"method={name}", "options.depth=1"])
    config = found.config
    method = found.method
    assert config.options == {"drafts": 3, "depth": 1, "bonus": 0.1}
    assert (config.preset, config.questions, config.samples, config.epochs, method.epochs) == (
        "mild",
        7,
        5,
        2,
        2,
    )
    assert config.kl == method.kl == {"solution": 0.3}
    assert resolved(f"method={name}", "preset=wild").samples == 9
    assert resolved(f"method={name}", "preset=wild", "samples=2").samples == 2
    assert split_options(config.options, method.settle) == {"bonus": 0.1}
    with pytest.raises(UserMistake, match=r"loss.clip: .*none"):
        resolved(f"method={name}", "loss.clip=0.1")


def test_an_option_without_default_has_to_be_set(tmp_path: Path) -> None:
    name = method_file(
        tmp_path,
        "async def play(question, agents, rng, task, *, drafts: int): ...\n"
        "method = Method(play, lambda episodes, task: None, grpo, plain)\n",
    )
    with pytest.raises(UserMistake, match=r"options\.drafts"):
        resolved(f"method={name}")
    assert resolved(f"method={name}", "options.drafts=2").options == {"drafts": 2}


def test_files_without_a_method_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserMistake, match=r"empty\.py.*Method\("):
        load_plugin("method", str(tmp_path / "empty.py"))
    with pytest.raises(UserMistake, match=r"none.py"):
        load_plugin("task", str(tmp_path / "none.py"))
    with pytest.raises(UserMistake, match=r"nowhere\.toml"):
        read("nowhere.toml")


def test_tables_are_bound_to_the_functions_that_use_them() -> None:
    method = runs.planned(
        [
            "credit.min_rows=9",
            "credit.normalise=all",
            "loss.clip=0.3",
            "epochs=3",
            "minibatches=2",
        ]
    ).method
    assert method.credit.keywords == {"normalise": "all", "min_rows": 9, "entropy": 0.0}  # type: ignore[attr-defined]
    assert method.loss.keywords == {"clip": 0.3, "clip_high": None}  # type: ignore[attr-defined]
    assert (method.epochs, method.minibatches) == (3, 2)
    # a whole number where a fraction is expected
    assert resolved("loss.clip=1").loss == {"clip": 1.0, "clip_high": None}


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ({"where": "here", "patience": 120.0}, {}),
        ({"where": "process"}, {"kind": "ray"}),
        ({"where": "ray", "threads": 3}, {"kind": "ray", "cpus": 3}),
        ({"where": "process", "device": "cuda:1"}, {"kind": "ray", "device": "cuda"}),
        ({"where": "ray", "address": "10.0.0.1:6379"}, {"kind": "ray"}),
    ],
)
def test_hosts_elsewhere_of_0_1_are_actors(
    former: dict[str, Any], now: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    mistakes._note.cache_clear()
    assert read(None, {"hosts": {"home": former}}) == read(None, {"hosts": {"home": now}})
    read(None, {"hosts": {"home": former}})
    # once: a line for each key that is called something else, and one for those without effect
    wanted = [
        f"{key}={value} of an earlier version is read as "
        for key, value in former.items()
        if key != "device" and former["where"] != "here"
    ]
    wanted = wanted or ["without effect now, leave them out: where, patience"]
    assert len(caplog.records) == len(wanted)
    assert all(said in caplog.text for said in wanted)
    assert ("RAY_ADDRESS" in caplog.text) == ("address" in former)


def test_other_bases_get_the_optimizer_of_the_tasks_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    asked = ("task=gsm8k", "data=questions.jsonl")
    assert resolved("hosts.home.base=./m", *asked).betas == (0.9, 0.999)
    assert resolved(*asked).betas == OURS["betas"]
    judged = ("agents.a.base=./m", "agents.a.frozen=true", "agents.b.base=tiny")
    assert resolved(*judged, *asked).betas == OURS["betas"]


def test_tiny_models_take_the_cpu_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved().hosts["home"].device == "auto"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert resolved().hosts["home"].device == "cpu"
    assert resolved("hosts.home.device=mps").hosts["home"].device == "mps"


def test_rates_of_a_methods_team_are_for_its_own_base() -> None:
    own = resolved("method=self_redteam")
    other = resolved("method=self_redteam", "hosts.home.base=tiny-b")
    assert (own.agents["attacker"].lr, other.agents["attacker"].lr) == (1e-3, None)
