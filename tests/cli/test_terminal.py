"""Terminals, pipes and encodings as people have them: a run outlives its terminal, and odd bytes
are one line.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from comas.cli import train
from comas.config.plugins import load_plugin
from comas.config.schema import read
from comas.storage.run import Run
from comas.tasks import jsonl
from comas.types import UserMistake
from tests.support.command import run as command

COMAS = [sys.executable, "-m", "comas"]
RUN = [
    "train",
    "questions=4",
    "test_questions=0",
    "eval_every=0",
    "threads=1",
    "steps=500",
    "checkpoint_every=500",
    "out=r",
]
posix = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")


def steps_of(folder: Path) -> int:
    try:
        return len(list(Run.open(folder).metrics()))
    except (UserMistake, FileNotFoundError):
        return 0


def committed(folder: Path) -> int:
    return (Run.open(folder).marker() or {"step": -1})["step"]


@posix
@pytest.mark.slow
@pytest.mark.parametrize("last", ["loading", "step 1/500"])
def test_a_closed_pipe_stops_a_run_in_order(last: str, tmp_path: Path) -> None:
    """comas train ... | head -1, and later: before the first step there is nothing to keep,
    afterwards all of it is.
    """
    with subprocess.Popen(
        [*COMAS, *RUN], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while last not in (line := process.stdout.readline()):
            assert line
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(120) == 141
    assert said.splitlines()[-1] == f"stopped; go on with: {sys.executable} -m comas resume r"
    if last != "loading":
        # -1: before the first commit
        assert committed(tmp_path / "r") in (-1, steps_of(tmp_path / "r"))


@pytest.mark.slow
@posix
def test_a_lost_connection_stops_a_run_in_order_and_nohup_does_not(tmp_path: Path) -> None:
    lines = [
        "import os, signal",
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)",
        f"os.execv({COMAS[0]!r}, {[*COMAS, *RUN]!r})",
    ]
    # these tests may themselves run under nohup
    listening = [sys.executable, "-c", "\n".join(lines)]
    with subprocess.Popen(
        listening, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while steps_of(tmp_path / "r") < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        assert process.wait(120) == 130
    done = committed(tmp_path / "r")
    assert done == steps_of(tmp_path / "r") > 0
    resume = ["nohup", *COMAS, "resume", "r"]
    with subprocess.Popen(
        resume, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while steps_of(tmp_path / "r") < done + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    assert committed(tmp_path / "r") > done


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_old_code_pages_show_what_they_can(
    encoding: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding))
    monkeypatch.chdir(tmp_path)
    words = ["eval", "tiny", "--limit", "2", "--setups", "single,vote:votes=2"]
    assert command(words, monkeypatch) == 0
    sys.stdout.flush()
    assert b"accuracy, 95 %" in shown.getvalue()
    assert b"?" in shown.getvalue()  # in the place of a line of the table
    assert not capsys.readouterr().err


def test_bytes_that_are_no_text_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", os.fsdecode(b"out=caf\xe9")], monkeypatch) == 2
    assert capsys.readouterr().err.startswith("error: an argument is not UTF-8")


def test_files_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    """As Notepad and PowerShell write them."""
    (tmp_path / "run.toml").write_text("\ufeffsteps = 3\n", encoding="utf-8")
    assert read(tmp_path / "run.toml").steps == 3
    row = json.dumps({"question": "1 + 1?", "answer": 2})
    (tmp_path / "test.jsonl").write_text(f"\ufeff{row}\n", encoding="utf-8")
    (question,) = jsonl.load("test", path=str(tmp_path))
    assert question.answer == "2"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("room.solution=0", "greater than or equal to 1"),
        ("room.solution=-5", "greater than or equal to 1"),
        ("betas=[1.0, 1.0]", "less than 1"),
        ("betas=[-0.1, 0.9]", "greater than or equal to 0"),
    ],
)
def test_numbers_out_of_range_are_told_with_their_key(pair: str, said: str) -> None:
    with pytest.raises(UserMistake, match=said) as found:
        read(None, [pair])
    assert pair.split("=")[0].split("[")[0] in str(found.value)


PLUGINS = {
    "task": (
        "from comas.types import Task\n\ntask = Task(len, len, len, len, len, len, len, len, len,"
        " len, len, len, len, len)\n"
    ),
    "method": "x = {}\n\nx['key']\n",
    "setup": "raise RuntimeError('mine')\n",
}


@pytest.mark.parametrize("kind", PLUGINS)
def test_a_file_that_fails_as_it_is_loaded_is_one_line(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGINS[kind])
    with pytest.raises(UserMistake, match="cannot be imported: ") as found:
        load_plugin(kind, str(file))
    assert "line " in str(found.value)


@pytest.mark.parametrize("began", [True, False])
def test_a_run_that_is_stopped_while_it_loads_says_how_to_go_on_where_there_is_one(
    began: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "resume_async", stopped)
    monkeypatch.setattr(train, "train_async", stopped)
    (tmp_path / "r").mkdir()
    words = ["resume", str(tmp_path / "r")] if began else ["train", f"out={tmp_path / 'new'}"]
    assert command(words, monkeypatch) == 130
    told = capsys.readouterr().err
    assert (f"resume {tmp_path / 'r'}" in told) == began
    assert ("before the run began" in told) != began
