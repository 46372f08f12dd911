"""Sums in plain language: splits by numbers, answers in prose, questions read back from their text."""

from __future__ import annotations

import itertools

import pytest

from comas.config.plan import plan
from comas.config.schema import Config, checked
from comas.tasks.sums import (
    HELD_OUT,
    MOST,
    OPERATIONS,
    SHARES,
    check,
    extract,
    load,
    pose,
    read_problem,
    split_of,
    task,
    verify,
)
from comas.testing import check_task
from comas.types import Question, UserMistake
from tests.support import runs

EASY = Question(id="q", prompt="What is 4 + 12?", kind="addition", answer="16")
FORMS = [(form, steps) for form in OPERATIONS for steps in (1, 2, 3)]


@pytest.mark.parametrize(("form", "steps"), [*zip(OPERATIONS, (1, 2, 3), strict=True)])
def test_each_form_and_number_of_steps_is_a_task(form: str, steps: int) -> None:
    check_task(task, form=form, steps=steps)


@pytest.mark.parametrize(("form", "steps"), FORMS)
def test_a_question_is_read_back_from_its_text_and_has_its_answer(form: str, steps: int) -> None:
    for question in load("test", form=form, steps=steps, limit=200):
        asked = read_problem(question.prompt)
        assert asked is not None
        shape, problem = asked
        assert shape == form or (form, shape) == ("arithmetic", "addition")
        assert len(problem.operations) == steps
        assert 0 <= int(question.answer or "") <= MOST
        assert str(problem.answer) == question.answer


@pytest.mark.parametrize("form", ["addition", "arithmetic"])
def test_python_finds_the_same_answers(form: str) -> None:
    for question in load("train", form=form, steps=3, limit=300):
        formula = question.prompt.removeprefix("What is ").removesuffix("?")
        assert eval(formula.replace("x", "*")) == int(question.answer or "")  # noqa: S307


def test_no_two_splits_share_numbers_whatever_the_form() -> None:
    sets: dict[str, set[tuple[int, ...]]] = {split: set() for split in SHARES}
    for split, form in itertools.product(SHARES, OPERATIONS):
        for question in load(split, form=form, limit=200):
            asked = read_problem(question.prompt)
            assert asked is not None
            sets[split].add(tuple(sorted(asked[1].numbers)))
    for one, other in itertools.combinations(sets.values(), 2):
        assert one
        assert not one & other


def test_the_easiest_kind_has_enough_held_out_questions() -> None:
    counts = {split: len(load(split)) for split in SHARES}
    assert counts["test"] >= 128
    assert counts["train"] >= 128
    assert sum(counts.values()) == 20 * 20


def test_an_order_belongs_to_its_seed() -> None:
    first = [q.id for q in load("train", seed=1)]
    assert first == [q.id for q in load("train", seed=1)]
    assert first != [q.id for q in load("train", seed=2)]
    assert sorted(first) == sorted(q.id for q in load("train", seed=2))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("16", "16"),
        ("4 + 12 = 16.", "16"),
        ('The answer is "16".', "16"),
        ("**16** apples", "16"),
        ("$16.00", "16"),
        ("Mia has 1,234 apples", "1234"),
        ("It is -4", "-4"),
        ("12-4", None),
        ("12 - 4", None),
        ("What is 12 x 4?", None),
        ("(4 + 12) x 3", None),
        ("4 + (12 x 3).", None),
        ("5 + 4 + 3", None),
        ("\\boxed{12 - 4}", None),
        ("12 x 4 = 12 x 4", None),
        ("(4 + 12) x 3 = 48", "48"),
        ("4 + 12\n= 16", "16"),
        ("\\boxed{16}, from 4 + 12", "16"),
        ("12 - 4 is 8!", "8"),
        ("3.5", "3.5"),
        ("4,5,6", "6"),
        ("\\boxed{16}, and not 3", "16"),
        ("16, so \\boxed{}", None),
        ("sixteen", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_reply_is_its_answer(text: str, answer: str | None) -> None:
    assert extract(EASY, text) == answer
    assert verify(EASY, text) == ("right" if answer == "16" else "wrong")


def test_agents_may_pose_what_is_not_held_out() -> None:
    for split in SHARES:
        for question in load(split, form="story", steps=2, limit=50):
            posed = pose(f"Here is mine.\n{question.prompt}\n")
            assert (posed is None) == (split in HELD_OUT)
            if posed is not None:
                assert posed.prompt == question.prompt
                assert posed.answer is None
                assert check(posed, f"It is {question.answer}.") == "right"
                assert check(posed, "It is 1001.") == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "What is 4 + ?",
        "What is 4 - 12?",
        "What is 7 / 2?",
        "What is 4 + 12 x 3?",
        "What is 1 + 1 + 1 + 1 + 1?",
        "Mia has 4 apples. Tom finds 12 more. How many apples does Mia have now?",
        "Mia has 4 apples. How many apples does Mia have now?",
        "Mia has 4 apples. Mia dreams of 3 more. How many apples does Mia have now?",
    ],
)
def test_what_this_task_could_not_have_asked_is_no_question(text: str) -> None:
    assert read_problem(text) is None
    assert pose(text) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "poem"}, "no form 'poem': one of addition, arithmetic, story"),
        ({"steps": 4}, "problems of 4 steps on numbers of 1..20: steps are at most 3"),
        ({"largest": 3}, "on numbers of 1..3"),
        ({"path": "q.jsonl"}, "reads no file"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(UserMistake) as refused:
        load("train", **options)  # type: ignore[arg-type]
    assert said in str(refused.value)
    with pytest.raises(UserMistake, match="no split 'warm'"):
        load("warm")


def test_a_split_is_that_of_the_numbers_in_any_order() -> None:
    assert split_of((4, 12)) == split_of((12, 4))


def resolved(tiny: object, *pairs: str) -> Config:
    return runs.planned(["task=sums", f"base={tiny}", *pairs]).config


def test_other_bases_get_the_recipe_and_shipped_models_do_not(tiny: object) -> None:
    config = resolved(tiny, "method=rlvr")
    assert (config.steps, config.questions, config.temperature) == (20, 24, 0.8)
    assert config.lr == 3e-4
    config = resolved(tiny, "method=rlvr", "questions=7", "steps=180", "hosts.home.learner=full")
    assert (config.steps, config.questions) == (180, 7)
    assert config.lr == 3e-5
    config = resolved(tiny, "method=rlvr", "preset=stable")
    assert (config.steps, config.questions) == (20, 48)
    again = plan(checked(config.model_dump())).config
    assert again == config
    config = resolved("tiny", "method=rlvr")
    assert (config.steps, config.questions, config.temperature) == (180, 48, 1.0)
