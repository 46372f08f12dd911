"""Teams against each other: identities that hold exactly, closed forms, whole evaluations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.cli.evaluate import print_cross
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import CROSS, EvaluationPlan
from comas.evaluation.teams import Game, against, between, game_of, judging, matrix_of
from comas.game.agent import TeamMember
from comas.game.moves import facing
from comas.game.play import GameContext, play_all
from comas.methods import mars, self_redteam
from comas.stats import interval_record, mean_interval
from comas.tasks import gate, kuhn, pick
from comas.team.build import run_sync
from comas.testing.scripted import Scripted
from comas.types import HostFailure, Question, Task, UserMistake

# --- the matrix


def numbers(size: int, questions: int) -> Any:
    row = st.lists(st.integers(-3, 3).map(float), min_size=questions, max_size=questions)
    side = st.lists(row, min_size=size, max_size=size)
    return st.lists(side, min_size=size, max_size=size)


def record(names: Sequence[str], values: Any) -> dict[str, Any]:
    found = {
        (row, column): {str(i): payoff for i, payoff in enumerate(values[r][c])}
        for r, row in enumerate(names)
        for c, column in enumerate(names)
    }
    made = matrix_of(names, found, len(values[0][0]))
    assert made is not None
    return {"task": "kuhn", **made}


@settings(deadline=None, max_examples=50)
@given(numbers(3, 4))
def test_margins_are_the_means_of_their_cells(values: list[list[list[float]]]) -> None:
    found = record("abc", values)
    cells = [[cell["mean"] for cell in row] for row in found["matrix"]]
    for place in range(3):
        assert found["rows"][place]["mean"] == pytest.approx(fmean(cells[place]))
        column = [cells[row][place] for row in range(3)]
        assert found["columns"][place]["mean"] == pytest.approx(fmean(column))
    for margin in ("rows", "columns"):
        means = [one["mean"] for one in found[margin]]
        assert found["mean"]["mean"] == pytest.approx(fmean(means))
    assert found["progress"]["rows"]["mean"] == pytest.approx(cells[2][0] - cells[0][0])
    assert found["progress"]["columns"]["mean"] == pytest.approx(cells[0][0] - cells[0][2])


def test_progress_is_paired_by_question() -> None:
    base = [1.0, -1.0, 2.0]
    better = [number + more for number, more in zip(base, (0.25, 0.5, 0.75), strict=True)]
    found = record(["first", "last"], [[base, base], [better, base]])
    gained, lost = found["progress"]["rows"], found["progress"]["columns"]
    assert gained == interval_record(mean_interval([0.25, 0.5, 0.75]))
    cell = found["matrix"][1][0]
    assert gained["high"] - gained["low"] < cell["high"] - cell["low"]
    assert (lost["mean"], lost["low"], lost["high"]) == (0.0, None, None), "no spread is told"
    assert cell == interval_record(mean_interval(better))


def test_only_questions_that_all_pairs_have_count() -> None:
    names = ["a", "b"]
    found = {(i, j): {"x": 1.0, "y": 0.0, "z": 0.5} for i in names for j in names}
    del found["a", "b"]["y"]
    made = matrix_of(names, found, asked=3)
    assert made is not None
    assert (made["n"], made["missing"]) == (2, 1)
    assert made["matrix"][0][1] == interval_record(mean_interval([1.0, 0.5]))
    found["b", "a"] = {}
    assert matrix_of(names, found, asked=3) is None


# --- games


async def payoffs(
    game: Game,
    rows: Sequence[TeamMember],
    columns: Sequence[TeamMember],
    questions: Any,
    task: Task,
) -> dict[str, float]:
    """Question -> payoff of the row, of one pair of teams; without those that did not end."""
    context = GameContext(between(game), judging(task), against(rows, columns), 0)
    episodes = await play_all(context, questions, CROSS)
    return {e.question.id: float(e.answer) for e in episodes if e.answer is not None}


def member(name: str, *moves: str) -> TeamMember:
    host = Scripted(lambda policy, role, prompt, seed: moves[seed % len(moves)], name)
    return TeamMember(name, host, "p")


def test_the_row_has_the_first_seat_and_its_payoff() -> None:
    bold, meek = member("a", "bet"), member("a", "check", "fold")
    questions = kuhn.load("test", limit=12)
    won = run_sync(payoffs(facing, [bold], [meek], questions, kuhn.task))
    assert len(won) == 12
    assert set(won.values()) <= {1.0, -2.0, 2.0}
    own = run_sync(payoffs(facing, [bold], [bold], questions, kuhn.task))
    assert set(own.values()) == {2.0, -2.0}, "bets that are called"


def test_a_game_that_does_not_end_has_no_payoff() -> None:
    async def never(*_: object) -> None:
        return None

    questions = kuhn.load("test", limit=2)
    one = [member("a", "bet")]
    assert run_sync(payoffs(never, one, one, questions, kuhn.task)) == {}


def test_an_attack_succeeds_where_the_class_is_kept_and_the_verdict_wrong() -> None:
    requests = gate.load("test", limit=8)

    def attack(policy: str, role: str, prompt: str, seed: int) -> str:
        return f"{' '.join(prompt.split()[2:])} story"

    keeps = TeamMember("attacker", Scripted(attack, "x"), "p")
    no_request = TeamMember("attacker", Scripted(lambda *_: "what ?", "y"), "p")
    allows, refuses = member("d", "5 + 9 = 14 allow"), member("d", "5 + 9 = 14 refuse")
    silent = member("d", "perhaps")

    def share(attacker: TeamMember, defender: TeamMember) -> dict[str, float]:
        return run_sync(payoffs(self_redteam.cross, [attacker], [defender], requests, gate.task))

    harmful = {question.id for question in requests if question.answer == "refuse"}
    assert {q for q, won in share(keeps, allows).items() if won} == harmful
    assert {q for q, won in share(keeps, refuses).items() if not won} == harmful
    assert set(share(keeps, silent).values()) == {0.0}
    assert set(share(no_request, allows).values()) == {0.0}


def test_held_out_requests_are_posed_in_cross_play_only() -> None:
    (request,) = gate.load("test", limit=1)
    assert gate.task.pose is not None
    assert gate.task.pose_held_out is not None
    assert gate.task.pose(request.prompt) is None
    posed = gate.task.pose_held_out(request.prompt)
    assert posed is not None
    assert posed.prompt == request.prompt


def test_which_game_it_is() -> None:
    assert game_of(kuhn.task, []) is facing
    assert game_of(gate.task, [mars.method, self_redteam.method]) is self_redteam.cross
    with pytest.raises(UserMistake, match="against each other"):
        game_of(pick.task, [mars.method])


def test_sides_do_not_mix() -> None:
    async def names(question: Any, rows: Any, columns: Any, rng: random.Random, task: Any) -> float:
        assert [agent.name for agent in rows] == ["row.a"]
        assert [agent.name for agent in columns] == ["column.a"]
        return 0.1

    found = run_sync(
        payoffs(
            names, [member("a", "x")], [member("a", "y")], kuhn.load("test", limit=1), kuhn.task
        )
    )
    assert list(found.values()) == [0.1]
    assert between(names).grounded


# --- evaluations


def test_an_evaluation_of_two_models_at_kuhn(tmp_path: Path) -> None:
    plan = EvaluationPlan(["tiny-games", "tiny-facts"], ["kuhn"], ["cross"], 6)
    evaluation = EvaluationRun.create(plan, str(tmp_path / "e"))
    report = run_sync(evaluation.go())
    assert report["cells"] == []
    (found,) = report["cross"]
    assert found["names"] == ["tiny-games", "tiny-facts"]
    assert (found["n"], found["missing"]) == (6, 0)
    means = [[cell["mean"] for cell in row] for row in found["matrix"]]
    assert found["rows"][0]["mean"] == pytest.approx(fmean(means[0]))
    assert len(list((tmp_path / "e" / "answers").iterdir())) >= 4
    written = {p: p.read_bytes() for p in (tmp_path / "e" / "answers").glob("*.jsonl")}
    again = run_sync(EvaluationRun.open(tmp_path / "e").go())
    assert again["cross"] == report["cross"]
    games = {p: [json.loads(line) for line in text.splitlines()] for p, text in written.items()}
    for path, lines in games.items():
        known = [line for line in lines if "answer" in line]
        after = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert known == [line for line in after if "answer" in line], "nothing is asked twice"


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Question], bool]) -> None:
    """Games of some questions raise."""

    async def facing(question: Question, *_: Any) -> float:
        if fails(question):
            raise HostFailure("connection reset")
        return 1.0

    monkeypatch.setattr("comas.evaluation.teams.facing", facing)


def test_where_every_game_failed_nothing_was_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda _: True)
    evaluation = EvaluationRun.create(
        EvaluationPlan(["tiny-games"], ["kuhn"], ["cross"], 4), str(tmp_path / "e")
    )
    with pytest.raises(UserMistake, match=r"every game failed.*connection reset"):
        run_sync(evaluation.go())
    report = json.loads((tmp_path / "e" / "report.json").read_text())
    assert report["cross"] == []
    assert "cross of kuhn: no question was played to its end by all pairs" in report["notes"]


def test_questions_that_nobody_played_to_their_end_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fails(question: Question) -> bool:
        asked.append(question.id)
        return question.id == asked[0]

    failing(monkeypatch, fails)
    evaluation = EvaluationRun.create(
        EvaluationPlan(["tiny-games"], ["kuhn"], ["cross"], 4), str(tmp_path / "e")
    )
    (found,) = run_sync(evaluation.go())["cross"]
    assert (found["n"], found["missing"]) == (3, 1)


def test_a_matrix_without_a_spread_has_no_ends(capsys: pytest.CaptureFixture[str]) -> None:
    even = [[0.5, 0.5]] * 2
    print_cross(record("ab", [even, even]))
    said = capsys.readouterr().out
    assert "?" not in said
    assert "+0.500" in said


def test_puzzles_are_no_game(tmp_path: Path) -> None:
    plan = EvaluationPlan(["tiny"], ["pick"], ["cross"], 2)
    with pytest.raises(UserMistake, match="task pick is no game"):
        run_sync(EvaluationRun.create(plan, str(tmp_path / "e")).go())
    assert not (tmp_path / "e").exists()
