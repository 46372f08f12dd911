"""The same question in other words or another order: its answer, its numbers, who may pose it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from comas.tasks import pick, sums
from comas.testing import check_task
from comas.types import Question

FORMS = [(form, steps) for form in sums.OPERATIONS for steps in (1, 2, 3)]


def numbers_of(question: Question) -> list[str]:
    return question.prompt.split(" -> ")[0].split()


@pytest.mark.parametrize("form", ["two", "three"])
def test_numbers_of_a_puzzle_are_moved_and_none_keeps_its_place(form: str) -> None:
    for place, question in enumerate(pick.load("train", limit=100, form=form)):
        moved = pick.rephrase(question, random.Random(place))
        assert moved is not None
        before = numbers_of(question)
        after = numbers_of(moved)
        assert sorted(after) == sorted(before)
        assert all(one != other for one, other in zip(after, before, strict=True))
        right = " + ".join((question.answer or "").split())
        total = f"{right} = {question.meta['target']}"
        assert pick.verify(moved, total) == "right"
        assert pick.check(replace(moved, meta={}), total) == "right"


def test_every_order_without_a_number_in_its_place_is_drawn() -> None:
    question = pick.make_question((1, 2, 4, 8), 7, "three")
    drawn = {str(pick.rephrase(question, random.Random(seed))) for seed in range(300)}
    orders = itertools.permutations(range(4))
    wanted = [order for order in orders if all(i != place for i, place in enumerate(order))]
    assert len(drawn) == len(wanted) == 9


@pytest.mark.parametrize(("form", "steps"), FORMS)
def test_a_reworded_problem_has_the_same_numbers_and_the_same_answer(form: str, steps: int) -> None:
    for question in sums.load("train", limit=100, form=form, steps=steps):
        changed = sums.rephrase(question, random.Random(question.id))
        assert changed is not None
        assert changed.prompt != question.prompt
        answer = question.answer or ""
        assert sums.verify(changed, answer) == "right"
        assert sums.check(replace(changed, answer=None), answer) == "right"
        assert sums.check(replace(changed, answer=None), f"{answer}1") == "wrong"


@pytest.mark.parametrize(
    ("prompt", "others"),
    [
        ("What is 4 + 12?", {"12 + 4"}),
        ("What is 4 + 4?", {"4 + 4"}),
        ("What is 1 + 2 + 3?", {"2 + 3 + 1", "3 + 1 + 2"}),
        ("What is (4 + 12) x 3?", {"(12 + 4) x 3"}),
        ("What is (14 - 2) + 3?", {"(14 - 2) + 3"}),
        ("What is 4 x 12?", {"4 x 12"}),
    ],
)
def test_terms_of_an_addition_are_moved_where_that_leaves_the_answer(
    prompt: str, others: set[str]
) -> None:
    question = Question(id="q", prompt=prompt, kind="arithmetic")
    changed = [sums.rephrase(question, random.Random(seed)) for seed in range(40)]
    prompts = {one.prompt for one in changed if one is not None}
    assert prompts == {text.format(other) for text in sums.REWORDED for other in others}


@pytest.mark.parametrize("form", sums.OPERATIONS)
def test_other_words_for_a_sum_are_no_question_that_could_be_posed(form: str) -> None:
    for split, possible in (("train", form == "story"), ("test", False)):
        for question in sums.load(split, limit=50, form=form):
            changed = sums.rephrase(question, random.Random(1))
            assert changed is not None
            assert (sums.read_problem(changed.prompt) is not None) is (form == "story")
            assert (sums.pose(changed.prompt) is not None) is possible


@pytest.mark.parametrize("rephrase", [pick.rephrase, sums.rephrase])
@pytest.mark.parametrize("prompt", ["", "hello", "1 -> 2", "What is?", "What is 4 + ?"])
def test_what_is_no_question_of_the_task_has_no_other_words(
    rephrase: Callable[[Question, random.Random], Question | None], prompt: str
) -> None:
    assert rephrase(Question(id="q", prompt=prompt), random.Random(0)) is None


def in_other_words(question: Question, rng: random.Random) -> Question:
    return replace(question, prompt=question.prompt + " Please.")


BROKEN = {
    "looks at answer or meta": lambda q, rng: replace(q, prompt=f"{q.prompt} {q.answer}"),
    "draws from elsewhere": lambda q, rng: replace(q, prompt=f"{q.prompt} {random.random()}"),
    "leaves 'What is": lambda q, rng: q,
    "changes more than the prompt": lambda q, rng: replace(in_other_words(q, rng), kind="other"),
    "check says wrong of": in_other_words,
}


@pytest.mark.parametrize("told", BROKEN)
def test_a_broken_contract_is_told(told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_task(replace(sums.task, rephrase=BROKEN[told]))


def test_a_question_that_becomes_another_is_told() -> None:
    def another(question: Question, rng: random.Random) -> Question:
        return replace(question, prompt="What is 20 + 20?")

    with pytest.raises(AssertionError, match=r"check says wrong of|pose accepts"):
        check_task(replace(sums.task, rephrase=another))
