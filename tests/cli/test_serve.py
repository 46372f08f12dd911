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
from starlette.datastructures import Headers

import comas.serve
from comas.cli.serve import named_team
from comas.evaluation.systems import asked
from comas.serve.limits import Refusal
from comas.serve.listening import KEY, Place, entrance_of
from comas.types import UserMistake
from tests.support.command import run as command
from tests.support.serving import running
from tests.support.viewed import viewed_run

SECRET = "sk-of-this-test-0123456789"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Missing argument 'TEAM"),
        (["seed", "runs/a"], "serve takes one team, such as: comas serve seed; not seed, runs/a"),
        (["seed,seed-b"], "serve takes one team"),
        (["steps=3"], "serve takes one team"),
        (["./nowhere"], "./nowhere: there is no such run or folder here"),
        (["none.toml"], "none.toml: there is no such file here"),
        (["r@7"], "step"),
        (["seed", "steps=3"], "steps=3: a key of training changes nothing here: leave it out"),
        (["seed", "out=x"], "out=x: a key of training"),
        (["seed", "temperature=1"], "eval_temperature, where a request says nothing"),
        (["seed", "data=x"], "what clients ask"),
        (["seed", "agnets=3"], "unknown key agnets"),
        (["seed", "hosts.far.max_rows=3"], "no agent of these systems is at a host 'far'"),
        (["seed", "--setups", ","], "--setups names none"),
        (["seed", "--setups", "odd"], "setup 'odd'"),
        (["seed", "--setups", "duel"], "setup duel needs a task with `rules`"),
        (["seed", "--setups", "vote:votes=0"], "votes"),
        (["seed", "--kind", "odd", "task=jsonl"], "task jsonl cannot read an answer"),
        (["seed", "--host", "0.0.0.0"], "a key is wanted: set the environment variable COMAS_"),
        (["seed", "--host", "no.such.host.invalid"], "there is no such host"),
        (["seed", "--key-env", "UNSET_KEY"], "--key-env UNSET_KEY: that environment variable is"),
        (["seed", "--key-env", "ODD_KEY"], "ODD_KEY holds cannot be a key"),
        (["seed", "--certificate", "a.crt"], "--certificate: comas serve speaks HTTP: put a proxy"),
        (["seed", "--certificate-key", "k.pem"], "--certificate-key: comas serve speaks HTTP"),
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
    monkeypatch.setenv("ODD_KEY", "with a space")
    if "r@7" in arguments:
        viewed_run(tmp_path / "r")
    assert command(["serve", *arguments], monkeypatch) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert line in said[0]
    assert "with a space" not in said[0]


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command(["serve", "seed", "--port", port], monkeypatch) == 2
    assert f"--host 127.0.0.1 --port {port}: Address already in use" in capsys.readouterr().err


def test_what_is_missing_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # of what was imported, only the piece that asks for uvicorn is taken out: the others stay the
    # modules that the package `comas.serve` names, which other tests change
    monkeypatch.delitem(sys.modules, "comas.serve.listening", raising=False)
    monkeypatch.delattr(comas.serve, "listening", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command(["serve", "seed"], monkeypatch) == 2
    assert 'comas serve needs uvicorn: pip install "comas[serve]"' in capsys.readouterr().err


def test_the_key_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("127.0.0.1", 0)
    monkeypatch.setenv(KEY, SECRET)
    found = entrance_of(place, None).key
    assert found is not None
    assert found.get_secret_value() == SECRET
    assert KEY not in os.environ
    assert entrance_of(place, None).key is None
    monkeypatch.setenv("TEAM_KEY", SECRET)
    assert entrance_of(Place("0.0.0.0", 0), "TEAM_KEY").key is not None
    with pytest.raises(UserMistake, match="a key is wanted"):
        entrance_of(Place("0.0.0.0", 0), None)


def test_the_host_that_is_named_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    for host, name in (("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")):
        entrance = entrance_of(Place(host, 0), None)
        for host_asked in (name, f"{name}:8000", "localhost:8000"):
            entrance.check(Headers({"host": host_asked}))
        with pytest.raises(Refusal, match="is asked as localhost"):
            entrance.check(Headers({"host": "team.example:8000"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "::1", "0.0.0.0", "::"])
def test_loopback_is_known_by_its_number(host: str) -> None:
    try:
        place = Place(host, 0)
        assert place.is_loopback is (host not in ("0.0.0.0", "::"))
        with place.bound() as bound:
            assert place.url(bound).endswith(f":{bound.getsockname()[1]}/v1")
    except UserMistake as error:
        pytest.skip(str(error))


def test_runs_and_config_files_are_teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = {"questions": 8, "test_questions": 0, "eval_every": 0, "checkpoint_every": 1}
    comas.train(steps=2, threads=1, out="run", hooks=[], **short)
    Path("team.toml").write_text('[hosts.home]\nbase = "seed"\n[agents.ann]\n[agents.bob]\n')
    last, weights = named_team(["run"])
    assert (weights is not None and weights.name) == "step-2"
    first, weights = named_team(["run@1", "eval_temperature=0"])
    assert (weights is not None and weights.name) == "step-1"
    assert first.config.eval_temperature == 0
    assert list(first.config.agents) == list(last.config.agents)
    with running(asked(first, weights)) as served:
        said = served.client.chat.completions.create(
            model="game", messages=[{"role": "user", "content": "1 2 4 5 -> 7"}], seed=1
        )
        assert said.usage is not None
        assert said.usage.completion_tokens > 0
    described, weights = named_team(["team.toml"])
    assert (list(described.config.agents), weights) == (["ann", "bob"], None)


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
    """The seed model behind a free port, with the key, in a process of its own."""
    arguments = ["serve", "seed", "threads=1", "--port", "0", "--json", *options]
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
