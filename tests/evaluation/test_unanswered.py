"""Questions without an answer are not asked where accuracy is measured: others take their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comas.questions.checked import judged_of
from comas.tasks import jsonl
from comas.types import Question


def questions(answers: str) -> list[Question]:
    return [
        Question(id=str(place), prompt="?", answer=None if sign == "-" else sign)
        for place, sign in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "limit", "asked"),
    [("123456", 3, "123"), ("1-3456", 3, "134"), ("---4-6", 4, "46"), ("------", 3, "")],
)
def test_others_take_the_place_of_questions_without_an_answer(
    answers: str, limit: int, asked: str
) -> None:
    rows = questions(answers)
    found = judged_of(jsonl.task, rows[:limit], lambda limit: rows[:limit])
    assert "".join(question.answer or "" for question in found) == asked


def test_a_verifier_that_needs_no_answer_judges_all() -> None:
    rows = questions("--3")
    by_rules = replace(jsonl.task, verify=lambda *_: "wrong")
    assert judged_of(by_rules, rows, lambda limit: []) == rows
