"""Whole runs on untaught models: the folder, resuming, evaluation, and one training that must
learn.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import tomli_w

import comas
from comas.cli.train import _next as next_commands
from comas.config.plan import plan
from comas.config.schema import read
from comas.hooks import Hook
from comas.stats import accuracy_interval, mean_interval, wilson
from comas.storage.records import without_none
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.remembering import in_passes
from comas.training.result import result_of
from comas.training.start import resume_async
from comas.types import Question, UserMistake
from tests.support.command import run
from tests.support.runs import SMALL, Killed, essence, run_of


@pytest.fixture(scope="module")
def whole(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "whole", untaught)


def test_folder_holds_what_the_contract_names(whole: Run) -> None:
    assert json.loads((whole.path / "commit.json").read_text())["step"] == 4
    assert [m["step"] for m in whole.metrics()] == [0, 1, 2, 3]
    assert {"rewards", "tokens", "seconds", "policies", "counts"} <= next(whole.metrics()).keys()
    for policy in ("a0", "a1", "a2", "a3"):
        assert {
            "adapter_config.json",
            "adapter_model.safetensors",
            "optimizer.safetensors",
            "tokenizer.json",
        } <= {f.name for f in (whole.path / "checkpoints" / "step-4" / policy).iterdir()}
    assert len(whole.read_eval("after")["answers"]) == 16  # type: ignore[index]
    for episode in whole.episodes(0):
        for turn in episode["turns"]:
            assert ("advantage" in turn["info"]) == (turn["reward"] is not None)


def test_saved_config_is_the_resolved_one(whole: Run) -> None:
    config = read(whole.path / "config.toml")
    drop = lambda c: without_none(c.model_dump(mode="json"))  # noqa: E731 - TOML has no null
    assert drop(plan(config).config) == drop(config)
    assert config.options["rounds"] == 1


def test_resuming_what_is_done_says_so_and_touches_nothing(
    whole: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it would count as the run that was worked on last."""
    times = {p: p.stat().st_mtime_ns for p in whole.path.rglob("*") if p.name != ".lock"}
    assert run(["resume", str(whole.path)], monkeypatch) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: nothing is left to do: all steps are done (4); go on: " in said
    assert f"resume {whole.path} steps=8" in said
    assert times == {p: p.stat().st_mtime_ns for p in times}


@pytest.mark.parametrize("words", ["report runs/r", "report runs/r --discussions", "list runs"])
def test_a_report_runs_nothing_that_a_folder_names(
    words: str,
    whole: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SECURITY.md: who looks at a run of somebody else runs none of its code."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole.path, tmp_path / "runs" / "r")
    (tmp_path / "evil.py").write_text('open("ran", "w").close()\n')
    config = whole.config()
    evil = str(tmp_path / "evil.py")
    config |= {"method": evil, "task": evil, "tools": [evil], "monitors": [evil], "track": [evil]}
    config["hosts"]["home"] |= {"kind": evil, "engine": evil}
    (tmp_path / "runs" / "r" / "config.toml").write_text(tomli_w.dumps(config))
    assert run(words.split(), monkeypatch) == 0
    assert not (tmp_path / "ran").exists()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    whole: Run, untaught: Path, tmp_path: Path
) -> None:
    assert essence(run_of(tmp_path / "again", untaught)) == essence(whole)
    other = run_of(tmp_path / "other", untaught, seed=1, steps=1)
    assert essence(other)[0] != essence(whole)[0][:1]


def test_resumed_is_the_uninterrupted_run(whole: Run, untaught: Path, tmp_path: Path) -> None:
    class Killing(Hook):
        def step(self, metrics, episodes) -> None:  # type: ignore[no-untyped-def]
            if metrics["step"] == 2:  # written, not yet committed
                raise Killed

    folder = tmp_path / "cut"
    with pytest.raises(Killed):
        comas.train(
            out=str(folder), hosts__home__base=str(untaught), hooks=[Killing()], steps=4, **SMALL
        )
    assert Run(folder).marker()["step"] == 2
    assert len(list(Run(folder).metrics())) == 3
    result = run_sync(resume_async(folder, Hook()))
    assert result.steps == 4
    assert essence(Run(folder)) == essence(whole)


def test_a_run_that_was_stopped_goes_on_to_the_end_that_it_had(
    untaught: Path, tmp_path: Path
) -> None:
    stopped = result_of(run_of(tmp_path / "r", untaught, tokens=10**6, steps=1))
    stopped.config["steps"] = 9
    assert f"resume {stopped.run}" in list(next_commands(stopped))
    stopped.config["tokens"] = 1
    assert f"resume {stopped.run} tokens=2" in list(next_commands(stopped))


def test_a_budget_of_tokens_may_be_taken_away(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_folder = run_of(tmp_path / "r", untaught, tokens=500, steps=50)
    done = len(list(run_folder.metrics()))
    assert run(["resume", str(run_folder.path), "tokens=none", f"steps={done}"], monkeypatch) == 0
    assert "tokens" not in run_folder.config()
    assert run(["resume", str(run_folder.path), f"steps={done + 1}"], monkeypatch) == 0
    assert run(["resume", str(run_folder.path)], monkeypatch) == 0
    assert "all steps are done" in " ".join(capsys.readouterr().out.split())
    assert run(["report", str(run_folder.path)], monkeypatch) == 0
    assert "none" not in capsys.readouterr().out.rpartition("next:")[2]


def test_a_rate_that_has_fallen_to_its_end_is_not_gone_on_with(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    falling = run_of(tmp_path / "r", untaught, steps=2, schedule="linear")
    assert run(["resume", str(falling.path)], monkeypatch) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing is left to do: all steps are done (2)" in said
    assert "steps=4" not in said


FRAGILE = """
from dataclasses import replace
from comas.tasks import pick
asked = []
def verify(question, text):
    asked.append(text)
    if len(asked) % 3 == 0:
        raise KeyError("x")
    return "wrong"
task = replace(pick.task, name="fragile", verify=verify)
"""


def test_a_verifier_that_fails_ends_no_run(untaught: Path, tmp_path: Path) -> None:
    """Its answers count as not measured, as in an evaluation, and steps that were learnt stay."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    notes: list[str] = []

    class Noting(Hook):
        def note(self, text: str) -> None:
            notes.append(text)

    task = str(tmp_path / "fragile.py")
    fragile = run_of(
        tmp_path / "r", untaught, task=task, steps=2, eval_every=1, hooks=[Noting()], max_tokens=16
    )
    assert len(list(fragile.metrics())) == 2
    told = [note for note in notes if "do not count" in note]
    assert any(note.startswith("validation: ") for note in told)
    assert all("verify failed in fragile.py line 8: KeyError: 'x'" in note for note in told)


def test_batch_size_changes_no_text(whole: Run, untaught: Path, tmp_path: Path) -> None:
    small = run_of(tmp_path / "small", untaught, hosts__home__max_rows=5, steps=1)
    first = [(t["id"], t["text"]) for e in whole.episodes(0) for t in e["turns"]]
    ties = sum(t["margin"] < 1e-4 for e in whole.episodes(0) for t in e["turns"])
    second = [(t["id"], t["text"]) for e in small.episodes(0) for t in e["turns"]]
    assert sum(a != b for a, b in zip(first, second, strict=True)) <= ties


@pytest.mark.parametrize(
    ("roles", "measured"),
    [({"a": None, "b": None}, {"a"}), ({"a": ["evaluation", "scoring"], "b": ["solution"]}, {"b"})],
)
def test_frozen_agents_are_measured_only_where_nobody_else_answers(
    roles: dict[str, list[str] | None], measured: set[str], untaught: Path, tmp_path: Path
) -> None:
    agents = {name: {"roles": of_agent} for name, of_agent in roles.items() if of_agent}
    agents = {name: {"frozen": name == "b", **agents.get(name, {})} for name in roles}
    mixed = run_of(tmp_path / "r", untaught, steps=1, agents=agents, method="comas_agree")
    for occasion in ("before", "after"):
        record = mixed.read_eval(occasion)
        assert record is not None
        assert {answer["agent"] for answer in record["answers"]} == measured


def test_a_token_budget_ends_a_run_and_its_checkpoint_is_there(
    untaught: Path, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "budget", untaught, tokens=1500, steps=50)
    metrics = list(run.metrics())
    assert metrics[-1]["tokens"] >= 1500 > metrics[-2]["tokens"]
    assert run.marker()["step"] == len(metrics)


def test_loaded_teams_discuss_alike(whole: Run) -> None:
    team = comas.load(whole.path)
    texts = [[t.text for t in team.discuss("8 3 5 1 -> 16", seed=s).turns] for s in (1, 1, 2)]
    team.close()
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(UserMistake, match="no checkpoint of step 3"):
        comas.load(whole.path, step=3)


def test_training_works_where_an_event_loop_already_runs(untaught: Path, tmp_path: Path) -> None:
    async def notebook() -> int:
        return comas.train(
            out=str(tmp_path / "n"), hosts__home__base=str(untaught), **{**SMALL, "steps": 1}
        ).steps  # type: ignore[arg-type]

    assert asyncio.run(notebook()) == 1


def test_questions_come_in_passes_without_repetition(whole: Run) -> None:
    questions = [Question(id=str(n), prompt=str(n)) for n in range(8)]
    drawn = [[int(q.id) for q in in_passes(questions, 3, step, 4)] for step in range(4)]
    assert sorted(drawn[0] + drawn[1]) == sorted(drawn[2] + drawn[3]) == list(range(8))
    assert drawn[:2] != drawn[2:]
    for step in range(20):  # four of five: most steps span two passes
        asked = [q.id for q in in_passes(questions[:5], 3, step, 4)]
        assert len(set(asked)) == len(asked)


def test_foreign_bases_bring_their_own_tokenizer_and_need_a_recipe(
    tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserMistake, match="set lr"):
        comas.train(hosts__home__base=str(tiny), out=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()
    run = run_of(tmp_path / "y", tiny, steps=1, max_tokens=8, room={"solution": 8, "evaluation": 8})
    assert next(run.metrics())["counts"]["turns"] == 18


def test_a_decentralised_team_trains_each_at_its_own_host(
    untaught: Path, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "team.toml"
    path.write_text(
        f'[hosts.left]\nbase = "{untaught}"\n[hosts.right]\nbase = "{tiny}"\nlr = 1e-4\n'
    )
    comas.train(
        path,
        out=str(tmp_path / "r"),
        agents=3,
        **{**SMALL, "steps": 1, "questions": 24, "options__format_check": True},
    )
    metrics = next(Run(tmp_path / "r").metrics())
    assert set(metrics["policies"]) == {"left/a0", "left/a2", "right/a1"}
    assert metrics["policies"]["right/a1"]["lr"] == 1e-4


def test_frozen_judges_do_not_learn_and_a_team_without_learners_is_refused(
    untaught: Path, tmp_path: Path
) -> None:
    agents = {"a": {"roles": ["solution"]}, "j": {"frozen": True}}
    run = run_of(tmp_path / "r", untaught, steps=1, options__format_check=True, agents=agents)
    assert set(next(run.metrics())["policies"]) == {"home/a"}
    with pytest.raises(UserMistake, match="no agent can learn"):
        comas.train(
            hosts__home__base=str(untaught),
            lr=1e-3,
            agents={"a": {"frozen": True}},
            out=str(tmp_path / "s"),
        )


def test_it_learns(untaught: Path, tmp_path: Path) -> None:
    """An untaught model learns to end its reply at once, paid by the length that the game sees."""
    method = tmp_path / "short.py"
    method.write_text('''"""Short replies are paid."""
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method

async def play(question, agents, rng, task):
    return (await rng.choice(list(agents)).ask("solution", question.prompt)).text

def settle(episodes, task):
    for episode in episodes:
        episode.turns[0].reward = -float(episode.turns[0].tokens)

method = Method(play, settle, reinforce_pp, clipped)
''')
    run = run_of(
        tmp_path / "r",
        untaught,
        method=str(method),
        steps=30,
        questions=32,
        lr=3e-3,
        room={"solution": 16},
        options__format_check=None,
        eval_every=0,
        test_questions=0,
    )
    rewards = [m["rewards"]["solution"] for m in run.metrics()]
    assert sum(rewards[:3]) / 3 < -10
    assert sum(rewards[-3:]) / 3 > -3


def test_intervals_against_known_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.8, 0.4901625, 0.9433178, 10), abs=1e-6)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx(
        (2.0, 2 - 2.4841377, 2 + 2.4841377, 3), abs=1e-6
    )
    assert mean_interval([0.5]).high == float("inf")
    assert accuracy_interval([1.0] * 20) == wilson(20, 20)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
