"""Evaluations ask all systems alike, take what setups return, and refuse only games that nobody can
play.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comas.config.schema import settings_of
from comas.evaluation.accuracy import answer_all
from comas.evaluation.games import Round, cut_off
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.setups import (
    Asking,
    ChosenSetup,
    chosen_setup,
    described,
    only_played,
    players,
)
from comas.evaluation.spec import EvaluationPlan
from comas.game.agent import Agent, TeamMember
from comas.game.play import GameContext
from comas.hooks import Hook
from comas.hosts.ledger import BudgetSpent
from comas.setups import single
from comas.storage.game_log import Log
from comas.storage.run import Run
from comas.tasks import pick
from comas.team.build import run_sync
from comas.testing.scripted import Scripted
from comas.types import Ask, Episode, Method, Question, Reply, Sampling, Task, Turn, UserMistake
from tests.support import runs
from tests.support.runs import run_of

TIDY = '''"""Ask once; with `tidy`, return the reply with a blank behind it."""

from comas.game.prompts import SOLVING as WORDING
from comas.types import Setup
from comas.game.prompts import words


async def play(question, agents, rng, task, *, tidy: bool = False):
    turn = await agents[0].ask("solution", words(WORDING, task, "solution", question=question.prompt, history=""))
    return turn.text + " " if tidy else turn.text


setup = Setup(play, alone=True)
'''
DRAFT = '''"""One role, which is called draft."""

from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method


async def play(question, agents, rng, task):
    author = next(agent for agent in agents if agent.takes("draft"))
    return (await author.ask("draft", question.prompt)).text


def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = 1.0


method = Method(play, settle, reinforce_pp, clipped, paid=("draft",))
'''


def evaluated(plan: EvaluationPlan, folder: Path) -> dict[str, Any]:
    return run_sync(EvaluationRun.create(plan, str(folder)).go(Hook()))


def verdicts(folder: Path, setup: str) -> dict[str, str]:
    (log,) = (folder / "answers").glob(f"*.{setup}.*.jsonl")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return {r["question"]: r["verdict"] for r in records if "question" in r}


def test_a_text_that_is_nobodys_reply_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same replies, returned as they are or with a blank behind them: the same verdicts."""
    monkeypatch.chdir(tmp_path)
    Path("echo.py").write_text(TIDY)
    for tidy in ("false", "true"):
        evaluated(
            EvaluationPlan(
                ["tiny"],
                limit=40,
                setups=[f"./echo.py:tidy={tidy}"],
                settings=settings_of(["eval_temperature=0"]),
            ),
            tmp_path / tidy,
        )
    plain, cleaned = (verdicts(tmp_path / tidy, "*echo.py*") for tidy in ("false", "true"))
    assert plain == cleaned
    assert set(plain.values()) == {"right", "wrong"}


@pytest.mark.parametrize(
    ("finished", "is_cut"), [([], False), ([False, False], True), ([True, False], False)]
)
def test_an_answer_that_somebody_said_to_its_end_was_not_cut(
    finished: list[bool], is_cut: bool
) -> None:
    turns = [
        Turn(str(n), "a", "h/a", "solution", "?", "7", said, 0) for n, said in enumerate(finished)
    ]
    turns.append(Turn("other", "a", "h/a", "solution", "?", "8", True, 0))
    question = Question(id="q", prompt="?")
    assert cut_off(Episode("0/q/0", question, turns, answer="7")) is is_cut


def test_agents_of_an_evaluation_are_asked_as_it_says_and_not_as_they_were_trained() -> None:
    member = TeamMember("a", Scripted({}), "a", sampling=Sampling(1.0, 1.0, 8))
    setup = ChosenSetup("mine", only_played(play), False, {})
    context = Asking(0.25, 0.9, 64).context(pick.task, setup, [member], 0)
    assert [asked.sampling for asked in context.members] == [Sampling(0.25, 0.9, 64)]


def test_a_reply_that_was_cut_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("echo.py").write_text(TIDY)
    found = evaluated(
        EvaluationPlan(
            ["tiny"], limit=6, setups=["./echo.py"], settings=settings_of(["room.solution=2"])
        ),
        tmp_path / "e",
    )
    assert found["cells"][0]["right"] == 0
    (log,) = (tmp_path / "e" / "answers").glob("*.jsonl")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {r["answer"] for r in records if "question" in r} == {None}


def test_systems_are_asked_alike_and_what_differs_is_told(tmp_path: Path) -> None:
    """Weights that are those of `seed`, untouched, under a config with hardly any room."""
    run = run_of(
        tmp_path / "short",
        Path("tiny"),
        steps=0,
        agents=1,
        test_questions=0,
        eval_every=0,
        room__solution=10,
        eval_temperature=0.1,
        options__format_check=None,
        lr=None,
        hosts__home__context=100,
        questions=4,
    )
    found = evaluated(EvaluationPlan(["tiny", str(run.path)], limit=12), tmp_path / "e")
    mine, theirs = found["cells"]
    assert [mine[k] for k in ("right", "wrong", "tokens")] == [
        theirs[k] for k in ("right", "wrong", "tokens")
    ]
    notes = " ".join(found["notes"])
    # what it began from is asked as the run was trained, which may have no room for more
    asked = f"as {run.path}"
    assert f"tiny: room of its config is {{}}; asked with {{'solution': 10}}, {asked}" in notes
    assert f"tiny: eval_temperature of its config is 0.7; asked with 0.1, {asked}" in notes
    own = evaluated(
        EvaluationPlan([str(run.path)], limit=12), tmp_path / "own"
    )  # by itself as it was trained
    assert own["cells"][0]["tokens"] == theirs["tokens"]
    assert all("were cut at the token limit" in note for note in own["notes"])


def test_a_game_without_solutions_is_played_and_one_that_nobody_can_play_refused(
    tmp_path: Path, untaught: Path
) -> None:
    method = tmp_path / "draft.py"
    method.write_text(DRAFT)
    run = run_of(
        tmp_path / "r",
        untaught,
        steps=1,
        agents=None,
        method=str(method),
        test_questions=0,
        eval_every=0,
        room__draft=8,
        agents__a0__roles=["draft"],
        options__format_check=None,
    )
    found = evaluated(EvaluationPlan([str(run.path)], limit=3, setups=["game"]), tmp_path / "e")
    assert found["cells"][0]["complete"] == 1
    with pytest.raises(UserMistake, match=r"setup debate: .*'solution'"):
        evaluated(
            EvaluationPlan([str(run.path)], limit=3, setups=["single", "debate"]), tmp_path / "f"
        )
    assert not (tmp_path / "f").exists()


def test_the_reference_of_a_run_is_pinned_and_its_kind_read_from_what_is_there(
    untaught: Path, tmp_path: Path
) -> None:
    """A base that is a run of adapters: the whole model below is found although the pinned step is
    gone.
    """
    first = run_of(
        tmp_path / "a",
        untaught,
        steps=1,
        agents=1,
        test_questions=0,
        eval_every=0,
        checkpoint_every=1,
    )
    config = runs.planned({"hosts.home.base": str(first.path), "agents": 1, "lr": 1e-3}).config
    assert config.hosts["home"].base.endswith("@1")
    best = run_of(
        tmp_path / "b",
        untaught,
        steps=2,
        agents=1,
        test_questions=0,
        eval_every=1,
        checkpoint_every=1,
    )
    config = runs.planned({"hosts.home.base": f"{best.path}@best", "agents": 1, "lr": 1e-3}).config
    assert config.hosts["home"].base == f"{best.path.resolve()}@{Run.open(best.path).best()}"


def test_replies_that_are_cut_are_counted_and_noted_where_they_are_many() -> None:
    from comas.evaluation.report import CellReport, cell_record, notes

    def record(number: int, finished: bool, **info: Any) -> dict[str, Any]:
        turn = {"agent": "a", "role": "solution", "tokens": 1, "prompt_tokens": 1, "seconds": 0.0}
        turn |= {"finished": finished, "info": info}
        answered = {"question": f"q{number}", "agent": "a", "verdict": "wrong", "error": None}
        return {**answered, "answer": None, "turns": [turn]}

    cut = CellReport("tiny", "pick", "single", "copies", 2, [[record(0, False), record(1, True)]])
    assert (cell_record(cut)["cut"], cell_record(cut)["unreadable"]) == (1, 0)
    assert "1 of 2 replies as solution were cut at the token limit" in notes([cut])[0]
    odd = CellReport("tiny", "pick", "single", "copies", 2, [[record(0, True, answer=None)]])
    assert cell_record(odd)["unreadable"] == 1
    assert "1 of 1 replies as solution could not be read" in notes([odd])[0]
    fine = CellReport("tiny", "pick", "single", "copies", 2, [[record(0, True, answer="7")]])
    assert notes([fine]) == []


def test_agents_that_never_solve_answer_nothing_alone() -> None:
    host = Scripted(lambda *_: "7")
    solver = TeamMember("solver", host, "solver", roles=("solution",))
    judge = TeamMember("judge", host, "judge", roles=("evaluation", "scoring"))
    open_ = TeamMember("open", host, "open")
    for members, answer in (
        ([solver, judge], ["solver"]),
        ([solver, judge, open_], ["solver", "open"]),
        ([judge], ["judge"]),
    ):
        team: Any = SimpleNamespace(members=members)
        assert list(players(team, chosen_setup("single", team))) == answer
        alone = "1 agent" if len(answer) == 1 else f"{len(answer)} agents, each alone"
        assert described(team, chosen_setup("single", team)) == alone
        assert players(team, chosen_setup("vote", team)) == {"team": members}
        assert (
            described(team, chosen_setup("vote", team))
            == ("1 agent", "team of 2", "team of 3")[len(members) - 1]
        )


def test_agents_that_answer_by_themselves_draw_each_for_itself() -> None:
    host = Scripted({"solution": "7"})
    members = [TeamMember(name, host, name) for name in "ab"]
    method = Method(single.setup.play, *[lambda *_: None] * 3)
    questions = pick.task.load("test", limit=2)
    asyncio.run(answer_all(GameContext(method, pick.task, members, 0), questions, "before"))
    seeds = [seed for *_, seed in host.asked]
    assert len(set(seeds)) == len(seeds) == 4


class Spends(Scripted):
    async def ask(self, ask: Ask) -> Reply:
        asked = ask.messages[-1]["content"]
        for _ in range({"first": 3, "second": 6, "late": 9}[asked]):
            await asyncio.sleep(0)
        if asked != "late":
            raise BudgetSpent(asked)
        return await super().ask(ask)


async def play(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
    return (await agents[0].ask("solution", question.prompt)).text


def test_what_is_open_when_budgets_end_is_written_down_and_the_first_error_is_told(
    tmp_path: Path,
) -> None:
    host = Spends({"solution": "1 2 4"})
    team: Any = SimpleNamespace(
        hosts={"script": host}, members=[TeamMember("a", host, "a")], origins=list
    )
    setup = ChosenSetup("mine", only_played(play), False, {})
    questions = [Question(id=name, prompt=name, answer="7") for name in ("late", "first", "second")]
    log = Log(tmp_path / "log.jsonl")
    played = Round("s", team, pick.task, questions, setup, log)
    with pytest.raises(BudgetSpent, match="first"):
        asyncio.run(played.play(Asking(), 0, Hook(), lambda: None))
    log = Log(tmp_path / "log.jsonl")
    assert [record["question"] for record in log.records] == ["late"]
    Round("s", team, pick.task, questions[1:], setup, log)
    assert log.records == []  # it is of a question that is gone
