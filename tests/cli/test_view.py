"""`comas view` from the command line: files, addresses, and one line for each mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.command import run as command
from tests.support.viewed import evaluation, viewed_run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["none"], "none: there is no such folder; name a run or an evaluation"),
        (["empty"], "empty is not a run: it has no config.toml"),
        (["r", "--only", "odd"], "--only odd: one of rewarded-but-wrong, right-but-unrewarded"),
        (["r", "--steps", "1"], "--steps and --only narrow what a file holds: name it with --html"),
        (
            ["r", "--html", "x.html", "--steps", "1-9"],
            "--steps 1-9: step 4: there are steps 1 to 3",
        ),
        (["r", "--html", "x.html", "--steps", "9-7"], "--steps 9-7: 9-7 ends before it begins"),
        (["r", "--html", "x.html", "--steps", "a"], "--steps a: numbers of steps are wanted"),
        (
            ["r", "--html", "none/x.html"],
            "error: --html none/x.html: No such file or directory: none",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    viewed_run(tmp_path / "r")
    evaluation(tmp_path / "e")
    (tmp_path / "empty").mkdir()
    assert command(["view", *arguments], monkeypatch) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert line in said[0]


@pytest.mark.parametrize("only", ["rewarded-but-wrong", "paid-but-wrong"])
def test_a_kind_of_discussions_is_known_by_the_name_of_0_1(
    only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    viewed_run(tmp_path / "r")
    assert command(["view", "r", "--html", "x.html", "--only", only], monkeypatch) == 0
    assert Path("x.html").is_file()


def test_a_file_of_a_run_and_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    viewed_run(tmp_path / "r")
    evaluation(tmp_path / "e")
    assert command(["view", "r", "e", "--html", "x.html", "--json"], monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "html": "x.html",
        "bytes": (tmp_path / "x.html").stat().st_size,
        "steps": [1, 2, 3],
    }


def test_a_look_at_a_run_runs_nothing_that_its_folder_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked at a run that was sent to them had run its code."""
    monkeypatch.chdir(tmp_path)
    viewed_run(tmp_path / "r")
    (tmp_path / "evil.py").write_text('open("ran", "w").close()\n')
    config = tmp_path / "r" / "config.toml"
    named = re.sub("^(method|task) = .*$", r'\1 = "evil.py"', config.read_text(), flags=re.M)
    config.write_text(named)
    assert command(["view", "r", "--html", "x.html"], monkeypatch) == 0
    assert not (tmp_path / "ran").exists()


def test_a_server_says_its_address_and_ends_when_it_is_told(tmp_path: Path) -> None:
    viewed_run(tmp_path / "r")
    line = [sys.executable, "-m", "comas", "view", str(tmp_path / "r"), "--no-browser", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}data/0/run", timeout=20) as answer:
            assert json.load(answer)["name"] == "r"
        server.terminate()
        assert server.wait(timeout=20) != 0
