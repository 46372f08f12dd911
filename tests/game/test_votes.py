"""Equal answers stand together, however they are spelt and whoever gives them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from comas.game.votes import alike, by_answer, most_frequent
from comas.tasks import pick
from comas.types import Turn


def same(a: str, b: str) -> bool:
    return Fraction(a) == Fraction(b)


TASK = replace(pick.task, same=same)


@pytest.mark.parametrize(
    ("answers", "groups"),
    [
        (["1/2", None, "3", "0.5", "3.0", "1/2"], [[0, 3, 5], [2, 4]]),
        (["2", "4/2", "2"], [[0, 1, 2]]),
        ([None, "7", "8", None], [[1], [2]]),
        ([None], []),
        ([], []),
    ],
)
def test_places_of_equal_answers(answers: list[str | None], groups: list[list[int]]) -> None:
    assert alike(answers, TASK) == groups
    turns = [turn(str(place), answer) for place, answer in enumerate(answers)]
    found = by_answer(turns, TASK)
    assert [[int(one.id) for one in group] for group in found] == groups


def turn(name: str, answer: str | None) -> Turn:
    said = answer or ""
    return Turn(name, "a", "h/a", "solution", "", said, True, 0, info={"answer": answer})


def test_an_answer_that_cannot_be_read_counts_among_all_and_for_nobody() -> None:
    said = [turn(f"s{n}", answer) for n, answer in enumerate(("7", None, "7", None))]
    assert most_frequent(said, TASK) == ("7", 0.5)
