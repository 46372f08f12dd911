"""Questions with many right answers: what fulfils every condition is right, however it is written, and nothing else."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.tasks.constraints import (
    FORMS,
    SHARES,
    check,
    conditions,
    extract,
    load,
    read_question,
    task,
)
from comas.testing import check_task
from comas.types import Question, UserMistake

NUMBERS = st.integers(-50, 9999)
QUESTIONS = st.sampled_from([q for form in FORMS for q in load("test", form=form, limit=40)])


def by_brute_force(question: Question, numbers: tuple[int, ...]) -> bool:
    """Whether numbers are a right answer, worked out from the question's text without the task."""
    given_numbers = [int(text) for text in re.findall(r"\d+", question.prompt)]
    if question.kind == "three":
        *offered, total = given_numbers
        return sorted(numbers) in [
            sorted(three) for three in itertools.combinations(offered, 3) if sum(three) == total
        ]
    if question.kind == "factors":
        one, other = sorted(numbers)
        return one > 1 and one * other == given_numbers[0]
    (number,) = numbers
    low, high, *last = given_numbers
    within = number in range(low, high + 1)
    if question.kind == "prime":
        return within and [d for d in range(1, number + 1) if number % d == 0] == [1, number]
    if question.kind == "ending":
        return within and str(number)[-1] == str(last[0])
    return within and number % last[0] == 0


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_a_task(form: str) -> None:
    check_task(task, form=form)


@given(QUESTIONS, st.data())
def test_right_is_what_fulfils_every_condition(question: Question, data: st.DataObject) -> None:
    size = FORMS[question.kind].size
    bounds = [int(text) for text in re.findall(r"\d+", question.prompt)]
    near = st.integers(min(bounds) - 2, max(bounds) + 2) | st.sampled_from(bounds) | NUMBERS
    numbers = tuple(data.draw(st.lists(near, min_size=size, max_size=size)))
    reply = data.draw(st.sampled_from(["{}", "The answer is {}.", "\\boxed{{{}}}", "One is\n{}!"]))
    text = reply.format(data.draw(st.sampled_from([", ", " and ", " + "])).join(map(str, numbers)))
    right = by_brute_force(question, numbers)
    assert (check(question, text) == "right") == right


@given(QUESTIONS)
def test_a_question_has_an_answer_and_is_read_back_from_its_text(question: Question) -> None:
    assert check(question, question.answer or "") == "right"
    asked = read_question(question.prompt)
    assert asked is not None
    form, facts = asked
    assert form is FORMS[question.kind]
    assert form.template.format(**facts) == question.prompt
    assert len(conditions(question)) == 2
    assert not any("{" in condition for condition in conditions(question))


@given(QUESTIONS, st.lists(NUMBERS, max_size=5))
def test_another_number_of_numbers_is_no_answer(question: Question, numbers: list[int]) -> None:
    if len(numbers) != FORMS[question.kind].size:
        assert extract(question, " ".join(map(str, numbers))) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I think of 7, 15 and 4.", "4, 7, 15"),
        ("7 + 15 + 4 = 26", "4, 7, 15"),
        ("Four numbers: 4, 7, 15, 22\n4, 7, 15", "4, 7, 15"),
        ("4, 7, 15\nThat is all.", "4, 7, 15"),
        (r"\boxed{15, 7, 4} of 4, 7, 15, 22", "4, 7, 15"),
        (r"4, 7, 15 \boxed{}", None),
        ("4, 7", None),
        ("4, 7, 15, 22", None),
        ("4.5, 7, 15", None),
        ("4, 7, 15,000", None),
        ("none", None),
    ],
)
def test_answers_are_the_numbers_of_the_last_box_or_line(text: str, answer: str | None) -> None:
    prompt = "Choose three of the numbers 4, 7, 15, 22 whose sum is 26."
    question = Question(id="q", prompt=prompt, kind="three")
    assert extract(question, text) == answer


def test_no_two_splits_share_numbers_and_an_order_belongs_to_its_seed() -> None:
    numbers: dict[str, set[tuple[str, ...]]] = {split: set() for split in SHARES}
    for split, form in itertools.product(SHARES, FORMS):
        for question in load(split, form=form, limit=300):
            numbers[split].add(tuple(sorted(re.findall(r"\d+", question.prompt))))
    for one, other in itertools.combinations(numbers.values(), 2):
        assert one
        assert not one & other
    ids = [question.id for question in load("train", seed=1, limit=50)]
    assert ids == [question.id for question in load("train", seed=1, limit=80)][:50]
    assert ids != [question.id for question in load("train", seed=2, limit=50)]


def test_a_strange_text_is_no_question() -> None:
    strange = Question(id="q", prompt="Name a whole number between 2 and x.", kind="ending")
    assert conditions(strange) == []
    assert extract(strange, "7") is None
    assert check(strange, "7") == "wrong"
    with pytest.raises(UserMistake, match="no form 'odd'"):
        load("train", form="odd")
