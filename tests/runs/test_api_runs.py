"""Runs and evaluations with agents behind an API: mixed teams, budgets, what may change, what is
reported.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import comas
from comas.config.schema import settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.evaluation.systems import load
from comas.hooks import Hook
from comas.memory import memory_plan
from comas.sync import run_sync
from comas.team import spending
from comas.training.start import resume_async
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.endpoint import (
    KEY,
    Act,
    Handler,
    answers,
    breaks_off,
    in_haste,
    is_greeting,
    judges,
    no_secret,
    records,
)


def test_a_frozen_judge_behind_an_api_while_two_learn(mixed: Any, tmp_path: Path) -> None:
    server, keys = mixed(answers(b"", 429, Retry_After="0"))
    out = tmp_path / "run"
    comas.train(out=str(out), **keys)
    run_sync(resume_async(out, Hook(), changes=settings_of(["steps=3"])))
    metrics, episodes = records(out)
    assert len(metrics) == 3
    turns = [t for e in episodes for t in e["turns"]]
    judged = [t for t in turns if t["agent"] == "judge"]
    assert len(judged) == len(server.worked) > 0  # nothing was asked twice or of no use
    # one greeting per process, of which the first was refused
    assert len(server.asked) - len(server.worked) == 2
    assert all(
        t["policy"] == "judge/judge" and t["tokens"] == 3 and "advantage" not in t["info"]
        for t in judged
    )
    assert {p for m in metrics for p in m["policies"]} == {"home/ann", "home/bob"}
    assert max(p["grad_norm"] for m in metrics for p in m["policies"].values()) > 1e-3
    cost = [row for m in metrics for row in m["cost"] if row["agent"] == "judge"]
    spent = json.loads((out / "spent.json").read_text())["judge"]
    assert sum(r["tokens"] for r in cost) == spent["spent"]["tokens"] - 3 == 3 * len(judged)
    assert (
        sum(r["prompt_tokens"] for r in cost)
        == spent["spent"]["prompt_tokens"] - 7
        == 7 * len(judged)
    )
    assert spent["events"] == {"429": 1}
    kept = {p.name for p in (out / "checkpoints" / "step-3").iterdir()}
    assert kept == {
        *("ann", "bob", "home.json", "judge.json", "manifest.json", "monitors.json"),
    }
    assert tomllib.loads((out / "config.toml").read_text())["agents"]["judge"]["frozen"] is True
    no_secret(out)
    team = load(out)
    try:
        assert team.discuss("12 7 3 5 -> 22").error is None
        assert team.bases() == [f"big-model at {server.url}", "tiny"]
    finally:
        team.close()
    with pytest.raises(UserMistake, match="what was trained"):
        load(out, overrides=[f"hosts.home.api={server.url}"])


def test_a_judge_that_is_a_seed_model_elsewhere(
    mixed: Any, seed_model: Act, tmp_path: Path
) -> None:
    server, keys = mixed(seed_model, price=[1.0, 2.0])
    server.acts = [seed_model]
    out = tmp_path / "run"
    comas.train(out=str(out), **{**keys, "steps": 1})
    before = len(server.asked)
    run_sync(resume_async(out, Hook(), changes=settings_of(["steps=2"])))
    metrics, episodes = records(out)
    judged = [t for e in episodes for t in e["turns"] if t["agent"] == "judge"]
    assert len(metrics) == 2
    assert len(judged) == len(server.worked) == len(server.asked) - 2 > before - 1 > 0
    # it judges, and it can be read
    assert {t["info"]["score"] for t in judged if t["role"] == "scoring"} >= {1, 3}
    assert {p for m in metrics for p in m["policies"]} == {"home/ann", "home/bob"}
    account = json.loads((out / "spent.json").read_text())["judge"]
    cost = [row for m in metrics for row in m["cost"] if row["agent"] == "judge"]
    prompt, made = (sum(r[k] for r in cost) for k in ("prompt_tokens", "tokens"))
    # in both processes
    greeting = (account["spent"]["prompt_tokens"] - prompt, account["spent"]["tokens"] - made)
    assert greeting[0] > 0
    assert greeting[1] == 2
    assert account["money"] == pytest.approx((prompt + greeting[0] + 2 * (made + 2)) / 1e6)
    assert account["events"] == {}


def test_a_spent_budget_stops_the_run_and_a_larger_one_lets_it_go_on(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, keys = mixed(budget_tokens=30, concurrency=1)
    out = tmp_path / "run"
    with pytest.raises(
        UserMistake, match=r"30 tokens.*comas resume .*run hosts.judge.budget_tokens=NUMBER$"
    ):
        comas.train(out=str(out), **keys)
    assert len(server.asked) == 3
    assert json.loads((out / "spent.json").read_text())["judge"]["spent"]["requests"] == 3
    # it has been spent, though the step was not kept
    with pytest.raises(UserMistake, match="30 tokens"):
        run_sync(resume_async(out, Hook()))
    assert len(server.asked) == 3
    assert (
        run(
            ["resume", str(out), "hosts.judge.budget_tokens=100_000", "hosts.judge.timeout=60"],
            monkeypatch,
        )
        == 0
    )
    assert "host judge, behind an API: " in capsys.readouterr().out
    assert json.loads((out / "spent.json").read_text())["judge"]["spent"]["requests"] == len(
        server.asked
    )
    judge = tomllib.loads((out / "config.toml").read_text())["hosts"]["judge"]
    assert (judge["budget_tokens"], judge["timeout"]) == (100_000, 60)
    *earlier, last = json.loads((out / "processes.json").read_text())["processes"]
    assert last["changed"] == {
        "hosts.judge.budget_tokens": [30, 100_000],
        "hosts.judge.timeout": [120.0, 60],
    }
    assert not [p for p in earlier if "changed" in p]
    no_secret(out)


REFUSED = [
    ("seed=5", "seed cannot be changed here"),
    (
        "hosts.judge.base=other",
        "key_env, header_env, concurrency, timeout, retries, price, budget_tokens, budget_money",
    ),
    ("hosts.home.timeout=5", "no host 'home' behind an API here"),
    ("hosts.judg.timeout=5", "did you mean judge?"),
    ("hosts.judge.timeout=-5", "hosts.judge.timeout = -5"),
    ("hosts.judge.budget_money=1", "needs a price"),
    ("hosts.judge.key_env=sk-hush", "never the key itself"),
    ("hosts.judge.timeout", "is not of the form key=value"),
]


def test_what_may_not_be_changed_is_refused_in_one_line_and_nothing_is_touched(
    mixed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    server, keys = mixed(budget_tokens=1, concurrency=1)
    with pytest.raises(UserMistake, match="its budget is spent"):
        comas.train(out="run", **{**keys, "test_questions": 0})
    (tmp_path / "api.toml").write_text(
        f'[hosts.judge]\nbase = "m"\napi = "{server.url}"\nbudget_tokens = 1\nconcurrency = 1\n'
    )
    with pytest.raises(UserMistake, match="its budget is spent"):
        evaluated(EvaluationPlan(["api.toml", "tiny"], limit=3), tmp_path / "eval")
    asked = len(server.asked)
    folders = (("run", "config.toml"), ("eval", "evaluation.json"))
    for (pair, words), (folder, config) in itertools.product(REFUSED, folders):
        before = (tmp_path / folder / config).read_text()
        assert run(["resume", folder, pair], monkeypatch) == 2, pair
        err = capsys.readouterr().err
        assert words in err, pair
        assert (err.count("\n"), "hush" in err) == (1, False), pair
        assert (tmp_path / folder / config).read_text() == before, pair
    assert len(server.asked) == asked


def test_discussions_that_the_server_lets_down_are_failed_and_never_wrong(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def picky(handler: Handler, asked: dict[str, Any]) -> None:
        """Breaks down at one question for ever."""
        prompt = asked["messages"][0]["content"]
        if is_greeting(asked):
            judges(handler, asked)
            return
        with handler.server.gate:
            seen.append(prompt.split("->")[0])
        if prompt.split("->")[0] == seen[0]:
            handler.reply(f"bad luck, {KEY}".encode(), 500)
        else:
            judges(handler, asked)

    _, keys = mixed(*[picky] * 500, retries=1)
    in_haste(monkeypatch)
    comas.train(out=str(tmp_path / "run"), **{**keys, "steps": 1})
    (metrics,), episodes = records(tmp_path / "run")
    failed = [e for e in episodes if e["error"]]
    assert metrics["counts"]["failed"] == len(failed) >= 1
    assert all("host judge" in e["error"] and "answers 500" in e["error"] for e in failed)
    assert all(t["reward"] is None for e in failed for t in e["turns"])
    no_secret(tmp_path / "run")


def test_a_key_is_in_no_output_and_no_file_whatever_happens(
    mixed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(0)
    monkeypatch.chdir(tmp_path)
    server, keys = mixed()
    (tmp_path / "run.toml").write_text(tomli_w.dumps({**keys, "steps": 1}))
    (tmp_path / "far.toml").write_text(TEAM.format(url=server.url))
    refuses = answers({"error": {"message": f"Incorrect key {KEY}"}}, 401)
    commands = [
        (["train", "run.toml", "--dry-run"], judges, 0),
        (["train", "run.toml", "--dry-run", "--json"], judges, 0),
        (["train", "run.toml", "out=refused"], refuses, 2),
        (["train", "run.toml", "out=done"], judges, 0),
        (["report", "done", "--json"], judges, 0),
        (["play", "done", "--json"], judges, 0),
        (["eval", "far.toml", "--limit", "2", "--out", "e"], answers(f"no {KEY}".encode(), 400), 2),
    ]
    for words, act, code in commands:
        server.acts = [act]
        assert run(words, monkeypatch) == code
        out, err = capfd.readouterr()
        assert KEY not in out + err + caplog.text
        assert err.count("\n") == (code == 2)
        assert words[0] == "eval" or code == 0 or "JUDGE_KEY" in err
    assert {x["key"] for x in server.asked} == {f"Bearer {KEY}"}
    no_secret(tmp_path)


def test_a_run_does_not_begin_without_its_key(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, keys = mixed()
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserMistake, match="JUDGE_KEY is not set"):
        comas.train(out=str(tmp_path / "run"), **keys)
    assert not (tmp_path / "run").exists()
    plan = EvaluationPlan(
        ["m"],
        limit=3,
        settings=settings_of(
            ["hosts.home.api=http://localhost:1/v1", "hosts.home.key_env=JUDGE_KEY"]
        ),
    )
    with pytest.raises(UserMistake, match="JUDGE_KEY is not set"):
        asyncio.run(EvaluationRun.create(plan, str(tmp_path / "eval")).go(Hook()))
    assert not (tmp_path / "eval").exists()


def test_estimates_leave_others_models_out(mixed: Any) -> None:
    _, keys = mixed()
    alone = {**keys, "agents": {k: v for k, v in keys["agents"].items() if k != "judge"}}
    found, without = (runs.planned(k) for k in (keys, alone))
    assert memory_plan(found).checkpoint == memory_plan(without).checkpoint
    assert [host.name for host in memory_plan(found).hosts] == ["home"]
    with pytest.raises(UserMistake, match="no agent can learn"):
        comas.train(**{**keys, "agents": {"judge": {"host": "judge"}}})


def evaluated(plan: EvaluationPlan, folder: Path) -> dict[str, Any]:
    return run_sync(EvaluationRun.create(plan, str(folder)).go(Hook()))


def games(folder: Path) -> list[dict[str, Any]]:
    lines = [
        json.loads(x)
        for p in (folder / "answers").glob("*.jsonl")
        for x in p.read_text().splitlines()
    ]
    return [x for x in lines if "verdict" in x]


def test_a_team_behind_an_api_is_evaluated_with_the_models_of_a_local_host(
    serve: Any, seed_model: Act, tmp_path: Path
) -> None:
    server = serve(answers(b"", 503), seed_model)
    plan = EvaluationPlan(
        ["some/model"],
        limit=6,
        setups=["single", "vote:votes=2"],
        settings=settings_of([f"hosts.home.api={server.url}", "agents=1"]),
    )
    found = evaluated(plan, tmp_path / "eval")
    assert [c["setup"] for c in found["cells"]] == ["single", "vote:votes=2"]
    # the greeting was asked again
    assert (len(server.asked), len(server.worked)) == (6 + 12 + 2, 6 + 12)
    assert {g["verdict"] for g in games(tmp_path / "eval")} <= {"right", "wrong"}
    assert all(t["tokens"] > 1 for g in games(tmp_path / "eval") for t in g["turns"])
    lines = [
        json.loads(x)
        for p in (tmp_path / "eval" / "answers").glob("*.jsonl")
        for x in p.read_text().splitlines()
    ]
    assert {base for x in lines if "sitting" in x for base in x["sitting"]["bases"]} == {
        f"some/model at {server.url}"
    }
    (row,) = found["api"]
    assert (row["system"], row["host"], row["spent"]["requests"], row["events"]) == (
        "some/model",
        "home",
        19,
        {"503": 1},
    )


TEAM = """
[hosts.far]
base = "seed-there"
api = "{url}"
key_env = "JUDGE_KEY"
price = [1.0, 1.0]
"""


def test_a_run_and_a_model_behind_an_api_in_one_evaluation(
    mixed: Any,
    seed_model: Act,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    server, keys = mixed()
    alone = {k: v for k, v in keys.items() if k not in ("hosts", "agents")}
    comas.train(out="r", **{**alone, "steps": 1, "agents": 2})
    server.acts = [answers(b"", 429, Retry_After="0"), seed_model]
    (tmp_path / "far.toml").write_text(TEAM.format(url=server.url))
    command = [
        "eval",
        "r",
        "far.toml",
        "tiny",
        "--setups",
        "single,vote:votes=2",
        "--limit",
        "12",
        "--out",
        "e",
    ]
    # a file may not send secrets by itself
    assert run([*command, "eval_temperature=0"], monkeypatch) == 2
    assert "say so on the command line: hosts.far.key_env=JUDGE_KEY" in capsys.readouterr().err
    assert run([*command, "eval_temperature=0", "hosts.far.key_env=JUDGE_KEY"], monkeypatch) == 0
    out = capsys.readouterr().out
    # copies of one model answer once
    assert re.search(r"far.toml +pick +single: 1 agent +12", out)
    assert re.search(
        r"far.toml: host far, behind an API: 36 answers, .* cost 0\.\d+; went wrong: 429 1 x", out
    )
    assert len(server.asked) == 12 + 2 * 12 + 1
    report = json.loads((tmp_path / "e" / "report.json").read_text())
    cells = {(c["system"], c["setup"]): c for c in report["cells"]}
    assert len(cells) == 6
    for setup in ("single", "vote:votes=2"):  # the same model here and there
        here = cells["tiny", setup]
        there = cells["far.toml", setup]
        assert [here[k] for k in ("n", "right", "wrong", "tokens")] == [
            there[k] for k in ("n", "right", "wrong", "tokens")
        ]
    assert {(d["first"]["system"], d["second"]["system"]) for d in report["systems"]} == {
        ("r", "far.toml"),
        ("r", "tiny"),
    }
    assert [(o["run"], o["exact"] is None) for o in report["overlap"]] == [("r", False)]
    (tmp_path / "far.toml").unlink()  # what was meant is written down
    assert run(["resume", "e"], monkeypatch) == 0
    assert len(server.asked) == 12 + 2 * 12 + 1
    assert run(["report", "e"], monkeypatch) == 0
    assert capsys.readouterr().out.count("went wrong: 429 1 x") == 2
    assert run(["eval", "r", "none.toml"], monkeypatch) == 2
    assert "none.toml: there is no such file here" in capsys.readouterr().err
    no_secret(tmp_path)


def test_a_budget_of_an_evaluation_counts_all_sittings_and_systems(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # 10 tokens per answer, also to each of the first two requests
    server = serve(answers())
    folder = tmp_path / "e"
    pairs = [
        f"hosts.home.api={server.url}",
        "hosts.home.budget_tokens=50",
        "hosts.home.concurrency=1",
        "agents=1",
    ]
    remedy = "raise it and go on: .*comas resume .*e hosts.home.budget_tokens=NUMBER$"
    with pytest.raises(UserMistake, match=f"50 tokens.* is 50; {remedy}") as caught:
        evaluated(EvaluationPlan(["m1", "m2"], limit=4, settings=settings_of(pairs)), folder)
    assert "config.toml" not in str(caught.value)
    assert len(server.asked) == 5
    assert run(["resume", str(folder)], monkeypatch) == 2  # a new process does not begin at 0
    assert len(server.asked) == 5
    assert run(["report", str(folder)], monkeypatch) == 0
    assert "has not ended yet" in capsys.readouterr().out
    assert run(["resume", str(folder), "hosts.home.budget_tokens=70"], monkeypatch) == 2
    assert len(server.asked) == 7
    assert (
        run(
            ["resume", str(folder), "hosts.home.budget_tokens=1000", "hosts.home.retries=1"],
            monkeypatch,
        )
        == 0
    )
    assert len(server.worked) == len(games(folder)) == 8  # nothing twice
    changes = json.loads((folder / "evaluation.json").read_text())["changes"]
    budgets = [change["settings"]["hosts.home.budget_tokens"] for change in changes]
    assert budgets == [70, 1000]
    report = json.loads((folder / "report.json").read_text())
    # with 3 greetings
    assert [(r["system"], r["spent"]["requests"]) for r in report["api"]] == [("m1", 7), ("m2", 7)]


def test_what_went_wrong_is_in_the_report_of_a_run(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_haste(monkeypatch)
    faults = [
        answers(b"", 429),
        answers(b"", 500),
        breaks_off,
        answers(b"{"),
        answers({"choices": []}),
        answers(b"", 429),
    ]
    _, keys = mixed(*faults)
    comas.train(out=str(tmp_path / "r"), **{**keys, "steps": 1})
    assert run(["report", str(tmp_path / "r")], monkeypatch) == 0
    out = capsys.readouterr().out
    assert "went wrong: 429 2 x, 500 1 x, broken off 1 x, invalid body 2 x" in out
    assert run(["report", str(tmp_path / "r"), "--json"], monkeypatch) == 0
    events = {"429": 2, "500": 1, "broken off": 1, "invalid body": 2}
    assert json.loads(capsys.readouterr().out)["api"]["judge"]["events"] == events


def test_what_a_killed_process_has_spent_is_counted_but_for_seconds(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "EVERY", 0.05)
    seen: list[int] = []

    def slow(handler: Handler, asked: dict[str, Any]) -> None:
        time.sleep(0.1)
        if (path := tmp_path / "r" / "spent.json").exists():
            seen.append(json.loads(path.read_text())["judge"]["spent"].get("requests", 0))
        judges(handler, asked)

    server, keys = mixed(slow, concurrency=2)
    server.acts = [slow]
    comas.train(out=str(tmp_path / "r"), **{**keys, "steps": 1})
    assert max(seen) >= len(server.asked) / 2 > 0
