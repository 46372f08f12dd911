"""Puzzles that agents pose: what is one, what is held out, which rules hold for any of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.prompts import defuse
from comas.tasks import pick
from comas.types import Question

NUMBERS = st.lists(st.integers(1, 15), min_size=4, max_size=4, unique=True)
TEXTS = st.text(alphabet="0123456789 +=;->#²٣a\n", max_size=60)
HELD_OUT_SET = next(iter(pick.number_sets("test", 4, 15)))


def _free(numbers: list[int]) -> bool:
    return pick.split_of(tuple(numbers)) in ("warm", "train")


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("10 5 6 9 -> 24", "10 5 6 9 -> 24"),
        (" 10 5 6 9 -> 24\n", "10 5 6 9 -> 24"),
        ("10 05 6 9 -> 24", "10 5 6 9 -> 24"),
        ("10 5 6 9 -> 60", "10 5 6 9 -> 60"),  # it cannot be solved, and is posed all the same
        ("10 + 5 = 15 + 9 = 24 ; 10 5 6 9 -> 24", "10 5 6 9 -> 24"),
        ("10 + 5 = 15 ; 10 ; 10 5 6 9 -> 24", "10 5 6 9 -> 24"),
        ("here: 10 5 6 9 -> 24", None),
        ("nonsense ; 10 5 6 9 -> 24", None),
        ("10 5 6 9 -> 24 ; 10 + 5 = 15 + 9 = 24", None),
        ("10 5 6 9 -> 24 ;", None),
        ("; 10 5 6 9 -> 24", None),
        ("10 5 6 9 -> 24 10 5 6 9 -> 24", None),
        ("10 5 6 -> 21", None),
        ("10 5 6 9 1 -> 24", None),
        ("10 5 5 9 -> 24", None),
        ("10 5 05 9 -> 24", None),
        ("10 5 0 9 -> 24", None),
        ("10 5 16 9 -> 24", None),
        ("10 5 6 9 -> 124", None),
        ("10 5 6 9 -> -4", None),
        ("10 5 6 9 -> ", None),
        ("10 5 6 9", None),
        ("10  5 6 9 -> 24", None),
        ("１０ 5 6 9 -> 24", None),
        ("", None),
        ("1 " * 9999, None),
        (f"{' '.join(map(str, HELD_OUT_SET))} -> 20", None),
    ],
)
def test_what_is_posed(text: str, prompt: str | None) -> None:
    assert _free([10, 5, 6, 9])
    posed = pick.pose(text)
    assert (posed and posed.prompt) == prompt


@given(NUMBERS, st.integers(0, 99))
def test_a_puzzle_is_posed_unless_its_numbers_are_held_out(numbers: list[int], target: int) -> None:
    text = f"{' '.join(map(str, numbers))} -> {target}"
    posed = pick.pose(text)
    assert (posed is not None) == _free(numbers)
    if posed is not None:
        assert posed.prompt == text == defuse(text)
        assert posed.meta == {"numbers": numbers, "target": target}
        assert (posed.kind, posed.answer) == ("three", None)
        assert re.fullmatch(r"[\w.-]+", posed.id)
        assert pick.pose(posed.prompt) == posed
        assert pick.pose(f"{numbers[0]} + {numbers[1]} ; {text}") == posed


@given(TEXTS)
def test_any_text_is_posed_or_refused_and_what_is_posed_poses_itself(text: str) -> None:
    posed = pick.pose(text)
    assert posed is None or pick.pose(posed.prompt) == posed
    question = Question(id="q", prompt=text, kind="three")
    assert pick.check(question, text) in ("right", "wrong")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "two"},
        {"form": "two", "count": 4},
        {"count": 5, "largest": 9},
        {"largest": 7},
    ],
)
def test_no_held_out_question_can_be_posed(options: dict) -> None:
    for split in ("validation", "test"):
        questions = pick.load(split, **options)
        assert questions
        assert all(pick.pose(q.prompt) is None for q in questions)


def test_questions_of_the_other_splits_pose_themselves() -> None:
    for split in ("warm", "train"):
        for question in pick.load(split):
            posed = pick.pose(question.prompt)
            assert posed is not None
            assert (posed.prompt, posed.kind, posed.meta) == (
                question.prompt,
                question.kind,
                question.meta,
            )


@pytest.mark.parametrize("form", pick.CHOSEN)
@pytest.mark.parametrize("split", pick.SHARES)
def test_check_agrees_with_verify_and_reads_no_label(form: str, split: str) -> None:
    rng = random.Random(f"{form} {split}")
    for question in pick.load(split, form=form, limit=100):
        bare = dataclasses.replace(question, answer=None, meta={})
        numbers = question.meta["numbers"]
        k = pick.CHOSEN[form]
        texts = ["", "1", question.prompt, f"{question.meta['target']}"]
        choices = itertools.permutations(numbers, k)
        texts += [f"{' + '.join(map(str, choice))} = {sum(choice)}" for choice in choices]
        texts += [f"{text} ; {rng.choice(texts)}" for text in texts[4:]]
        for text in texts:
            assert pick.check(bare, text) == pick.verify(question, text)


@given(NUMBERS.filter(_free), st.integers(3, 45), st.permutations(range(4)))
def test_check_holds_for_posed_puzzles(numbers: list[int], target: int, places: list[int]) -> None:
    posed = pick.pose(f"{' '.join(map(str, numbers))} -> {target}")
    assert posed is not None
    choice = [numbers[place] for place in places[:3]]
    verdict = pick.check(posed, " + ".join(map(str, choice)))
    assert verdict == ("right" if sum(choice) == target else "wrong")


def test_no_work_on_what_is_no_puzzle_is_right() -> None:
    for question in (
        Question(id="q", prompt="", kind="propose"),
        Question(id="q", prompt="10 5 6 9 -> 24", kind="propose"),
        Question(id="q", prompt="ten and five", kind="three"),
    ):
        assert pick.check(question, "10 + 5 = 15 + 9 = 24") == "wrong"


def test_roles_of_methods_that_pose_have_words_and_room() -> None:
    roles = {"judging", "sabotage", "propose", "evolve", "rating", "assess"}
    assert roles <= set(pick.WORDING)
    assert roles <= set(pick.task.max_tokens)
    reference = pick.WORDING["reference"].format(question="10 5 6 9 -> 24")
    evolve = pick.WORDING["evolve"].format(question="10 5 6 9 -> 24")
    assert pick.WORDING["propose"].format(history=reference) == evolve
