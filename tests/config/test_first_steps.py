"""What those who start get wrong: names that are none, keys that do nothing, files that change;
each is told in time.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from comas.config.checks import check_roles, shipped_roles
from comas.config.schema import settings_of
from comas.config.systems import system_plan
from comas.evaluation import spec
from comas.evaluation.preflight import planned_team
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.setups import chosen_setup
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.models import sources
from comas.models.sources import at_hand, config_folder
from comas.storage.run import Run
from comas.sync import run_sync
from comas.team.build import outline
from comas.training.start import _unasked
from comas.types import UserMistake
from tests.support.command import run
from tests.support.runs import planned, run_of


@pytest.fixture(scope="module")
def place(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in runs/first."""
    folder = tmp_path_factory.mktemp("home")
    run_of(folder / "runs" / "first", untaught, steps=1, agents=2, test_questions=0, eval_every=0)
    return folder


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No network; returns what the hub was asked for."""
    from huggingface_hub import HfApi

    asked: list[str] = []

    def model_info(self: Any, name: str, timeout: float) -> Any:
        asked.append(name)
        raise ConnectionError("no route")

    monkeypatch.setattr(HfApi, "model_info", model_info)
    at_hand.cache_clear()
    return asked


def test_where_no_hub_is_reached_no_download_is_tried(
    away: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library would try five times, for 24 seconds."""
    downloads: list[str] = []
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda name, *_, **__: downloads.append(name)
    )
    assert config_folder("org/nowhere") is None
    assert (away, downloads) == (["org/nowhere"], [])


@pytest.mark.parametrize(
    ("arguments", "said", "hub"),
    [
        (["first"], "base 'first': no such folder; did you mean runs/first?", False),
        (["frist"], "did you mean runs/first?", False),
        (["runs/frist"], "there is no such run or folder here; did you mean runs/first?", False),
        (
            ["tiny", "org/model"],
            "base 'org/model': no such folder, and it is not in the hub's cache",
            True,
        ),
        (
            ["runs"],
            (
                "runs' is a folder without config.toml (a run), config.json (a model) and"
                " adapter_config.json"
            ),
            False,
        ),
        (["a b"], "no name that a model on the hub can have", False),
        (["runs/first", "method=ttrl"], "comas eval --setups METHOD", False),
    ],
)
def test_mistakes_in_names_are_told_before_anything_is_asked(
    arguments: list[str],
    said: str,
    hub: bool,
    place: Path,
    away: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    assert run(["eval", *arguments], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert away == (["org/model"] if hub else [])
    assert not (place / "evals").exists()


def test_a_model_in_the_cache_of_the_hub_needs_no_network(
    away: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "snapshot", lambda name: tmp_path)
    assert at_hand("org/cached") == str(tmp_path)
    assert away == ["org/cached"]


def test_roles_of_shipped_games_are_known_and_own_games_bring_theirs(tmp_path: Path) -> None:
    files = [
        f
        for kind in ("methods", "setups")
        for f in (Path(spec.__file__).parents[1] / kind).rglob("*.py")
    ]
    files += (Path(spec.__file__).parents[1] / "game").glob("*.py")
    asked = {
        role
        for f in files
        for role in re.findall(
            r'(?:\.ask\(\s*|rewritten\(\w+, \w+, )"(\w+)"', f.read_text(encoding="utf-8")
        )
    }
    assert asked <= shipped_roles()
    (tmp_path / "mine.py").write_text(
        "from comas.types import Setup\nasync def play(question, agents, rng, task):\n"
        "    return (await agents[0].ask('critic', question.prompt)).text\nsetup = Setup(play, roles=('critic',))\n"
    )
    resolved = system_plan("tiny", ["room.critic=9"])
    own = chosen_setup(str(tmp_path / "mine.py"), outline(resolved)).method
    check_roles(resolved.config, [resolved.method, own], resolved.task)
    with pytest.raises(UserMistake, match=r"room\.critic"):
        check_roles(resolved.config, [resolved.method], resolved.task)


def test_where_everything_fails_for_want_of_room_is_told(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["eval", "tiny", "room.solution=5000", "--limit", "4"], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "every game failed" in line
    assert "lower room.solution" in line


def evaluated(evaluation: EvaluationRun) -> dict[str, Any]:
    return run_sync(evaluation.go(Hook()))


def test_changed_questions_and_changed_weights_are_refused(untaught: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    data = tmp_path / "mine.jsonl"
    subprocess.run(["cp", "-r", str(untaught), str(model)], check=True)
    rows = [json.dumps({"question": f"{i} + {i}?", "answer": i}) for i in range(4)]
    data.write_text("\n".join(rows))
    asked = EvaluationPlan(
        [str(model)], tasks=["jsonl"], data=str(data), settings=settings_of(["room.solution=8"])
    )
    before = evaluated(EvaluationRun.create(asked, str(tmp_path / "e")))
    assert before["cells"][0]["n"] == 4  # all of a file that nobody was trained on
    assert evaluated(EvaluationRun.open(tmp_path / "e")) == before
    data.write_text("\n".join([*rows[:3], rows[3].replace(": 3", ": 4")]))
    with pytest.raises(UserMistake, match="questions of jsonl"):
        evaluated(EvaluationRun.open(tmp_path / "e"))
    data.write_text("\n".join(rows))
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(bytes(weights))
    with pytest.raises(UserMistake, match=f"weights of {model}"):
        evaluated(EvaluationRun.open(tmp_path / "e"))


def test_of_a_file_that_a_run_was_trained_on_only_the_rest_is_asked(
    tiny: Path, tmp_path: Path
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text(
        "\n".join(
            json.dumps({"question": f"What is {i} + {i}?", "answer": 2 * i}) for i in range(40)
        )
    )
    keys = {
        "task": "jsonl",
        "data": str(data),
        "room": {"solution": 8, "evaluation": 8, "scoring": 8},
    }
    trained = run_of(
        tmp_path / "r", tiny, steps=1, agents=2, test_questions=0, eval_every=0, **keys
    ).path
    asked = EvaluationPlan(
        [str(tiny), str(trained)],
        tasks=["jsonl"],
        data=str(data),
        settings=settings_of(["room.solution=8"]),
    )
    found = evaluated(EvaluationRun.create(asked, str(tmp_path / "e")))
    assert 0 < found["cells"][0]["n"] == found["cells"][1]["n"] < 20
    assert any(
        "asked are the test questions of" in note and "was trained on others" in note
        for note in found["notes"]
    )
    assert found["overlap"][0]["exact"] == []


def test_a_folder_in_comas_data_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMAS_DATA", "./none")
    assert run(["eval", "tiny", "--tasks", "gsm8k"], monkeypatch) == 2
    assert "COMAS_DATA is ./none: there is no such folder" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
@pytest.mark.parametrize(
    "kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_evaluation_that_is_stopped_says_how_to_go_on(kind: int, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "comas",
        "eval",
        "tiny",
        "--setups",
        "vote:votes=2",
        "--limit",
        "1024",  # several times what is played at once
        "--out",
        str(tmp_path / "e"),
        "agents=1",
        "threads=1",
        "max_rows=8",  # so that some games have ended long before the others
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while (
        not list((tmp_path / "e").glob("answers/*"))
        and process.poll() is None
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    process.send_signal(kind)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"stopped; go on with: {sys.executable} -m comas resume {tmp_path / 'e'}\n"
    assert re.match(r"[\d,]+ games, in ", said)


@pytest.mark.parametrize("words", [["steps=9"], ["tokens=5_000", "'hosts.home.max_rows = 2'"], []])
def test_a_resume_that_is_stopped_is_named_with_its_changes(
    words: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("comas.cli.train.resume_async", stopped)
    folder = str(place / "runs" / "first")
    arguments = shlex.split(" ".join(words))
    assert run(["resume", folder, *arguments], monkeypatch) == 130
    assert capsys.readouterr().err.endswith(f" resume {' '.join([folder, *words])}\n")


HUNG = """
import pathlib
from dataclasses import replace

from comas.tasks.pick import task as pick


def verify(question, text):
    pathlib.Path("begun").touch()
    while True:
        pass


task = replace(pick, name="hung", verify=verify)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_a_verifier_that_never_returns_does_not_outlive_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "hung.py").write_text(HUNG)
    words = ["eval", "tiny", "--tasks", "./hung.py", "--limit", "1", "--out", "e", "threads=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "comas", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("stopped; go on with: ")


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_ctrl_c_while_the_library_is_imported_is_one_line() -> None:
    stop = "import sys, os, signal; sys.argv = ['comas', 'eval', 'seed']\n"
    stop += "class Find:\n    def find_spec(self, name, *_):\n"
    stop += "        if name == 'comas.team.build': os.kill(os.getpid(), signal.SIGINT)\n"
    code = stop + "sys.meta_path.insert(0, Find())\n"
    for begun in (
        "from comas.cli.entry import main; main()",
        "import runpy\nrunpy.run_module('comas')",
    ):
        done = subprocess.run(
            [sys.executable, "-c", code + begun], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (130, "stopped\n")
    done = subprocess.run(
        [sys.executable, "-c", code + "import comas; comas.train"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr  # a script's own affair


def test_importing_the_package_loads_no_library_and_no_command_line() -> None:
    code = (
        "import sys, comas; assert comas.__version__; dir(comas);"
        " sys.exit(bool({'torch', 'typer', 'comas.cli.main', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = (
        "import comas.export.team, comas; assert callable(comas.export); from comas import export"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    import comas

    assert all(getattr(comas, name) is not None for name in comas.__all__)


def test_discussions_are_narrowed_to_a_step_and_a_question(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    asked = next(Run(place / "runs" / "first").episodes(0))["question"]["id"]
    words = ["report", "runs/first", "--discussions", "--step", "1", "--question", asked, "--json"]
    assert run(words, monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["question"]["id"] for one in said["discussions"]] == [asked]
    assert run(["report", "runs/first", "--step", "1"], monkeypatch) == 2
    assert "--step, --question, --only and --limit are of --discussions" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["pick", "sums", "constraints"])
def test_the_preflight_that_is_pointed_to_can_be_run(task: str, untaught: Path) -> None:
    hint = _unasked(planned([f"base={untaught}", f"task={task}", "method=comas", "lr=1"]))
    assert hint is not None
    base, *words = shlex.split(hint.partition(" preflight ")[2])
    assert base == str(untaught)
    asked = planned_team([base], settings_of(words)).config
    assert asked.task_options == planned_team([base], {"task": task}).config.task_options
