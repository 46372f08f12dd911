"""`comas serve` from the command line: where it listens and for whom, one line for each mistake,
and its end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import comas.serve
from comas.cli.serve import named_team
from comas.evaluation.systems import asked
from comas.serve.endpoint import KEY, bound_to, key_of
from comas.types import UserMistake
from tests.support.command import run as command
from tests.support.serving import running
from tests.support.viewed import viewed_run

SECRET = "sk-of-this-test-0123456789"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Missing argument 'TEAM"),
        (["tiny", "runs/a"], "serve takes one team, such as: comas serve tiny; not tiny, runs/a"),
        (["seed,tiny-b"], "serve takes one team"),
        (["steps=3"], "serve takes one team"),
        (["./nowhere"], "./nowhere: there is no such run or folder here"),
        (["none.toml"], "none.toml: there is no such file here"),
        (["r@7"], "step"),
        (["tiny", "steps=3"], "steps=3: steps changes nothing where clients ask: leave it out"),
        (["tiny", "out=x"], "out=x: out changes nothing"),
        (["tiny", "temperature=1"], "temperature changes nothing"),
        (["tiny", "data=x"], "data changes nothing"),
        (["tiny", "agnets=3"], "unknown key agnets"),
        (["tiny", "hosts.far.max_rows=3"], "no agent of these systems is at a host 'far'"),
        (["tiny", "--setups", ","], "--setups names none"),
        (["tiny", "--setups", "odd"], "setup 'odd'"),
        (["tiny", "--setups", "duel"], "setup duel needs a task with `rules`"),
        (["tiny", "--setups", "vote:votes=0"], "votes"),
        (["tiny", "task=mix"], "task mix cannot read an answer"),
        (["tiny", "--host", "0.0.0.0"], "a key is wanted: set the environment variable COMAS_"),
        (["tiny", "--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 0: "),
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
    monkeypatch.delenv(KEY, raising=False)
    if "r@7" in arguments:
        viewed_run(tmp_path / "r")
    assert command(["serve", "--port", "0", *arguments], monkeypatch) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert line in said[0]


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loading(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("comas.cli.serve.greeted", loading)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command(["serve", "tiny", "--port", port], monkeypatch) == 2
    said = capsys.readouterr().err
    assert f"--host 127.0.0.1 --port {port}: " in said
    assert "Address already in use" in said


def test_what_is_missing_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # of what was imported, only the piece that asks for uvicorn is taken out: the others stay the
    # modules that the package `comas.serve` names, which other tests change
    monkeypatch.delitem(sys.modules, "comas.serve.endpoint", raising=False)
    monkeypatch.delattr(comas.serve, "endpoint", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command(["serve", "tiny"], monkeypatch) == 2
    assert 'comas serve needs uvicorn: pip install "comas[serve]"' in capsys.readouterr().err


def test_the_key_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with bound_to("127.0.0.1", 0) as here, bound_to("0.0.0.0", 0) as anywhere:
        assert key_of(here) == SECRET
        assert KEY not in os.environ
        assert key_of(here) == ""
        monkeypatch.setenv(KEY, SECRET)
        assert key_of(anywhere) == SECRET
        with pytest.raises(UserMistake, match="a key is wanted"):
            key_of(anywhere)
        for odd in ("schlüssel", "two words"):  # which clients write in several ways
            monkeypatch.setenv(KEY, odd)
            with pytest.raises(UserMistake, match="cannot be a key"):
                key_of(here)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1", "0.0.0.0", "::"])
def test_loopback_is_known_by_its_number(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    try:
        bound = bound_to(host, 0)
    except UserMistake as error:
        pytest.skip(str(error))
    with bound:
        if host not in ("0.0.0.0", "::"):
            assert key_of(bound) == ""
        else:
            with pytest.raises(UserMistake, match="a key is wanted"):
                key_of(bound)


def test_runs_and_config_files_are_teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = {"questions": 8, "test_questions": 0, "eval_every": 0, "checkpoint_every": 1}
    comas.train(steps=2, threads=1, out="run", hooks=[], **short)
    Path("team.toml").write_text('[hosts.home]\nbase = "tiny"\n[agents.ann]\n[agents.bob]\n')
    last = named_team(["run"])
    assert (last.checkpoint is not None and last.checkpoint.name) == "step-2"
    first = named_team(["run@1", "eval_temperature=0"])
    assert (first.checkpoint is not None and first.checkpoint.name) == "step-1"
    assert first.config.eval_temperature == 0
    assert list(first.config.agents) == list(last.config.agents)
    with running(asked(first)) as served:
        said = served.client.chat.completions.create(
            model="game", messages=[{"role": "user", "content": "1 2 4 5 -> 7"}], seed=1
        )
        assert said.usage is not None
        assert said.usage.completion_tokens > 0
    described = named_team(["team.toml"])
    assert (list(described.config.agents), described.checkpoint) == (["ann", "bob"], None)


@pytest.mark.parametrize(
    "kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_it_answers_until_it_is_stopped(kind: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["key"]
        assert told["models"][0] == "single"
        asked = {
            "model": "vote",
            "n": 2,
            "messages": [{"role": "user", "content": "1 2 4 5 -> 7"}],
        }
        address = f"{told['url']}/chat/completions"
        key = {"Authorization": f"Bearer {SECRET}"}
        assert httpx.post(address, json=asked, timeout=60).status_code == 401
        assert httpx.post(address, json=asked, headers=key, timeout=60).status_code == 200
        process.send_signal(kind)
        assert process.wait(60) == 130
        assert SECRET not in process.stderr.read() + process.stdout.read()
    assert not list(tmp_path.iterdir()), "nothing is written"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The tiny model behind a free port, with the key, in a process of its own."""
    arguments = ["serve", "tiny", "threads=1", "--port", "0", "--json", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "comas", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, KEY: SECRET},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
