"""`comas export`: folders that transformers and peft load to the same log-probs, teams that answer
as the run's own, cards.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import comas
from comas.config.plan import plan
from comas.config.schema import read
from comas.evaluation.accuracy import accuracy
from comas.evaluation.questions import overlaps, trained_on
from comas.evaluation.systems import system_team
from comas.export.team import Facts, Part, card
from comas.learners.lora import population
from comas.models.sources import exported, known_as, run_at, shipped_models
from comas.seams import Request
from comas.stats import wilson
from comas.storage import files
from comas.storage.run import Run
from comas.tasks import pick
from comas.types import Sampling, UserMistake
from tests.support.command import run
from tests.support.runs import SMALL, run_of

PARITY = '''"""Replies of an odd length are paid."""
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method

async def play(question, agents, rng, task):
    return (await rng.choice(list(agents)).ask("solution", question.prompt)).text

def settle(episodes, task):
    for episode in episodes:
        episode.turns[0].reward = float(len(episode.turns[0].text) % 2)

method = Method(play, settle, reinforce_pp, clipped)
'''
KEYS: dict[str, Any] = {
    "steps": 3,
    "questions": 12,
    "lr": 3e-2,
    "room": {"solution": 12},
    "options__format_check": None,
    "eval_every": 1,
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One run of adapters, one of whole models, with a method in a file and an agent that is the
    copy of another.
    """
    place = tmp_path_factory.mktemp("runs")
    (place / "parity.py").write_text(PARITY)
    agents = {"a0": {}, "a1": {"policy": "a0"}, "a2": {"frozen": True}, "a3": {}}
    given = {
        **KEYS,
        "method": str(place / "parity.py"),
        "agents": agents,
        "hosts__home__thinking": None,
    }
    return {
        kind: run_of(place / kind, tiny, hosts__home__learner=kind, **given)
        for kind in ("adapters", "full")
    }


@pytest.fixture(scope="module")
def exports(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("exports")
    for kind, made in runs.items():
        comas.export(made.path, place / kind)
    return {kind: place / kind for kind in runs}


def logprobs(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        found = model.eval()(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return found[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def said_by(made: Run, policy: str) -> tuple[list[int], np.ndarray]:
    """A reply of the run's own team, prompt and all, and the log-probs that its engine told of what
    it generated.
    """
    team = comas.load(made.path)
    host: Any = next(iter(team.hosts.values()))
    asked = Request(
        policy,
        host.chat.encode([{"role": "user", "content": "1 2 3 4 -> 9"}]),
        Sampling(1.0, 1.0, 24),
        7,
    )
    (done,) = host.engine.generate([asked], lambda: False)
    team.close()
    return [*asked.prompt_ids.tolist(), *done.token_ids.tolist()], done.logprobs


@pytest.mark.parametrize("kind", ["adapters", "full"])
def test_transformers_loads_whole_models_to_the_same_logprobs(
    kind: str, runs: dict[str, Run], exports: dict[str, Path]
) -> None:
    for policy in ("a0", "a2", "a3"):
        ids, told = said_by(runs[kind], policy)
        folder = exports[kind] / policy / "model"
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        np.testing.assert_allclose(logprobs(model, ids)[-len(told) :], told, atol=1e-4)
        assert tokenizer.chat_template
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
        assert not list(folder.glob("optimizer*"))
    # a1 speaks with a0's weights
    assert {p.name for p in exports[kind].iterdir() if p.is_dir()} == {"a0", "a2", "a3"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft, of transformers
def test_peft_loads_adapters_to_the_same_logprobs(
    runs: dict[str, Run], exports: dict[str, Path], tiny: Path
) -> None:
    peft = pytest.importorskip("peft")
    moved = 0.0
    for policy in ("a0", "a2", "a3"):
        ids, told = said_by(runs["adapters"], policy)
        base = AutoModelForCausalLM.from_pretrained(tiny)
        alone = logprobs(base, ids)[-len(told) :]
        model = peft.PeftModel.from_pretrained(base, exports["adapters"] / policy / "adapter")
        np.testing.assert_allclose(logprobs(model, ids)[-len(told) :], told, atol=1e-4)
        moved = max(moved, float(np.abs(alone - told).max()))
        merged = model.merge_and_unload().state_dict()
        ours = load_file(exports["adapters"] / policy / "model" / "model.safetensors")
        assert all(torch.allclose(merged[n], w, atol=1e-6) for n, w in ours.items())
    assert moved > 1e-2  # the adapters do something


@pytest.mark.parametrize("kind", ["adapters", "full"])
def test_the_exported_team_answers_as_the_run(
    kind: str,
    runs: dict[str, Run],
    exports: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(exports[kind], moved)
    monkeypatch.chdir(tmp_path)
    teams = [
        comas.load(runs[kind].path),
        comas.load(moved),
        comas.load("elsewhere/team.toml"),
        system_team("elsewhere"),
    ]
    texts = [
        [t.text for s in range(6) for t in team.discuss("8 3 5 1 -> 16", seed=s).turns]
        for team in teams
    ]
    configs = [team.config.model_dump() for team in teams]
    for team in teams:
        team.close()
    assert texts[0] == texts[1] == texts[2] == texts[3]
    for key in (
        "room",
        "temperature",
        "max_tokens",
        "task",
        "task_options",
        "options",
        "preset",
        "seed",
        "lr",
        "kl",
    ):
        assert configs[0][key] == configs[1][key], key
    assert configs[1]["method"] == str(moved / "parity.py")
    assert {a: (t["policy"], t["frozen"]) for a, t in configs[0]["agents"].items()} == {
        a: (t["policy"], t["frozen"]) for a, t in configs[1]["agents"].items()
    }
    assert not {"out", "threads", "sandbox", "track"} & set(
        tomllib.loads((moved / "team.toml").read_text())
    )


@pytest.mark.parametrize("kind", ["adapters", "full"])
def test_learning_goes_on_from_an_exported_team(
    kind: str, exports: dict[str, Path], tmp_path: Path
) -> None:
    keys = {"steps": 1, "lr": 1e-3, "questions": 32, "test_questions": 0, "eval_every": 0}
    result = comas.train(exports[kind] / "team.toml", out=str(tmp_path / "r"), **keys)
    start = tmp_path / "r/checkpoints/step-0/a3"
    folder = exports[kind] / "a3" / ("adapter" if kind == "adapters" else "model")
    weights = "adapter_model.safetensors" if kind == "adapters" else "model.safetensors"
    first = load_file(start / weights)
    last = load_file(tmp_path / "r/checkpoints/step-1/a3" / weights)
    assert all(torch.equal(first[n], w) for n, w in load_file(folder / weights).items())
    assert any(not torch.equal(first[n], w) for n, w in last.items())
    assert result.steps == 1
    comas.export(tmp_path / "r", tmp_path / "again")
    assert (
        (files.facts(tmp_path / "again") or {})["earlier"] == ["adapter"] * 3
        if kind == "adapters"
        else ["model"] * 3
    )
    with pytest.raises(UserMistake, match="its run started from"):
        trained_on(str(tmp_path / "again"))


def test_checkpoints_from_different_places_are_one_team(
    exports: dict[str, Path], tmp_path: Path, tiny: Path
) -> None:
    shutil.copytree(exports["full"] / "a0" / "model", tmp_path / "far" / "ann")
    shutil.copytree(exports["adapters"] / "a3" / "adapter", tmp_path / "near" / "bob")
    (tmp_path / "teams").mkdir()
    team = tmp_path / "teams" / "mine.toml"
    team.write_text(
        '[hosts.left]\nbase = "../far/ann"\n[hosts.right]\nbase ='
        ' "../near/bob"\n[agents.ann]\nhost = "left"\n[agents.bob]\nhost ='
        f' "right"\n[agents.cy]\nhost = "right"\nbase = {json.dumps(str(tiny))}\n'
    )
    made = comas.load(team)
    assert made.bases() == sorted(
        [str(tmp_path / "far" / "ann"), str(tmp_path / "near" / "bob"), str(tiny)]
    )
    assert {t.agent for t in made.discuss("1 2 3 4 -> 9", seed=1).turns} <= {"ann", "bob", "cy"}
    for nothing in (5, None, " "):
        with pytest.raises(UserMistake, match="a text or a Question is wanted"):
            made.discuss(nothing)  # type: ignore[arg-type]
    made.close()
    with pytest.raises(UserMistake, match="is closed"):
        made.discuss("1 2 3 4 -> 9")
    team.write_text('[hosts.home]\nbase = "./nobody"\n')
    with pytest.raises(
        UserMistake, match=re.escape(f"base '{tmp_path / 'teams' / 'nobody'}': no such folder")
    ):
        comas.load(team)
    with pytest.raises(UserMistake, match="checkpoint of step 3"):
        comas.load(team, step=3)


def test_the_card_tells_the_numbers_of_the_folder(
    runs: dict[str, Run], exports: dict[str, Path]
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    made = runs["adapters"]
    text = (exports["adapters"] / "README.md").read_text(encoding="utf-8")
    after = made.read_eval("after")
    metrics = list(made.metrics())
    assert after is not None
    assert "| mean over the team | " in text
    assert (
        f"{after['accuracy']['mean']:.3f} [{after['accuracy']['low']:.3f},"
        f" {after['accuracy']['high']:.3f}]" in text
    )
    assert f"| generated tokens | {metrics[-1]['tokens']:,}, measurements not counted |" in text
    assert "| steps | 3 of 3 |" in text
    assert "| steps that moved `a0` | 3 of 3 |" in text
    assert str(made.path.parent) not in text  # folders of this machine are nobody's business
    for part, library in (("model", "transformers"), ("adapter", "peft")):
        own = hub.ModelCard(
            (exports["adapters"] / "a0" / part / "README.md").read_text(encoding="utf-8")
        )
        assert own.data.library_name == library
        assert own.data.base_model is None  # a folder is no name on the hub
        assert {"comas", "lora"} >= set(own.data.tags) & {"comas", "lora"} >= {"comas"}
        assert "| a0 | " in own.text
        assert "| a3 | " not in own.text


def test_what_was_not_measured_is_said_to_be_so(untaught: Path, tmp_path: Path) -> None:
    made = run_of(
        tmp_path / "r", untaught, steps=1, test_questions=0, eval_every=0, checkpoint_every=1
    )
    comas.export(f"{made.path}@0", tmp_path / "start")
    text = (tmp_path / "start" / "README.md").read_text(encoding="utf-8")
    assert "No held-out questions were asked before or after this run." in text
    assert "| mean over the team | not measured | not measured | not measured |" in text
    assert "| steps | 0 of 1 |" in text


def test_after_belongs_to_the_last_step_alone(runs: dict[str, Run], tmp_path: Path) -> None:
    comas.export(f"{runs['full'].path}@2", tmp_path / "two")
    text = (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
    assert "| | before | after (not of this checkpoint, step 2 of 3) | gain |" in text
    assert re.search(
        r"\| mean over the team \| 0\.\d+ \[.*\] \| not measured \| not measured \|", text
    )
    found = list(runs["full"].metrics())[1]["validation"]
    assert (
        f"On the validation split, at this step: {found['mean']:.3f} [{found['low']:.3f},"
        f" {found['high']:.3f}]." in text
    )


def test_an_export_knows_what_it_was_trained_on(
    runs: dict[str, Run], exports: dict[str, Path]
) -> None:
    folder = exports["full"]
    assert (
        exported(folder)
        == exported(folder / "team.toml")
        == exported(folder / "a0" / "model")
        == folder.resolve()
    )
    assert exported(runs["full"].path) is None
    ours, theirs = ({q.id for q in trained_on(str(p))} for p in (folder, runs["full"].path))
    assert ours == theirs != set()
    team = comas.load(folder)
    asked = [(team.task, team.task.load("train", limit=3, seed=0, **team.config.task_options))]
    team.close()
    ((_, found),) = overlaps([str(folder / "a0" / "model"), str(folder / "a3" / "model")], asked)
    assert found is not None
    assert len(found.exact) == 3


def test_weights_in_the_folder_of_a_team_run_no_code_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    (tmp_path / "manifest.json").write_text('{"earlier": [], "files": {}}')
    (tmp_path / "evil.py").write_text("print('foreign code runs')")
    asked = [(pick.task, pick.task.load("test", limit=3, seed=0))]
    for line in ('method = "./evil.py"', 'task = "./evil.py"', 'tools = ["./evil.py"]'):
        (tmp_path / "team.toml").write_text(f'hosts.home.base = "tiny"\n{line}\n')
        assert exported(model) == tmp_path.resolve()
        list(overlaps([str(model)], asked))
        assert "foreign code" not in capsys.readouterr().out


@pytest.mark.parametrize("named", [".", "team.toml"])
def test_the_task_of_a_team_is_read_where_the_team_itself_is_named(
    named: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text('{"earlier": [], "files": {}}')
    (tmp_path / "own.py").write_text(
        "from dataclasses import replace\nfrom comas.tasks import pick\n"
        "task = replace(pick.task, name='own')\n"
    )
    (tmp_path / "team.toml").write_text('hosts.home.base = "tiny"\ntask = "./own.py"\n')
    assert trained_on(str(tmp_path / named))


def test_an_export_has_the_checkpoints_own_files_alone(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["full"].path, copy)
    (tmp_path / "secret").write_text("a key of somebody's")
    (policy,) = sorted(copy.glob("checkpoints/*/a0"))[-1:]
    (policy / "added_tokens.json").symlink_to(tmp_path / "secret")
    (policy / "notes.txt").write_text("mine")
    (policy / "model.safetensors").rename(tmp_path / "weights")  # as on a full disk
    (policy / "model.safetensors").symlink_to(tmp_path / "weights")
    out = tmp_path / "out"
    comas.export(copy, out)
    names = {file.name for file in (out / "a0" / "model").iterdir()}
    assert names & {"added_tokens.json", "notes.txt"} == set()
    assert {"config.json", "model.safetensors"} <= names


def test_exports_without_merged_models(
    runs: dict[str, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--no-merged", "--base", "somebody/base", "--json"]
    path = str(runs["adapters"].path)
    assert run(["export", path, str(tmp_path / "small"), *words], monkeypatch) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["step"], done["team"]) == (3, str(tmp_path / "small" / "team.toml"))
    assert [p["policy"] for p in done["policies"]] == ["a0", "a2", "a3"]
    assert not list((tmp_path / "small").rglob("model.safetensors"))
    config = json.loads((tmp_path / "small" / "a0" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "somebody/base"
    front = (tmp_path / "small/a0/adapter/README.md").read_text().split("---")[1].splitlines()
    assert {"base_model: somebody/base", "base_model_relation: adapter"} <= set(front)


def test_endpoints_stay_in_the_team_and_keys_are_nowhere(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-1234")
    shutil.copytree(runs["full"].path, tmp_path / "r")
    config = tmp_path / "r" / "config.toml"
    config.write_text(
        config.read_text()
        + '[hosts.far]\nbase = "big/judge"\napi = "http://localhost:1/v1"\nkey_env = "JUDGE_KEY"\n'
        '[agents.judge]\nhost = "far"\n'
    )
    comas.export(tmp_path / "r", tmp_path / "out")
    data = tomllib.loads((tmp_path / "out" / "team.toml").read_text())
    kept = {k: data["hosts"]["far"][k] for k in ("base", "api", "key_env")}
    assert kept == {"base": "big/judge", "api": "http://localhost:1/v1", "key_env": "JUDGE_KEY"}
    assert "base" not in data["agents"]["judge"]
    assert not (tmp_path / "out" / "judge").exists()
    assert all(
        b"sk-secret" not in f.read_bytes() for f in (tmp_path / "out").rglob("*") if f.is_file()
    )
    team = comas.load(tmp_path / "out", overrides=["hosts.far.key_env=JUDGE_KEY"])
    assert "big/judge at http://localhost:1/v1" in team.bases()
    team.close()


ON_SEED: dict[str, Any] = {
    **SMALL,
    "options__format_check": True,
    "steps": 1,
    "questions": 4,
    "agents": 2,
    "test_questions": 0,
    "eval_every": 0,
    "hosts__home__learner": "adapters",
}


@pytest.fixture(scope="module")
def on_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of adapters on a shipped model."""
    folder = tmp_path_factory.mktemp("seed") / "s"
    comas.train(out=str(folder), **ON_SEED)
    return folder


def test_the_seed_model(on_seed: Path, tmp_path: Path) -> None:
    comas.export(on_seed, tmp_path / "x")
    config = json.loads((tmp_path / "x" / "a0" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"  # wherever comas is installed
    card = (tmp_path / "x" / "a0" / "adapter" / "README.md").read_text()
    assert "a small model that is shipped with comas" in card
    teams = [comas.load(on_seed), comas.load(tmp_path / "x")]
    texts = [[t.text for t in team.discuss("12 7 3 5 -> 22", seed=1).turns] for team in teams]
    for team in teams:
        team.close()
    assert texts[0] == texts[1]


SHIPPED = shipped_models()["tiny"]


@pytest.mark.parametrize(
    ("recorded", "known"),
    [
        (str(SHIPPED), "tiny"),
        ("tiny", "tiny"),
        ("/gone/lib/python3.12/site-packages/comas/models/tiny/tiny", "tiny"),
        (r"C:\gone\comas\models\tiny\tiny", "tiny"),
        ("/gone/mine/seeds/seed", "/gone/mine/seeds/seed"),
        ("/gone/comas/models/tiny/seed9", "/gone/comas/models/tiny/seed9"),
        ("org/model", "org/model"),
    ],
)
def test_a_shipped_model_has_a_name_on_every_machine(recorded: str, known: str) -> None:
    assert known_as(recorded) == known


def test_a_folder_at_a_place_like_that_of_a_shipped_model_is_itself(tmp_path: Path) -> None:
    folder = tmp_path / "comas" / "models" / "tiny" / "tiny"
    folder.mkdir(parents=True)
    assert known_as(str(folder)) == str(folder)


def test_a_run_on_a_shipped_model_is_taken_to_another_machine(
    on_seed: Path, tmp_path: Path
) -> None:
    trained = Path(shutil.copytree(on_seed, tmp_path / "s"))
    checkpoint = trained / "checkpoints" / "step-1"
    for agent in ("a0", "a1"):
        file = checkpoint / agent / "adapter_config.json"
        settings = json.loads(file.read_text())
        assert settings["base_model_name_or_path"] == "tiny"
        # earlier versions wrote the place on the machine that trained it
        settings["base_model_name_or_path"] = "/gone/site-packages/comas/models/tiny/tiny"
        file.write_text(json.dumps(settings))
    (checkpoint / "manifest.json").unlink()
    files.seal(checkpoint, {"step": 1})
    written = comas.export(trained, tmp_path / "x")
    assert [policy["gap"] for policy in written.policies] == [pytest.approx(0, abs=1e-3)] * 2
    config = json.loads((tmp_path / "x" / "a0" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"
    comas.train(out=str(tmp_path / "next"), hosts__home__base=str(checkpoint / "a0"), **ON_SEED)


def test_earlier_selves_are_exported_as_they_were(untaught: Path, tmp_path: Path) -> None:
    agents = {"a0": {}, "past": {"policy": "a0", "lag": 2}}
    keys = {**KEYS, "agents": agents, "learner": "full", "test_questions": 0, "eval_every": 0}
    trained = run_of(tmp_path / "r", untaught, **keys)
    comas.export(trained.path, tmp_path / "team")
    data = tomllib.loads((tmp_path / "team" / "team.toml").read_text())
    assert data["agents"]["past"]["frozen"]
    team = comas.load(tmp_path / "team")
    assert {member.address for member in team.members} == {"home/a0", "home/past"}
    team.close()
    step = trained.path / "checkpoints" / "step-3"
    for policy in ("a0", "past"):
        then = load_file(step / policy / "model.safetensors")
        now = load_file(tmp_path / "team" / policy / "model" / "model.safetensors")
        assert all(torch.equal(now[name], weight) for name, weight in then.items())


def test_a_model_that_cannot_be_merged_is_not_written(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = population.Population.merged
    monkeypatch.setattr(
        population.Population, "merged", lambda *a: {n: w * 1.5 for n, w in real(*a).items()}
    )
    with pytest.raises(UserMistake, match="log-probs differ by"):
        comas.export(runs["adapters"].path, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def mistake(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    assert run(["export", *arguments], monkeypatch) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x]
    assert line.startswith("error: ")
    return line


def test_mistakes_are_one_line_and_leave_nothing(
    runs: dict[str, Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    full, adapters = (str(runs[k].path) for k in ("full", "adapters"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    (tmp_path / "busy.part").mkdir()
    cases = [
        (["nowhere", "x"], "nowhere is not a run"),
        (["tiny", "x"], "tiny is not a run"),
        ([full, "full"], "full is not an empty folder: export to a new one"),
        ([full, "full/mine.txt"], "full/mine.txt is not an empty folder"),
        ([f"{full}@9", "x"], "has no checkpoint of step 9: one of ["),
        ([full, "busy"], "File exists: '"),
        (
            [adapters, "x", "--base", "./gone"],
            "base './gone': no such folder; say where the base of host home is with --base",
        ),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, said in cases:
        assert said in mistake(arguments, capsys, monkeypatch)
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_and_crashes_leave_no_half_export(
    runs: dict[str, Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(runs["full"].path, tmp_path / "r")
    weights = tmp_path / "r" / "checkpoints" / "step-3" / "a3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    assert "is damaged: step-3/a3/model.safetensors is not what was written" in mistake(
        [str(tmp_path / "r"), str(tmp_path / "x")], capsys, monkeypatch
    )
    monkeypatch.setattr(files, "seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        comas.export(runs["full"].path, tmp_path / "x")
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def opening(agents: int) -> str:
    facts = Facts("r", 1, plan(read(None, {"agents": agents})).config)
    return card(facts, Part("team", ["a0"], {"a0": "tiny"}))


def test_a_card_counts_agents_as_people_do_and_claims_no_discussion() -> None:
    assert "\nA team of one agent, trained by [comas]" in opening(1)
    assert "\nA team of 4 agents, trained by [comas]" in opening(4)


def adapter_code(base: str) -> str:
    facts = Facts("r", 1, plan(read(None, {})).config)
    text = card(facts, Part("adapter", ["a0"], {"a0": base}, adapters=["a0"]))
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    compile(code, "card", "exec")
    return code


def test_a_runs_name_is_no_markup_in_its_card() -> None:
    facts = Facts("a `b` [c](d)\n# e", 1, read(None, []))
    assert "\n# `a 'b' [c](d) # e`\n" in card(facts, Part("team", ["a0"], {"a0": "tiny"}))


def test_the_code_of_an_adapters_card_loads_its_base(tmp_path: Path) -> None:
    """`from_pretrained("x.gguf")` cannot, nor `from_pretrained("tiny")`."""
    code = adapter_code("tiny")
    first = [line for line in code.splitlines() if "peft" not in line.lower()]
    loaded: dict[str, Any] = {}
    exec("\n".join(first), loaded)
    assert loaded["base"].num_parameters() > 0
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert 'from_pretrained("its folder here", gguf_file="x.gguf")' in adapter_code(
        str(tmp_path / "x.gguf")
    )
    assert "from_pretrained(file.parent, gguf_file=file.name)" in adapter_code("smollm2")
    assert 'from_pretrained("some/base")  # a hub name' in adapter_code("some/base")
    # no pair of surrogates, which Python does not read as JSON does
    assert 'from_pretrained("\U0001f999 base")' in adapter_code("/models/\U0001f999 base")


def test_one_agent_has_one_interval_everywhere() -> None:
    """The terminal had Student's, the card Wilson's."""
    answers = [
        {"question": f"q{n}", "agent": "a0", "verdict": "right" if n < 2 else "wrong"}
        for n in range(12)
    ]
    facts = Facts("r", 1, read(None, {}), answers={"after": answers})
    assert facts.accuracy("after") == facts.accuracy("after", ["a0"]) == accuracy(answers)
    assert accuracy(answers) == wilson(2, 12)


def test_an_empty_folder_may_be_filled_and_is_sealed(runs: dict[str, Run], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    done = comas.export(runs["full"].path, tmp_path / "x")
    assert files.damage(tmp_path / "x") is None
    assert run_at(str(tmp_path / "x")) is None
    assert done.bytes == sum(p.stat().st_size for p in (tmp_path / "x").rglob("*") if p.is_file())
