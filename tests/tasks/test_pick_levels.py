"""Puzzles of several levels: as many of each, held to the contract of tasks."""

from __future__ import annotations

from collections import Counter

import pytest

from comas.tasks import pick, pick_levels
from comas.testing import check_task
from comas.types import UserMistake


def test_contract() -> None:
    check_task(pick_levels.task)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_level_has_as_many_questions(split: str) -> None:
    questions = pick_levels.load(split)
    counts = Counter(question.kind for question in questions)
    assert set(counts) == {"three of 4", "three of 5", "three of 6"}
    assert len(set(counts.values())) == 1
    assert len({question.id for question in questions}) == len(questions)
    for question in questions[:200]:
        numbers = question.meta["numbers"]
        assert question.kind == f"three of {len(numbers)}"
        assert pick.split_of(tuple(sorted(numbers))) == split
        chosen = [int(n) for n in (question.answer or "").split()]
        answer = f"{chosen[0]} + {chosen[1]} = {sum(chosen[:2])} + {chosen[2]} = {sum(chosen)}"
        assert pick_levels.task.verify(question, answer) == "right"
        assert pick_levels.task.check(question, answer) == "right"
        assert pick_levels.task.verify(question, "1 + 1 = 2") == "wrong"
        assert pick_levels.task.shown(question, answer) == f"# {' '.join(map(str, chosen))}"


def test_posed_puzzles_are_of_the_first_level() -> None:
    posed = pick_levels.pose("10 5 6 9 -> 24")
    assert posed is not None
    assert posed.kind == "three of 4"
    assert pick_levels.pose("nothing") is None


def test_it_reads_no_file() -> None:
    with pytest.raises(UserMistake, match="task pick_levels"):
        pick_levels.load("train", path="x")
    assert pick_levels.load("train", limit=7, seed=1) == pick_levels.load("train", seed=1)[:7]
