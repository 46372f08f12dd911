"""The documentation is true: the config page lists the defaults, code blocks and examples run."""

from __future__ import annotations

import asyncio
import json
import random
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.config.plan import plan
from comas.config.plugins import filled, load_plugin, plugin_names
from comas.config.schema import read
from tests.support import runs

ROOT = Path(__file__).parents[2]
SHOWN = [ROOT / "README.md", ROOT / "docs" / "tour.md"]
"""Pages whose commands are run."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def resolved(**keys: Any) -> dict[str, Any]:
    return runs.planned(keys).config.model_dump(mode="json")


def known(table: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that are None."""
    return {k: known(v) if isinstance(v, Mapping) else v for k, v in table.items() if v is not None}


def unset(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Dotted keys that are None."""
    for key, value in table.items():
        if value is None:
            yield path + key
        elif isinstance(value, Mapping):
            yield from unset(value, f"{path}{key}.")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables; what stands in both are tables again."""
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **both}


def keys_in(block: str) -> Iterator[tuple[str, bool]]:
    """Dotted keys of a block of TOML, and whether they are commented out."""
    table = ""
    for line in block.splitlines():
        if found := re.match(r"\[(.+?)\]", line):
            table = found[1] + "."
        elif found := re.match(r"(# )?([\w-]+) = ", line):
            yield table + found[2], found[1] is not None


SUFFICE = {
    *("method", "preset", "task", "data", "steps", "tokens", "seed", "out", "questions", "samples"),
    *("lr", "temperature", "max_tokens", "test_questions", "monitors"),
    *(f"hosts.home.{key}" for key in ("base", "learner", "rank", "engine", "device")),
    *(f"hosts.home.{key}" for key in ("kind", "api", "key_env")),
    *(f"agents.a0.{key}" for key in ("host", "policy", "roles", "frozen")),
}
"""Keys on the first page, beside the tables `options`, `kl` and `task_options`."""


def test_the_config_page_lists_exactly_the_defaults() -> None:
    first, others, *_ = blocks(ROOT / "docs" / "config.md", "toml")
    tables = ("options.", "kl.", "task_options.")
    assert {key for key, _ in keys_in(first) if not key.startswith(tables)} == SUFFICE
    assert merged(tomllib.loads(first), tomllib.loads(others)) == known(resolved())
    commented = {key for block in (first, others) for key, is_out in keys_in(block) if is_out}
    assert commented == {key for key in unset(resolved()) if not re.match(r"agents\.a[1-9]", key)}


def test_the_table_of_keys_is_the_one_that_is_generated() -> None:
    keys = runpy.run_path(str(ROOT / "docs" / "site" / "keys.py"))
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert keys["BEGIN"] in page
    assert keys["END"] in page
    assert page == keys["with_table"](page), "run: python docs/site/keys.py"
    assert "`steps`" in next(
        line for line in keys["lines"]() if line.startswith(f"| {keys['RESUME']} |")
    )


def test_the_config_page_names_every_task_with_a_recipe() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    table = page.partition("| recipe of task |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ((?:`\w+` )+)\| (.*)", table, re.MULTILINE)
    sets = {name: row for names, row in rows for name in re.findall(r"\w+", names)}
    rates = {
        name: rate
        for name in plugin_names("task")
        if (rate := load_plugin("task", name).recipe.get("lr")) is not None
    }
    assert {*sets} == {*rates}
    for name, rate in rates.items():
        assert f"lr {rate:.0e}".replace("e-0", "e-") in sets[name], name


SEAT = {"host": "home", "frozen": False}
"""Of an agent about which a block says nothing else."""


def with_changes(base: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what a block of the page tells of it: `kl` and `agents` whole, of
    other tables what differs where the default has the same keys.
    """
    changed = {**base, **told}
    changed["agents"] = {name: {**SEAT, **agent} for name, agent in changed["agents"].items()}
    homes = told.get("hosts", {})
    changed["hosts"] = {
        name: {**host, **homes.get(name, {})} for name, host in base["hosts"].items()
    }
    for key in ("options", "credit", "loss"):
        table = changed[key]
        if table and set(table) <= set(base[key]):
            changed[key] = {**base[key], **table}
    return known(changed)


SETTINGS = blocks(ROOT / "docs" / "method-settings.md", "toml")


GRPO = {"scale": True, "entropy": 0.0}


def with_what_is_said_once(
    changed: dict[str, Any], told: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """A config with what the page says of all blocks: options of the task are its
    own defaults, and credit is that of GRPO where a block does not name it.
    """
    if "task" in told:
        own = filled("task_options", {}, load_plugin("task", told["task"]).load)
        changed["task_options"] = known({**own, **told.get("task_options", {})})
    if "credit" not in told and "preset" not in told and config["credit"] == GRPO:
        changed["credit"] = GRPO
    return changed


@pytest.mark.parametrize("block", SETTINGS)
def test_the_settings_page_lists_exactly_what_methods_and_presets_change(block: str) -> None:
    told = tomllib.loads(block)
    chosen = {key: told[key] for key in ("method", "preset") if key in told}
    # a preset is compared with its method, a method with the default
    changed = resolved(method=told["method"]) if "preset" in told else resolved()
    config = known(resolved(**chosen))
    assert with_what_is_said_once(with_changes(changed, told), told, config) == config


def test_every_method_and_preset_is_on_the_settings_page() -> None:
    told = [tomllib.loads(block) for block in SETTINGS]
    methods = sorted(p.stem for p in (ROOT / "src" / "comas" / "methods").glob("[a-z]*.py"))
    # the default is on the config page
    first = {(name, None) for name in methods if name != "comas"}
    others = {
        (name, preset)
        for name in methods
        for preset in list(load_plugin("method", name).presets)[1:]
    }
    assert {(block["method"], block.get("preset")) for block in told} == first | others


APART = ("config.md", "method-settings.md", "study.md")
"""Pages whose files are tested apart: the first two above, the last in tests/study."""


@pytest.mark.parametrize(
    "block", [b for p in PAGES if p.name not in APART for b in blocks(p, "toml")]
)
def test_configs_on_other_pages_resolve(block: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(block)
    hosts = plan(read(tmp_path / "run.toml")).config.hosts
    told = tomllib.loads(block)["hosts"]
    assert {
        name: {key: getattr(host, key) for key in told[name]} for name, host in hosts.items()
    } == told


WRITTEN = "\n".join(b for p in PAGES for b in blocks(p, "sh")).replace("\\\n", " ")
COMMANDS = re.findall(r"^comas train (.*)$", WRITTEN, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_on_the_pages_resolve(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # which stands on the page, and resolves
    words = [w for w in shlex.split(line.partition("#")[0]) if w != "team.toml"]
    # unknown keys, files, methods and tasks are errors
    runs.planned([w for w in words if not w.startswith("--")])


LINES = [
    line.partition("#")[0].strip()
    for page in SHOWN
    for block in blocks(page, "sh")
    for line in block.splitlines()
]
SHORT = ["steps=2", "test_questions=8", "eval_every=0"]
"""Added to what trains: the commands are those of the page, the patience is not."""


@pytest.mark.commands
@pytest.mark.parametrize("line", [x for x in LINES if x.startswith("comas ")])
def test_commands_of_the_readme_run_as_written(
    line: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    words = line.replace("runs/<run>", "runs/demo").split()[1:]
    if "Qwen/" in line or "./my-model" in line:
        pytest.skip("needs a model")
    if words[0] == "train" and "--dry-run" not in words:
        words += [w for w in SHORT if not any(x.split("=")[0] == w.split("=")[0] for x in words)]
    if words[0] == "eval" and "--limit" not in words:
        words += ["--limit", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "comas", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_team_of_the_readme_trains(tmp_path: Path) -> None:
    (tmp_path / "team.toml").write_text(TEAM)
    keys = {
        "steps": 1,
        "questions": 8,
        "test_questions": 0,
        "eval_every": 0,
        "threads": 1,
        "out": str(tmp_path / "run"),
    }
    comas.train(tmp_path / "team.toml", **keys)
    said = json.loads((tmp_path / "run/metrics.jsonl").read_text())["policies"]
    assert list(said) == ["left/a0", "left/a2", "right/a1", "right/a3"]
    assert max(stats["grad_norm"] for stats in said.values()) > 0
    (process,) = json.loads((tmp_path / "run/processes.json").read_text())["processes"]
    assert process["dtypes"] == "left: float32, right: float32"  # what `auto` came to
    assert process["deterministic"] == "left: true, right: true"


TEAM = blocks(ROOT / "docs" / "tour.md", "toml")[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run in runs/demo."""
    path = tmp_path_factory.mktemp("home")
    (path / "team.toml").write_text(TEAM)
    comas.train(
        steps=2,
        questions=8,
        test_questions=8,
        eval_every=2,
        eval_questions=8,
        threads=1,
        out=str(path / "runs" / "demo"),
    )
    return path


TRAINING = "extending.md"
"""Trains with each of its blocks, for a minute and a half."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.commands] * (p.name == TRAINING), id=p.name)
        for p in PAGES
        if blocks(p, "python")
    ],
)
def test_code_on_the_page_runs(page: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    space: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), space)


def test_the_record_has_the_keys_that_the_page_names(home: Path) -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    told = {
        name
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    metrics = [
        json.loads(line)
        for line in (home / "runs/demo/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    turn, *_ = json.loads(
        (home / "runs/demo/episodes/000001.jsonl").read_text(encoding="utf-8").splitlines()[0]
    )["turns"]
    assert told == set(metrics[-1]) | set(turn)


@pytest.mark.parametrize("name", ["best_of.py"])
def test_code_on_the_page_is_the_example(name: str) -> None:
    code = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert code in blocks(ROOT / "docs" / "extending.md", "python")


def test_the_example_that_remembers_keeps_the_contract_and_asks_split_questions_again() -> None:
    from comas.config.plugins import load_plugin
    from comas.tasks import pick
    from comas.testing import check_method, golden_script, play_step

    method = load_plugin("method", str(ROOT / "examples" / "frontier.py"))
    offers = [(1, 2, 4, 6), (5, 2, 4, 8), (9, 1, 2, 4), (3, 5, 6, 7)]
    questions = [pick.make_question(offer, sum(offer[:3]), "three") for offer in offers]
    check_method(method, pick.task, questions, golden_script, samples=2)
    split = {"shares": {questions[2].id: 0.5, questions[1].id: 1.0}}
    episodes, _, after = play_step(
        method, pick.task, golden_script, questions[:3], step=1, state=split
    )
    assert episodes[0].question.id == questions[2].id, "the one whose votes were split"
    assert set(after["shares"]) == {question.id for question in questions[:3]}


@pytest.mark.commands
@pytest.mark.parametrize(
    "keys",
    [
        {"method": "best_of.py"},
        {"method": "debate.py"},
        {"method": "frontier.py"},
        {"method": "sure_votes.py"},
        {"task": "coins.py"},
        {"task": "near.py"},
        {"hosts__mine__kind": "stubborn.py"},
    ],
    ids=str,
)
def test_examples_train(keys: dict[str, str], tmp_path: Path) -> None:
    found: dict[str, Any] = {kind: str(ROOT / "examples" / name) for kind, name in keys.items()}
    if "hosts__mine__kind" in keys:
        of_stone = {"host": "mine", "frozen": True}
        found |= {"hosts__home__base": "tiny", "agents": {"a0": {}, "a1": {}, "stone": of_stone}}
    result = comas.train(
        **found,
        steps=2,
        questions=16,
        test_questions=64,
        eval_every=0,
        threads=1,
        out=str(tmp_path / "run"),
    )
    steps = [
        json.loads(line)
        for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert max(p["grad_norm"] for s in steps for p in s["policies"].values()) > 1e-3
    # the tiny model understands the question, and no more
    assert 0.05 < result.accuracy["before"].mean < 0.6


def test_the_game_of_stones_keeps_the_contract_and_its_script_wins() -> None:
    from comas.testing import check_task

    task = load_plugin("task", str(ROOT / "examples" / "stones.py"))
    check_task(task)
    rng = random.Random(0)
    (question,) = (q for q in task.load("validation") if q.prompt == "13")

    async def move(seat: int, view: str, legal: list[str]) -> str:
        return task.seats["best"](view, legal, rng) if seat == 0 else rng.choice(legal)

    assert asyncio.run(task.rules(question, move, rng)) == (1.0, -1.0)


def test_own_questions_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(f"1 2 3 {n} -> {3 + n}" for n in range(4, 14)))
    load = runpy.run_path(str(ROOT / "examples" / "coins.py"))["load"]
    parts = [
        {q.prompt for q in load(split, path=str(file))} for split in ("train", "validation", "test")
    ]
    assert [len(p) for p in parts] == [6, 2, 2]
    assert len(set.union(*parts)) == 10


@pytest.mark.commands
def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "notebook.py"))
    said = capsys.readouterr().out
    assert "solution:" in said
    assert re.search(r"-> (right|wrong)\n$", said)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_method_in_the_readme_keeps_the_contract() -> None:
    from comas.tasks import pick
    from comas.testing import check_method

    space: dict[str, Any] = {"__name__": "page"}
    exec(blocks(ROOT / "README.md", "python")[0], space)
    questions = [pick.make_question((1, 2, 4, 5), t, "three") for t in (7, 8)]

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        return "1 + 2 = 3 + 4 = 7" if role == "solution" else ("right", "wrong", "")[seed % 3]

    check_method(space["method"], pick.task, questions, script)
