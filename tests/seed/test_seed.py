"""The shipped seed models: their words, their lessons, their size."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from comas.seed import teach
from comas.seed.course import POSING_WORDS, VOCABULARY, Course
from comas.seed.demonstrations import demonstration
from comas.seed.measure import CHECKS, measure_folders
from comas.seed.work import FAULTS, faulty, is_right, solve
from comas.tasks import pick
from comas.types import Question

MODELS = Path(teach.__file__).parent / "models"


@pytest.mark.parametrize("course", teach.COURSES.values(), ids=teach.COURSES)
def test_every_demonstration_is_in_its_words(course: Course) -> None:
    rng = random.Random(1)
    questions = teach.warm_questions(course.form)
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
    questions = teach.warm_questions("three")
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
        for question in teach.warm_questions(form)[:200]:
            assert not is_right(question, faulty(rng, question, fault))


def test_solver_demonstrations_stop_without_regard_to_the_target() -> None:
    rng = random.Random(4)
    questions = teach.warm_questions("three")
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
    assert sum(f.stat().st_size for f in MODELS.rglob("*") if f.is_file()) < 6e6
    assert {folder.name for folder in MODELS.iterdir()} == set(teach.COURSES)
    for folder in MODELS.iterdir():
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert "| finds" in page
        assert f"by `python -m comas.seed.measure {folder.name}`" in page


def test_the_seed_model_checks_but_hardly_finds() -> None:
    rows = measure_folders([MODELS / "seed"], teach.COURSES["seed"], 256)
    assert 0.18 < rows["finds: single answers, T 0.7"].mean < 0.33
    assert rows[CHECKS["scoring"]].low > 0.85  # with its own criticism
    assert rows[CHECKS["scoring_bare"]].high < 0.75  # without, it can hardly tell
