"""Names, folders and files that are not as they should be: said in a line that has the remedy, and
before models are loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import comas
from comas import machine
from comas.config.schema import read, settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.machine import use_threads
from comas.questions.checked import of_run
from comas.storage import files
from comas.storage.out_folder import check_free
from comas.storage.run import Run, accounts_in
from comas.tasks import pick
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.runs import run_of

CONFIG: dict[str, Any] = {"method": "comas", "steps": 9, "hosts": {"home": {"base": "tiny"}}}
PAID: dict[str, Any] = {**CONFIG, "hosts": {"judge": {"api": "http://127.0.0.1:1/v1"}}}


@pytest.fixture(scope="module")
def trained(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("runs") / "r",
        untaught,
        steps=1,
        agents=2,
        test_questions=2,
        eval_every=0,
    ).path


@pytest.mark.parametrize("verb", ["resume", "play", "report", "eval"])
def test_a_config_of_something_else_is_no_run(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text('title = "my pages"\n')
    assert run([verb, str(tmp_path / "site")], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "site is not a run: its config.toml" in line or "unknown key title" in line


@pytest.mark.parametrize("sign", "9[")
def test_a_run_whose_config_has_no_end_is_one_line(sign: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"steps = {sign * 5000}")
    with pytest.raises(UserMistake, match=r"config\.toml is damaged"):
        Run.open(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", '{"step": 1}'])
def test_a_measurement_without_its_facts_counts_as_not_measured(
    text: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "r")
    (tmp_path / "r" / "eval" / "after.json").write_text(text)
    told: list[str] = []
    assert Run.open(tmp_path / "r").read_eval("after", told.append) is None
    why = "is no object" if text == "[]" else "has to have step, accuracy, answers"
    assert f"after.json is damaged: it {why}; it counts as not measured" in told[0]
    found = comas.resume(tmp_path / "r", hooks=[])
    assert found.accuracy["after"] is not None


@pytest.mark.parametrize("text", ["{", "[1]", '{"judge": {}}', '{"judge": 3}'])
def test_a_damaged_account_says_what_to_do_and_counts_only_where_somebody_is_paid(
    text: str, tmp_path: Path
) -> None:
    for name, config in (("paid", PAID), ("free", CONFIG)):
        opened = Run.create(config, str(tmp_path / name))
        (opened.path / "spent.json").write_text(text)
        if name == "free":
            assert opened.spent() == {}
        else:
            with pytest.raises(
                UserMistake,
                match=r"spent\.json is damaged.*remove it",
            ):
                opened.spent()


@pytest.mark.parametrize("text", ["{", "null", "[1]", '{"home": 3}', '{"r": {"home": 3}}'])
def test_a_damaged_account_of_an_evaluation_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text(text)
    with pytest.raises(UserMistake, match=r"spent\.json is damaged.*remove it"):
        accounts_in(tmp_path / "spent.json", by_system=True)


def test_paths_are_paths_and_a_tilde_is_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    home = str(tmp_path / "x")
    for out in (Path("~/x"), "~/x"):
        assert os.path.normpath(read(None, {"out": out}).out or "") == home
    pairs = ["out=~/x", "base=~/x", "data=~/x", "method=~/x"]
    config = read(None, pairs)
    assert {
        os.path.normpath(str(p))
        for p in (config.out, config.hosts["home"].base, config.data, config.method)
    } == {home}
    evaluation = EvaluationRun.create(EvaluationPlan(["tiny"]), "~/e")
    assert os.path.normpath(evaluation.folder) == str(tmp_path / "e")
    (tmp_path / "team.toml").write_text("steps = 0\ntest_questions = 0\neval_every = 0\n")
    assert comas.train("~/team.toml", out=str(tmp_path / "r"), hooks=[]).steps == 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("out", "a\0b", "NUL"),
        ("base", "", "it is empty"),
        ("agents.a0.base", "", "it is empty"),
        ("out", " ", "it is empty"),
    ],
)
def test_values_that_name_nothing_are_told(key: str, value: Any, said: str) -> None:
    with pytest.raises(UserMistake, match=said):
        read(None, {key: value})


def test_a_key_of_a_resumed_run_stands_there_in_one_spelling(trained: Path) -> None:
    with pytest.raises(UserMistake, match=r"max_rows and hosts\.home\.max_rows are one key"):
        comas.resume(trained, max_rows=4, hosts__home__max_rows=8, hooks=[])


def test_arguments_from_python_are_checked_as_those_of_the_command_line(
    trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserMistake, match=r"overrides='seed=2': .*\['seed=2'\]"):
        comas.load(trained, overrides="seed=2")
    with pytest.raises(UserMistake, match=r"hosts\.home\.max_rows=None"):
        comas.resume(trained, hosts__home__max_rows=None)
    with pytest.raises(UserMistake, match=r"hosts\.home\.budget_tokens: .*'home'"):
        comas.resume(trained, hosts__home__budget_tokens=None)
    for wrong in (
        {"seed": -1},
        {"seed": "x"},
        {"test_questions": "x"},
        {"test_questions": -3},
        {"test_questions": 3, "limit": 4},
    ):
        with pytest.raises(UserMistake, match=r"seed=|test_questions="):
            comas.evaluate("tiny", out=tmp_path / "e", **wrong)
    assert not (tmp_path / "e").exists()
    found = comas.evaluate("tiny", out=tmp_path / "e", test_questions=2, agents=1)
    assert found.cells[0]["n"] == 2


def test_keys_of_the_only_host_go_on_with_an_evaluation_as_with_a_run(tmp_path: Path) -> None:
    folder = EvaluationRun.create(EvaluationPlan(["tiny"]), str(tmp_path / "e")).folder
    evaluation = EvaluationRun.open(folder, settings_of(["max_rows=64"]))
    assert evaluation.plan.changes[0]["settings"] == {"hosts.home.max_rows": 64}
    assert evaluation.plan.of("tiny").config.hosts["home"].max_rows == 64


def test_an_evaluation_whose_settings_were_pairs_goes_on(tmp_path: Path) -> None:
    plan = EvaluationPlan(["tiny"], settings={"eval_temperature": 0.5, "room.solution": 8})
    folder = EvaluationRun.create(plan, str(tmp_path / "e")).folder
    written = json.loads((folder / "evaluation.json").read_text())
    written["pairs"] = [f"{key}={value}" for key, value in written.pop("settings").items()]
    written["changes"] = [{"when": "then", "pairs": ["hosts.home.max_rows=64"]}]
    (folder / "evaluation.json").write_text(json.dumps(written))
    opened = EvaluationRun.open(folder).plan
    assert opened.settings == plan.settings
    config = opened.of("tiny").config
    assert (config.eval_temperature, config.room["solution"]) == (0.5, 8)
    assert config.hosts["home"].max_rows == 64


def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(sys.modules["comas.training.start"], "assemble", load)


BROKEN = """
from comas.tasks.pick import task as shipped
import dataclasses
def load(split, limit=None, seed=0, path=None):
    return [3]
task = dataclasses.replace(shipped, load=load)
"""


def test_a_taken_folder_and_a_broken_task_are_told_before_models_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trained: Path,
) -> None:
    loads_nothing(monkeypatch)
    (tmp_path / "mine.py").write_text(BROKEN)
    (tmp_path / "file").write_text("")
    for pair, said in (
        (f"out={trained}", "there is a run already"),
        (f"out={tmp_path / 'file' / 'r'}", "Not a directory"),
        (f"task={tmp_path / 'mine.py'}", "wanted is Question"),
        ("room.solution=9999", "lower room.solution"),
    ):
        assert run(["train", pair], monkeypatch) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert "loading" not in shown.out


def died(folder: Path, **texts: str) -> Path:
    """What a run leaves that is killed before it has measured anything."""
    opened = Run.create(CONFIG, str(folder))
    opened.write_process({"step": 0, "torch": "0"})
    opened.write_eval("overlap", {"exact": [], "near": [], "tested": 0})
    opened.checkpoint()
    opened.unlock()
    for name, text in texts.items():
        (folder / name.replace("__", "/")).write_text(text)
    return folder


def test_a_folder_in_which_a_run_died_at_its_beginning_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"

    def full(path: Path, text: str) -> None:
        path.with_name("config.toml.new").write_text(text[:9])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", full)
        with pytest.raises(OSError, match="No space"):
            Run.create(CONFIG, str(folder))
    assert (folder / "checkpoints").is_dir()
    (folder / "checkpoints" / "mine").mkdir()
    with pytest.raises(UserMistake, match="checkpoints is in it"):
        Run.create(CONFIG, str(folder))
    (folder / "checkpoints" / "mine").rmdir()
    Run.create(CONFIG, str(folder)).unlock()
    assert Run.open(folder).config()["method"] == CONFIG["method"]


def test_a_run_stays(tmp_path: Path) -> None:
    folder = died(tmp_path / "r", **{"notes.txt": "{}\n"})
    with pytest.raises(UserMistake, match="there is a run already"):
        check_free(str(folder))
    with pytest.raises(UserMistake, match="there is a run already"):
        Run.create(CONFIG, str(folder))
    assert (folder / "notes.txt").read_text() == "{}\n"


def test_a_folder_with_somebody_elses_config_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("x = 1\n")
    with pytest.raises(UserMistake, match="choose another"):
        Run.create(CONFIG, str(tmp_path))
    assert (tmp_path / "config.toml").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("wished", "count", "threads"),
    [("3", None, 3), ("3,1", None, 3), ("3", 2, 2), ("", None, None), ("no", None, None)],
)
def test_threads_are_those_that_the_environment_says(
    wished: str, count: int | None, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", wished)
    try:
        use_threads(count)
        assert torch.get_num_threads() == (threads or machine.usable_cpus())
    finally:
        torch.set_num_threads(before)


def test_commands_in_messages_work_from_where_comas_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "my env" / "comas"), "train"])
    monkeypatch.setenv("PATH", str(tmp_path))  # an activated environment has a comas
    died(tmp_path / "a run", **{"notes.txt": ""})
    with pytest.raises(UserMistake) as taken:
        check_free(str(tmp_path / "a run"))
    with pytest.raises(UserMistake) as early:
        Run.open(tmp_path / "a run").intact()
    for found in (taken, early):
        assert f"`'{tmp_path / 'my env' / 'comas'}' resume '{tmp_path / 'a run'}'`" in str(
            found.value
        )


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["report", "RUN"], id="report"),
        pytest.param(["resume", "RUN"], id="resume", marks=pytest.mark.slow),
        pytest.param(["eval", "tiny", "--limit", "2"], id="eval", marks=pytest.mark.slow),
    ],
)
def test_whoever_stops_reading_gets_one_exit_code(
    arguments: list[str], trained: Path, tmp_path: Path
) -> None:
    end, begin = os.pipe()
    os.close(end)
    given = [str(trained) if argument == "RUN" else argument for argument in arguments]
    with os.fdopen(begin, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "comas", *given],
            cwd=tmp_path,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_report_says_how_long_the_steps_took(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["report", str(trained), "--json"], monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    (metrics,) = Run.open(trained).metrics()
    assert said["step_seconds"] == round(metrics["seconds"], 3)
    assert said["seconds"] is None


def test_a_held_out_question_that_is_trained_on_too_is_refused() -> None:
    same = pick.make_question((1, 2, 4, 5), 7, "three")
    task = replace(pick.task, load=lambda split, **_: [same])
    with pytest.raises(UserMistake, match="1 held-out questions are also trained on"):
        of_run(runs.planned([]).config, task, print)
