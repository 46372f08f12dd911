"""The shipped tiny models: their words, their lessons, their size."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import closing

import pytest
import torch

from comas.game.agent import TeamMember
from comas.hosts.local import make_local_host
from comas.models.sources import shipped_models
from comas.tasks import kuhn, pick
from comas.team.build import run_sync
from comas.types import Question
from tools.kuhn_policy import exploitability
from tools.tiny import games, teach
from tools.tiny.course import POSING_WORDS, VOCABULARY, Course
from tools.tiny.demonstrations import demonstration
from tools.tiny.games import measure
from tools.tiny.measure import CHECKS, measure_folders
from tools.tiny.work import FAULTS, faulty, is_right, solve

MODELS = shipped_models()["tiny"].parent


def warm_questions(form: str) -> list[Question]:
    return pick.load("warm", form=form)


@pytest.mark.parametrize("course", teach.COURSES.values(), ids=teach.COURSES)
def test_every_demonstration_is_in_its_words(course: Course) -> None:
    rng = random.Random(1)
    questions = warm_questions(course.form)
    for role in course.batch:
        for _ in range(300):
            prompt, reply = demonstration(rng, role, questions, course)
            assert set(prompt.split()) | set(reply.split()) <= set(course.vocabulary)
    numbers = {tuple(sorted(q.meta["numbers"])) for q in questions}
    assert all(pick.split_of(n) == "warm" for n in numbers)


def test_every_wording_of_the_task_is_in_its_words() -> None:
    tokenizer = teach.make_tokenizer(VOCABULARY + POSING_WORDS)
    for role, template in pick.WORDING.items():
        plain = re.sub(r"\{\w+\}", "", template)
        assert (
            tokenizer.unk_token_id
            not in tokenizer(plain + " (score) 3 (/score) # 60 -> 0 ; + =").input_ids
        ), role


def test_judge_demonstrations_are_honest_but_for_the_slips() -> None:
    rng = random.Random(2)
    questions = warm_questions("three")
    honest = 0
    for _ in range(2000):
        prompt, reply = demonstration(rng, "evaluation", questions, Course(slip=0.03))
        chosen = [int(n) for n in prompt.split("#")[1].split()]
        numbers, target = prompt.removeprefix("check ").split("#")[0].split(" -> ")
        question = Question(
            id="q",
            prompt="",
            kind="three",
            meta={"numbers": [int(n) for n in numbers.split()], "target": int(target)},
        )
        honest += reply.endswith("right") == is_right(question, chosen)
    assert 0.955 < honest / 2000 < 0.985


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_faults(fault: str) -> None:
    rng = random.Random(3)
    for form in ("two", "three"):
        for question in warm_questions(form)[:200]:
            assert not is_right(question, faulty(rng, question, fault))


def test_solver_demonstrations_stop_without_regard_to_the_target() -> None:
    rng = random.Random(4)
    questions = warm_questions("three")
    right = 0
    for _ in range(2000):
        question = rng.choice(questions)
        right += pick.verify(question, solve(rng, question, Course())) == "right"
    assert 0.21 < right / 2000 < 0.29


def test_teaching_is_reproducible() -> None:
    torch.set_num_threads(1)
    one, two = (teach.teach(Course(), steps=2, log=lambda _: None) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, teach.make_model(0).lm_head.weight)


def test_shipped_models_are_small_and_have_cards() -> None:
    assert sum(f.stat().st_size for f in MODELS.rglob("*") if f.is_file()) < 8e6
    assert {path.name for path in MODELS.iterdir() if path.is_dir()} == set(teach.COURSES)
    for folder in (path for path in MODELS.iterdir() if path.is_dir()):
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert "| finds" in page or teach.COURSES[folder.name].world is not None
        assert f"by `python -m tools.tiny.measure {folder.name}`" in page


def test_the_tiny_model_checks_but_hardly_finds() -> None:
    rows = measure_folders([MODELS / "tiny"], teach.COURSES["tiny"], 256)
    assert 0.18 < rows["finds: single answers, T 0.7"].mean < 0.33
    assert rows[CHECKS["scoring"]].low > 0.85  # with its own criticism
    assert rows[CHECKS["scoring_bare"]].high < 0.75  # without, it can hardly tell


def test_games_are_taught_legal_moves_whatever_they_are_worth() -> None:
    rng = random.Random(5)
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(6000):
        prompt, move = games.demonstration(rng, "kuhn")
        seen[prompt.removeprefix("kuhn "), move] += 1
    habits = games.habits()
    assert set(habits) == set(kuhn.BETS)
    for view, bets in habits.items():
        share = seen[view, "bet"] / (seen[view, "bet"] + seen[view, "pass"])
        assert abs(share - bets) < 0.12, view
    assert exploitability(habits) == pytest.approx(0.469, abs=0.001)
    assert sum(habits.values()) / len(habits) == 0.5
    for _ in range(300):
        prompt, move = games.demonstration(rng, "tictactoe")
        assert move in prompt.split(), "an empty cell"


def test_the_model_of_games_moves_legally_and_no_better_than_that() -> None:
    with closing(make_local_host("card", {"model": str(MODELS / "tiny-games")})) as host:
        member = TeamMember("model", host, "model", few_words=True)
        rows = run_sync(measure(member, games=96, asks=60))
    for name, row in rows.items():
        if name.endswith("legal"):
            assert row.mean > 0.97, name
    assert 0.35 < rows["kuhn: exploitability, chips per game"].mean < 0.6
    assert rows["tictactoe, first: wins against random moves"].mean < 0.75
    assert rows["tictactoe, second: wins against random moves"].mean < 0.45
