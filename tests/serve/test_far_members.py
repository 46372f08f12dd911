"""Teams with members behind an API, served: what clients get from them, and what they are told where
the endpoint behind fails.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from comas.cli.serve import named_team
from comas.evaluation.systems import greeted
from comas.serve.endpoint import Endpoint as Answering
from comas.sync import run_sync
from tests.support.command import run as command
from tests.support.endpoint import KEY, Act, Endpoint, answers, judges, said
from tests.support.serving import Running, running

PUZZLE = [{"role": "user", "content": "10 5 6 9 -> 24"}]
TEAM = """
[hosts.home]
base = "tiny"

[hosts.judge]
base = "big-model"
api = "{url}"
retries = 0

[agents.ann]
roles = ["solution"]

[agents.judge]
host = "judge"
roles = ["evaluation", "scoring"]
"""
FAR = 'agents = 2\n\n[hosts.far]\nbase = "big-model"\napi = "{url}"\n'


def serve_file(
    text: str, server: Endpoint, folder: Path, *pairs: str
) -> AbstractContextManager[Running]:
    """The endpoint of a team that a file describes."""
    (folder / "team.toml").write_text(text.format(url=server.url))
    plan = named_team([str(folder / "team.toml"), "threads=1", *pairs])
    return running(run_sync(greeted(plan, print)))


def test_a_member_elsewhere_is_asked_as_clients_ask_and_counted(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    server = serve(judges)
    with serve_file(TEAM, server, tmp_path, "hosts.judge.key_env=JUDGE_KEY") as served:
        asked = {"model": "game", "messages": PUZZLE, "seed": 3}
        reply = served.post({**asked, "discussion": True, "temperature": 0.5})
        again = served.post({**asked, "discussion": True, "temperature": 0.5})
    told = reply.json()
    turns = told["choices"][0]["discussion"]
    assert [(turn["agent"], turn["role"]) for turn in turns] == [
        ("ann", "solution"),
        ("judge", "evaluation"),
        ("judge", "scoring"),
    ]
    assert told["choices"][0]["message"]["content"] == turns[0]["text"]
    assert told["usage"]["completion_tokens"] == turns[0]["tokens"] + 3 + 3
    sent = server.worked
    assert [asked["messages"][0]["content"] for asked in sent[:2]] == [
        turn["prompt"] for turn in turns[1:]
    ]
    assert {(asked["temperature"], asked["key"]) for asked in sent} == {(0.5, f"Bearer {KEY}")}
    assert [asked["seed"] for asked in sent[:2]] == [asked["seed"] for asked in sent[2:]]
    assert again.json()["choices"] == told["choices"]
    assert KEY not in reply.text


def test_a_team_that_is_all_elsewhere_plays_every_setup(serve: Any, tmp_path: Path) -> None:
    server = serve(answers(said("10 + 5 = 15 + 9 = 24")))
    with serve_file(FAR, server, tmp_path) as served:
        models = served.endpoint.models
        assert {"single", "vote", "debate", "game"} < set(models)
        for model in models:
            asked = {"model": model, "messages": PUZZLE, "seed": 3, "n": 2}
            choices = served.post(asked).json()["choices"]
            assert [choice["message"]["content"] for choice in choices] == [
                "10 + 5 = 15 + 9 = 24"
            ] * 2


@pytest.mark.parametrize(
    ("act", "status", "code", "line"),
    [
        (answers({"error": "x"}, 500), 502, "host_failure", "answers 500"),
        (answers({"error": "x"}, 429, Retry_After="600"), 502, "host_failure", "600 seconds"),
        (answers(b"<html>"), 502, "host_failure", "host judge"),
        (answers({"error": "x"}, 401), 400, None, "answers 401"),
        (answers({"error": "unknown parameter: model"}, 400), 400, None, "answers 400"),
        (
            answers({"error": "maximum context length is 8 tokens"}, 400),
            400,
            "context_length_exceeded",
            "model's context",
        ),
    ],
)
def test_what_fails_elsewhere_is_one_line(
    act: Act, status: int, code: str | None, line: str, serve: Any, tmp_path: Path
) -> None:
    server = serve(answers(), act)
    with serve_file(TEAM, server, tmp_path) as served:
        reply = served.post({"model": "game", "messages": PUZZLE, "seed": 3})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, code)
        assert line in error["message"]
        assert "\n" not in error["message"]
        assert reply.headers["x-should-retry"] == "false"
        if status == 400 or "600" in line:  # which no repetition mends, or none at once
            assert len(server.worked) == 1
        server.acts = [judges]
        assert served.post({"model": "game", "messages": PUZZLE}).status_code == 200


def test_an_endpoint_that_refuses_is_told_before_anybody_is_answered(
    serve: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve(answers({"error": "x"}, 401))
    (tmp_path / "team.toml").write_text(TEAM.format(url=server.url))
    assert command(["serve", str(tmp_path), "threads=1", "--port", "0"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.strip().splitlines()) == 1
    assert "answers 401" in err
    assert "check hosts.judge.key_env (no key was sent)" in err


def test_the_end_of_a_server_tells_what_it_has_cost(
    serve: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def ends(*_: Any) -> None:
        """Answer nobody."""

    monkeypatch.setattr(Answering, "answer_until_cancelled", ends)
    (tmp_path / "team.toml").write_text(FAR.format(url=serve(answers()).url))
    assert (
        command(["serve", str(tmp_path), "eval_temperature=0.3", "--port", "0"], monkeypatch) == 0
    )
    assert "behind an API: 1 answers, 7 prompt tokens" in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["eval_temperature=0.3", "agents.judge.temperature=0.3"])
def test_a_temperature_that_a_model_has_not_is_told_before_anybody_is_answered(
    pair: str,
    serve: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def only_1(handler: Any, asked: dict[str, Any]) -> None:
        if "temperature" in asked:
            handler.reply({"error": {"message": "temperature is not supported"}}, 400)
        else:
            answers()(handler, asked)

    verb, team = ("serve", FAR) if pair.startswith("eval") else ("play", TEAM)
    (tmp_path / "team.toml").write_text(team.format(url=serve(only_1).url))
    arguments = [verb, str(tmp_path), pair, *(["--port", "0"] if verb == "serve" else [])]
    assert command(arguments, monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "eval_temperature=1" in err
