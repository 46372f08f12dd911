"""Hosts behind an API are asked for one token before any work: mistakes are told before models are
loaded or files written.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.config.schema import HostConfig, settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.hosts import api, local
from comas.hosts.api import GREETING, ApiHost
from comas.sync import run_sync
from comas.training.start import resume_async
from comas.types import Sampling, UserMistake
from tests.support.command import run
from tests.support.endpoint import (
    KEY,
    Act,
    Handler,
    answers,
    ask,
    is_greeting,
    judges,
    no_secret,
    said,
)


@pytest.fixture(name="nothing_loads")
def loading_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(local, "build", load)


def greeted(host: ApiHost, sampling: Sampling | None = None) -> list[str]:
    """What is noted while a host is greeted."""
    notes: list[str] = []
    asyncio.run(host.greet([("j", sampling or Sampling(0.7))], notes.append))
    return notes


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_greeting_is_a_request_like_those_to_come_of_one_token(serve: Any, host_at: Any) -> None:
    server = serve(answers())
    host = host_at(server.url)
    assert greeted(host, Sampling(0.7, 0.9)) == []
    assert server.asked == [
        {
            "path": "/v1/chat/completions",
            "key": f"Bearer {KEY}",
            "model": "big-model",
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 1,
            "seed": 0,
            "messages": list(GREETING),
        }
    ]
    assert host.spent == {"requests": 1, "prompt_tokens": 7, "tokens": 3}
    assert asyncio.run(ask(host)).text == "4"


def test_each_model_is_greeted_once_in_each_way(serve: Any) -> None:
    server = serve(answers())
    hosts = [
        ApiHost(name, {"a": "m1", "b": "m2", "c": "m1"}, HostConfig(api=server.url))
        for name in ("x", "y")
    ]
    known: set[Any] = set()
    asked = [("a", Sampling()), ("b", Sampling()), ("c", Sampling()), ("c", Sampling(0.2))]
    for host in hosts:
        asyncio.run(host.greet(asked, print, known))
        host.close()
    ways = [(asked["model"], asked["temperature"]) for asked in server.asked]
    assert ways == [("m1", 1.0), ("m2", 1.0), ("m1", 0.2)]


TOO_SMALL = {
    "error": {
        "message": (
            "Could not finish the message because max_tokens or model output limit was reached."
        )
    }
}
OTHER_NAME = {
    "error": {
        "message": (
            "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    }
}


@pytest.mark.parametrize(
    ("act", "events"),
    [
        (answers(b"", 429), {"429": 1}),
        (answers(b"", 429, Retry_After="9999"), {"429": 1}),
        (answers(TOO_SMALL, 400), {"400": 1}),
        (answers(said("", finish_reason="length")), {}),
        # all of the room went into thoughts
        (answers({"choices": [], "usage": {"prompt_tokens": 7}}), {"invalid body": 1}),
        (answers({"choices": None}), {"invalid body": 1}),
        (answers({"choices": [{"index": 0, "finish_reason": "length"}]}), {}),
        (answers({"choices": [{"index": 0, "finish_reason": "MAX_TOKENS"}]}), {}),
        (answers(said(message={"content": None, "reasoning": "h"})), {}),
    ],
)
def test_a_server_that_refuses_one_token_lives(
    act: Act, events: Any, serve: Any, host_at: Any
) -> None:
    server = serve(act)
    host = host_at(server.url)
    assert greeted(host) == []
    assert (host.events, len(server.asked)) == (events, 1)


def test_the_name_of_the_room_is_learnt_by_the_greeting(serve: Any, host_at: Any) -> None:
    server = serve(answers(OTHER_NAME, 400), answers())
    host = host_at(server.url)
    greeted(host)
    asyncio.run(ask(host))
    assert [asked.get("max_completion_tokens") for asked in server.asked] == [None, 1, 256]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (answers({"error": {"message": f"no {KEY}"}}, 401), "answers 401.*JUDGE_KEY"),
        (answers(b"", 404), "404.*big-model"),
        (answers(b"", 405), "answers 405.*check hosts.judge"),
        (answers({"error": {"message": "Model Not Exist"}}, 400), "Model Not Exist"),
        (answers(b"", 308, Location="http://x"), "answers 308"),
        (answers(b"", 402), "used up"),
    ],
)
def test_what_the_user_can_mend_is_told_at_once(
    act: Act, words: str, serve: Any, host_at: Any
) -> None:
    server = serve(act)
    with pytest.raises(UserMistake, match=words) as caught:
        greeted(host_at(server.url))
    assert (len(server.asked), KEY in str(caught.value), "\n" in str(caught.value)) == (
        1,
        False,
        False,
    )


@pytest.mark.parametrize(
    "act",
    [
        answers(b"<html>a page</html>"),
        answers({"models": []}),
        answers(b""),
    ],
)
def test_what_is_no_endpoint_of_this_kind_is_told_after_two_tries(
    act: Act, serve: Any, host_at: Any
) -> None:
    server = serve(act)
    with pytest.raises(UserMistake, match=r"check hosts.judge.api"):
        greeted(host_at(server.url))
    assert len(server.asked) == 2


def test_a_server_that_starts_up_is_waited_for_and_the_user_is_told(
    serve: Any, host_at: Any
) -> None:
    server = serve(*[answers(b"loading", 503)] * 3, answers())
    (note,) = greeted(host_at(server.url))
    assert "answers 503: loading; asking again for 60 seconds" in note
    assert len(server.asked) == 4


def test_patience_has_an_end_and_none_is_wanted_without_retries(
    serve: Any, host_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PATIENCE", 0.3)
    for url, retries in (
        (serve(answers(b"", 503)).url, 5),
        (f"http://127.0.0.1:{closed_port()}/v1", 5),
    ):
        began = time.monotonic()
        with pytest.raises(UserMistake, match=r"check hosts.judge.api"):
            greeted(host_at(url, retries=retries))
        assert time.monotonic() - began < 3
    server = serve(answers(b"", 503))
    with pytest.raises(UserMistake):
        greeted(host_at(server.url, retries=0))
    assert len(server.asked) == 1
    # it says itself how long it takes
    server = serve(answers(b"", 503, Retry_After="1"), answers())
    greeted(host_at(server.url))
    assert len(server.asked) == 2
    with pytest.raises(UserMistake):
        greeted(host_at(serve(answers(b"", 503, Retry_After="86400")).url))


@pytest.mark.parametrize("host", ["no-such-machine.invalid", "no-such-machine.invalid:8000"])
def test_a_machine_that_there_is_not_is_not_waited_for(
    host: str, host_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    began = time.monotonic()
    with pytest.raises(UserMistake, match=r"not known; check hosts.judge.api"):
        greeted(host_at(f"http://{host}/v1"))
    assert time.monotonic() - began < 3


def test_a_budget_that_cannot_be_held_is_known_before_any_work(serve: Any, host_at: Any) -> None:
    server = serve(answers({"choices": said()["choices"]}))
    with pytest.raises(UserMistake, match="budget_tokens"):
        greeted(host_at(server.url, budget_tokens=1000))
    greeted(host_at(server.url))


REFUSALS: list[tuple[Act, str]] = [
    (answers({"error": {"message": "no"}}, 401), "JUDGE_KEY"),
    (answers(b"", 404), "big-model"),
    (answers({"error": {"message": "Model Not Exist"}}, 400), "Model Not Exist"),
    (answers(b"<html>"), "check hosts.judge.api"),
]


@pytest.mark.parametrize(("act", "words"), REFUSALS)
def test_training_and_play_load_and_write_nothing_at_a_wrong_endpoint(
    act: Act,
    words: str,
    mixed: Any,
    nothing_loads: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    server, keys = mixed()
    server.acts = [act]
    with pytest.raises(UserMistake, match=words):
        comas.train(out="run", **keys)
    team = (
        f'[hosts.judge]\nbase = "big-model"\napi = "{server.url}"\nkey_env ='
        ' "JUDGE_KEY"\n[hosts.home]\nbase = "tiny"\n'
    )
    (tmp_path / "team.toml").write_text(team)
    assert run(["play", "team.toml"], monkeypatch) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["team.toml"]
    assert all(is_greeting(asked) for asked in server.asked)
    assert not [t for t in threading.enumerate() if t.name == "host-judge"]


@pytest.mark.parametrize(("act", "words"), REFUSALS)
def test_an_evaluation_asks_all_of_its_endpoints_before_it_loads_the_first_model(
    act: Act,
    words: str,
    serve: Any,
    nothing_loads: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    good = serve(answers())
    bad = serve(act)
    for name, server in (("good", good), ("bad", bad)):
        table = f'[hosts.judge]\nbase = "big-model"\napi = "{server.url}"\nkey_env = "JUDGE_KEY"\n'
        (tmp_path / f"{name}.toml").write_text(table)
    systems = ["tiny", str(tmp_path / "good.toml"), str(tmp_path / "bad.toml")]
    with pytest.raises(UserMistake, match=words):
        run_sync(
            EvaluationRun.create(
                EvaluationPlan(
                    systems,
                    limit=2,
                    settings=settings_of(
                        ["hosts.judge.key_env=JUDGE_KEY", "eval_temperature=0.25"]
                    ),
                ),
                str(tmp_path / "e"),
            ).go(Hook())
        )
    assert not (tmp_path / "e").exists()
    assert (len(good.asked), len(good.worked), bad.worked) == (1, 0, [])
    assert good.asked[0]["temperature"] == 0.25  # as it is going to be asked


@pytest.mark.parametrize("pair", ["api=http://[::1/v1", "key_env=NO_SUCH_VARIABLE"])
def test_what_needs_no_request_is_told_before_any_host_is_asked(
    pair: str, mixed: Any, nothing_loads: None, tmp_path: Path
) -> None:
    server, keys = mixed()
    key, _, value = pair.partition("=")
    keys["hosts"]["other"] = {**keys["hosts"]["judge"], key: value}
    keys["agents"] = {**keys["agents"], "other": {"host": "other", "roles": ["scoring"]}}
    with pytest.raises(UserMistake, match=r"hosts.other"):
        comas.train(out=str(tmp_path / "run"), **keys)
    assert (server.asked, (tmp_path / "run").exists()) == ([], False)


def test_nobody_is_asked_by_whom_nothing_will_be_asked(mixed: Any, tmp_path: Path) -> None:
    server, keys = mixed()
    comas.train(out=str(tmp_path / "none"), **{**keys, "steps": 0})
    assert server.asked == []
    comas.train(out=str(tmp_path / "run"), **{**keys, "steps": 1})
    assert len(server.asked) == len(server.worked) + 1
    asked = len(server.asked)
    run_sync(resume_async(tmp_path / "run", Hook()))  # it has ended
    assert len(server.asked) == asked


def test_a_run_that_goes_on_asks_again_and_its_account_goes_on(mixed: Any, tmp_path: Path) -> None:
    server, keys = mixed()
    out = tmp_path / "run"
    comas.train(out=str(out), **{**keys, "steps": 1})
    server.acts = [answers({"error": {"message": "no"}}, 401)]
    with pytest.raises(UserMistake, match="JUDGE_KEY"):
        run_sync(resume_async(out, Hook(), changes=settings_of(["steps=2"])))
    server.acts = [judges]
    run_sync(resume_async(out, Hook(), changes=settings_of(["steps=2"])))
    spent = json.loads((out / "spent.json").read_text())["judge"]
    refused = 1
    assert len(server.asked) - len(server.worked) == 2 + refused
    assert spent["spent"]["requests"] == len(server.asked) - refused
    assert spent["spent"]["tokens"] == 3 * spent["spent"]["requests"]
    # older runs have none: what was saved with the checkpoint is known
    (out / "spent.json").unlink()
    run_sync(resume_async(out, Hook(), changes=settings_of(["steps=3"])))
    assert (
        json.loads((out / "spent.json").read_text())["judge"]["spent"]["requests"]
        == len(server.asked) - refused
    )
    no_secret(out)


def test_a_greeting_that_spends_the_budget_leaves_an_evaluation_to_go_on_with(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answers())
    folder = tmp_path / "e"
    pairs = [f"hosts.home.api={server.url}", "hosts.home.budget_tokens=10", "agents=1"]
    with pytest.raises(UserMistake, match=r"comas resume .*e hosts.home.budget_tokens=NUMBER"):
        run_sync(
            EvaluationRun.create(
                EvaluationPlan(["m1", "m2"], limit=2, settings=settings_of(pairs)), str(folder)
            ).go(Hook())
        )
    assert len(server.asked) == 1
    assert json.loads((folder / "spent.json").read_text())["m1"]["home"]["spent"]["requests"] == 1
    assert run(["resume", str(folder), "hosts.home.budget_tokens=none"], monkeypatch) == 0
    assert len(server.worked) == 4


def test_credit_that_runs_out_ends_an_evaluation_in_order(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(*[answers()] * 3, answers({"error": {"message": "no credit"}}, 402))
    pairs = [f"hosts.home.api={server.url}", "hosts.home.concurrency=1", "agents=1"]
    with pytest.raises(
        UserMistake,
        match=r"no credit; .* resume .*e$",
    ):
        run_sync(
            EvaluationRun.create(
                EvaluationPlan(["m"], limit=9, settings=settings_of(pairs)), str(tmp_path / "e")
            ).go(Hook())
        )
    assert len(server.asked) == 4  # and not once for each game that is left
    server.acts = [answers()]
    assert run(["resume", str(tmp_path / "e")], monkeypatch) == 0
    assert len(server.worked) == 9 + 1


def test_ctrl_c_ends_the_wait_for_a_server(serve: Any, host_at: Any) -> None:
    host = host_at(serve(answers(b"", 503, Retry_After="60")).url)
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        signal.raise_signal(signal.SIGINT)

    began = time.monotonic()
    greet: Callable[..., Any] = host.greet
    with pytest.raises(KeyboardInterrupt):
        run_sync(greet([("j", Sampling())], note))
    assert (len(told), time.monotonic() - began < 10) == (1, True)


def test_play_asks_first_and_says_what_it_waits_for(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(answers(b"", 503, Retry_After="0"), answers())
    (tmp_path / "team.toml").write_text(f'[hosts.far]\nbase = "m"\napi = "{server.url}"\n')
    assert run(["play", str(tmp_path / "team.toml"), "--json"], monkeypatch) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["turns"]
    assert err.startswith("note: host far: ")
    assert [is_greeting(asked) for asked in server.asked][:3] == [True, True, False]


def test_requests_that_are_open_when_a_budget_ends_are_counted(serve: Any, tmp_path: Path) -> None:
    def slow(handler: Handler, asked: dict[str, Any]) -> None:
        time.sleep(0 if is_greeting(asked) else 0.2)
        handler.reply(said())

    server = serve(slow)
    pairs = [
        f"hosts.home.api={server.url}",
        "hosts.home.budget_tokens=35",
        "hosts.home.concurrency=4",
        "agents=1",
    ]
    with pytest.raises(UserMistake, match="its budget is spent"):
        run_sync(
            EvaluationRun.create(
                EvaluationPlan(["m"], limit=20, settings=settings_of(pairs)), str(tmp_path / "e")
            ).go(Hook())
        )
    spent = json.loads((tmp_path / "e" / "spent.json").read_text())["m"]["home"]
    assert (
        spent["spent"]["requests"] + spent.get("unsettled", {}).get("requests", 0)
        == len(server.asked)
        <= 1 + 4 + 4
    )
