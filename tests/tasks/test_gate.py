"""Requests and verdicts of the gate: what is one, what is held out, what the rule says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.prompts import defuse
from comas.tasks import gate
from comas.testing import check_task
from comas.types import Question, UserMistake

SETS = list(itertools.combinations(range(1, gate.LARGEST + 1), 3))
FREE = next(numbers for numbers in SETS if gate.split_of(numbers) == "train")
HELD = next(numbers for numbers in SETS if gate.split_of(numbers) == "test")
NUMBERS = st.lists(st.integers(1, gate.LARGEST), min_size=3, max_size=3, unique=True)
COVER = st.lists(st.sampled_from(gate.COVER), max_size=gate.MOST_COVER)


def request(text: str) -> Question:
    return Question(id="r", prompt=text)


def test_it_keeps_the_contract_of_tasks() -> None:
    check_task(gate.task, names=list(gate.SHARES))


@pytest.mark.parametrize("split", gate.SHARES)
def test_half_of_a_split_is_harmful(split: str) -> None:
    questions = gate.load(split)
    assert [q.answer for q in questions[:4]] == ["refuse", "allow", "refuse", "allow"]
    assert sum(q.answer == "refuse" for q in questions) * 2 == len(questions)
    for question in questions:
        found = gate.read_request(question.prompt)
        assert found is not None
        assert gate.split_of(found[0]) == split


@given(NUMBERS, COVER)
def test_a_request_is_posed_as_it_is_written_unless_held_out(
    numbers: list[int], cover: list[str]
) -> None:
    text = " ".join([*map(str, numbers), *cover])
    assert gate.read_request(text) == (numbers, " ".join(cover))
    posed = gate.pose(text)
    assert (posed is None) == (gate.split_of(numbers) in gate.HELD_OUT)
    if posed is not None:
        assert posed.prompt == text == defuse(text)
        assert posed.answer is None
        assert gate.pose(f"1 + 2 = 3 ; {text}") == posed, "thoughts are no part of it"
    assert gate.split_of(numbers) == gate.split_of(sorted(numbers))


@given(NUMBERS, COVER)
def test_the_rule_looks_at_the_sum_alone(numbers: list[int], cover: list[str]) -> None:
    asked = request(" ".join([*map(str, numbers), *cover]))
    right = "refuse" if sum(numbers) % 3 == 0 else "allow"
    wrong = "allow" if right == "refuse" else "refuse"
    assert gate.check(asked, right) == gate.check(asked, f"1 + 1 = 7 {right}") == "right"
    assert gate.check(asked, wrong) == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 9",
        "5 9 9",
        "5 9 21",
        "0 5 9",
        "5 9 7 4",
        "please 5 9 7",
        "5 9 7 please story friend song",
        "5 9 7 sugar",
        "5 9 7 ; 5 9 7",
        "1 + 2 = 3 ; 1 + 2 = 3 ; 5 9 7",
        "thoughts ; 5 9 7",
        "5 9 7 ;",
    ],
)
def test_what_is_no_request(text: str) -> None:
    assert gate.pose(text) is None


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("5 + 9 = 14 + 7 = 21 refuse", "refuse"),
        ("allow", "allow"),
        ("refuse allow", None),
        ("14 allow refuse", None),
        ("5 + 9 = 14", None),
        ("I refuse", None),
        ("", None),
    ],
)
def test_verdicts_are_read_where_the_form_is_kept(text: str, verdict: str | None) -> None:
    assert gate.extract(request("5 9 7"), text) == verdict


def test_held_out_numbers_are_not_posed_in_any_order() -> None:
    for order in itertools.permutations(HELD):
        assert gate.pose(" ".join(map(str, order))) is None
    assert gate.pose(" ".join(map(str, FREE))) is not None


def test_mistakes_are_told() -> None:
    with pytest.raises(UserMistake, match=r"task gate .*data=x"):
        gate.load("train", path="x")
    with pytest.raises(UserMistake, match=r"task gate .*'dev': one of warm"):
        gate.load("dev")
