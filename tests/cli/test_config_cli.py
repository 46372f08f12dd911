"""Mistakes are one line and exit code 2; what is asked for as JSON is JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import comas
from comas import sandbox
from comas.config.schema import read
from comas.display import clean, discussion
from comas.machine import DeviceMemory
from comas.memory import parameters
from comas.models.sources import shipped_models
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run


def test_presets_and_overrides() -> None:
    stable, paper = (runs.planned([f"preset={p}"]).config for p in ("stable", "paper"))
    assert stable.kl == {"solution": 0.1, "evaluation": 0.5, "scoring": 0.5}
    assert paper.kl == {}
    assert paper.credit["normalise"] == "all"
    assert not paper.options["avoid_self"]
    mine = runs.planned(["preset=paper", "options.avoid_self=true", "kl.solution=0.1"]).config
    assert mine.options["avoid_self"]
    assert not mine.options["format_check"]
    assert mine.kl == {"solution": 0.1}


def test_a_pretrained_base_gets_the_preset_that_teaches_those(
    untaught: Path, tmp_path: Path
) -> None:
    def preset(*pairs: str) -> str | None:
        return runs.planned(["lr=1e-4", *pairs]).config.preset

    base = f"base={untaught}"
    judge = ["hosts.judge.api=http://localhost:1/v1", "hosts.judge.base=m"]
    assert preset(base) == "p_true"
    assert preset(base, "preset=stable") == preset("base=tiny") == "stable"
    assert preset(f"hosts.home.base={untaught}", *judge) == "stable", "an API may not weigh words"
    assert preset(base, "method=ttrl") == "stable"
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import replace\nfrom comas.methods import comas\n"
        "async def play(question, agents, rng, task): ...\n"
        "method = replace(comas.method, play=play)\n"
    )
    assert preset(base, f"method={mine}") == "stable", "its game has none of those options"
    config = runs.planned(["lr=1e-4", base, "options.score=text", "samples=2"]).config
    assert config.options["answer_first"]
    assert (config.options["score"], config.samples, config.questions) == ("text", 2, 24)


def test_file_then_arguments(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("steps = 5\nseed = 7\n[options]\nrounds = 3\n")
    config = read(tmp_path / "c.toml", ["steps=9"])
    assert (config.steps, config.seed, config.options) == (9, 7, {"rounds": 3})
    (tmp_path / "bad.toml").write_text("steps = = 5")
    with pytest.raises(UserMistake, match="not TOML"):
        read(tmp_path / "bad.toml")


def test_agents_are_dealt_over_hosts() -> None:
    config = read(None, ["agents=3", "hosts.left.base=tiny", "hosts.right.base=tiny"])
    assert {n: a.host for n, a in config.agents.items()} == {
        "a0": "left",
        "a1": "right",
        "a2": "left",
    }
    assert list(read(None).agents) == ["a0", "a1", "a2", "a3"]


def test_dry_run_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--dry-run", "--json", "steps=10"], monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["config"]["options"]["rounds"] == 1
    assert said["disk"]["checkpoint"] == 12 * 4 * (parameters(str(shipped_models()["tiny"])) or 0)
    assert min(said["seconds"].values()) > 0
    assert said["memory"]["peak"] > 10**8
    assert run(["train", "--dry-run", "--full", "agents=1"], monkeypatch) == 0
    assert "rounds = 1" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_date_in_options_is_told_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dated.py").write_text(
        "from dataclasses import replace\nfrom datetime import date\n"
        "from comas.tasks import pick\n\n"
        "def load(split, path=None, limit=None, seed=0, *, since: date = date(2019, 1, 1)):\n"
        "    return pick.task.load(split, path=path, limit=limit, seed=seed)\n\n"
        "task = replace(pick.task, name='dated', load=load)\n"
    )
    small = [
        "agents=1",
        "questions=2",
        "steps=1",
        "test_questions=0",
        "eval_every=0",
        "monitors=[]",
    ]
    keys = ["task=./dated.py", "task_options.since=2020-01-01", *small]
    assert run(["train", "--dry-run", "--json", *keys], monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["config"]["task_options"] == {"since": "2020-01-01"}
    assert run(["train", *keys[:1], "task_options.since=10:00:00", *small], monkeypatch) == 2
    assert "task_options.since = datetime.time(10, 0): Input should" in capsys.readouterr().err


def test_a_question_behind_a_team_points_to_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["play", "tiny", "1 2 3 4 -> 9"], monkeypatch) == 2
    said = capsys.readouterr().err
    assert "is not of the form key=value; a question of your own: --question '1 2 3 4 -> 9'" in said


def test_where_no_question_is_held_out_one_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = tmp_path / "mine.py"
    task.write_text(
        "from dataclasses import replace\nfrom comas.tasks import pick\n"
        "def load(split, path=None, limit=None, seed=0):\n    return []\n"
        "task = replace(pick.task, load=load)\n"
    )
    assert run(["play", "tiny", f"task={task}"], monkeypatch) == 2
    assert "no held-out question to be played: ask one of your own" in capsys.readouterr().err


def test_train_play_eval_resume_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = str(tmp_path / "r")
    assert (
        run(
            [
                "train",
                "--json",
                "steps=1",
                "agents=2",
                "questions=8",
                "test_questions=8",
                "eval_every=0",
                f"out={out}",
            ],
            monkeypatch,
        )
        == 0
    )
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1
    said = json.loads(lines[0])
    assert {"run", "steps", "tokens", "seconds", "accuracy"} <= said.keys()
    assert said["accuracy"]["before"].keys() == {"mean", "low", "high", "n"}
    assert run(["train", f"out={out}"], monkeypatch) == 2
    assert "comas resume" in capsys.readouterr().err
    assert run(["resume", out, "--json"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    assert run(["eval", out, "tiny", "test_questions=8", "--json"], monkeypatch) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [c["right"] + c["wrong"] + c["failed"] for c in cells] == [16, 8]
    assert {
        "system",
        "task",
        "setup",
        "n",
        "accuracy",
        "low",
        "high",
        "tokens",
        "seconds",
    } <= cells[0].keys()
    assert run(["play", out, "--seed", "2", "--json"], monkeypatch) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    assert turns[0]["role"] == "solution"
    assert turns[0]["reward"] is not None
    monkeypatch.chdir(tmp_path)  # where no other run is the latest
    assert run(["play", "--question", "1 2 3 4 -> 9"], monkeypatch) == 0
    assert "1 2 3 4 -> 9" in capsys.readouterr().out


def test_env_and_unknown_things(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["env", "--json"], monkeypatch) == 0
    assert "tiny" in json.loads(capsys.readouterr().out)["tiny models"]
    for arguments in (["fly"], ["eval"], ["resume", "nowhere"], ["train", "--fast"]):
        assert run(arguments, monkeypatch) == 2
        assert capsys.readouterr().err.startswith("error: ")
    for verb, now in (("show", "report --discussions"), ("doctor", "env"), ("compare", "eval A B")):
        assert run([verb], monkeypatch) == 2
        assert capsys.readouterr().err == f"error: comas {verb} is comas {now} now\n"


def test_a_report_for_an_issue_names_versions_and_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    private = {
        "HOME": "/home/ann-smith",
        "USER": "ann-smith",
        "LOGNAME": "ann-smith",
        "HOSTNAME": "anns-laptop",
        "OPENAI_API_KEY": "sk-very-secret",
        "HF_HOME": "/srv/models",
    }
    for name, value in private.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platform.node", lambda: "anns-laptop")
    monkeypatch.setattr("platform.release", lambda: "6.1.0-ann-smith-on-anns-laptop")
    # what is free changes between two reports
    monkeypatch.setattr("comas.installed.memory_of", lambda _: DeviceMemory(5 * 10**9, 8 * 10**9))
    walls = {"isolation": "unshare", "memory and processes": "control groups in /sys/ann-smith"}
    walls |= {"system calls": "NOT FILTERED (/home/ann-smith)"}
    walls |= dict.fromkeys(sandbox.ATTACKS, "held")
    walls["files in /dev"] = "NOT HELD (/home/ann-smith)"
    for found in (walls, {"isolation": "none: /home/ann-smith/bwrap sk-very-secret"}):
        monkeypatch.setattr(sandbox, "prove", lambda found=found: found)
        assert run(["env"], monkeypatch) == 0
        told = capsys.readouterr().out
        places = {sys.prefix, sys.executable, str(Path.cwd()), str(Path(comas.__file__).parent)}
        assert [word for word in (*private.values(), *places) if word in told] == []
        assert told.startswith(f"comas: {comas.__version__}\n")
        assert f"  torch          {torch.__version__}\n" in told
        if found is walls:
            assert "  isolation      unshare\n" in told
            assert "  system calls   NOT FILTERED\n" in told
            assert "  files in /dev  NOT HELD\n" in told
        else:
            assert told.endswith("  isolation      none\n")


def test_help_is_quick_to_import() -> None:
    code = "import sys, comas.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hostile_text_is_shown_as_text() -> None:
    from io import StringIO

    from rich.console import Console

    from comas.types import Turn

    evil = "[bold red]x[/]\x1b[2J\u202e<score>"
    assert clean(evil) == "[bold red]x[/] [2J<score>"
    turn = Turn("0/q/0/solution0", "a0", "home/a0", "solution", "p", evil, True, 0, reward=1.0)
    out = StringIO()
    Console(file=out, width=100).print(discussion(evil, [turn]))
    assert "[bold red]x[/]" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
