"""The world of facts: what is true in it, what may be posed, what its tool says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.tasks import facts
from comas.testing import check_task
from comas.types import ToolFailure, UserMistake


@pytest.mark.parametrize("form", facts.FORMS)
def test_contract(form: str) -> None:
    if form == "chains":
        check_task(facts.task)
    held = facts.load("test", form=form)
    assert held
    for question in held:
        right = str(question.answer)
        assert facts.check(question, f"it is {right}") == "right"
        assert facts.check(question, str((int(right) + 1) % facts.SIZE)) == "wrong"
        assert facts.pose(question.prompt) is None


@given(start=st.integers(0, facts.SIZE - 1), steps=st.integers(1, facts.LONGEST))
def test_following_is_looking_up_again_and_again(start: int, steps: int) -> None:
    number = start
    for _ in range(steps):
        known, _, number_text = facts.WORLD.look_up(str(number)).partition(" -> ")
        assert known == str(number)
        assert facts.WORLD.look_up(f"-> {number_text}") == f"{number} -> {number_text}"
        number = int(number_text)
    question = facts.make_question(start, steps, None)
    assert facts.check(question, f"{number}") == "right"


def test_splits_are_disjoint_and_held_out_chains_cannot_be_posed() -> None:
    seen: set[str] = set()
    for split in facts.SHARES:
        prompts = {question.prompt for question in facts.load(split, hops=4)}
        assert not prompts & seen
        seen |= prompts
        posed = [facts.pose(prompt) for prompt in prompts]
        assert all((found is None) == (split in facts.HELD_OUT) for found in posed)
    assert len(seen) == 4 * facts.SIZE


@pytest.mark.parametrize("text", ["", "7", "7 ->x", "61 ->", "7" + " ->" * 7, "-> 7", "7 -> = 61"])
def test_what_is_no_chain_is_not_posed(text: str) -> None:
    assert facts.pose(text) is None


def test_a_posed_chain_has_the_answer_that_its_author_gives() -> None:
    start = next(n for n in range(facts.SIZE) if facts.split_of(facts.chain(n, 2)) == "train")
    with_answer = facts.pose(f"{start} -> -> = 9")
    without = facts.pose(f" {start} -> ->\n")
    assert with_answer is not None
    assert without is not None
    assert (with_answer.prompt, with_answer.answer) == (f"{start} -> ->", "9")
    assert (without.prompt, without.answer) == (f"{start} -> ->", None)


@pytest.mark.parametrize("words", ["", "61", "seven", "7 8", "-> ", "7 ->"])
def test_a_search_for_what_is_no_number_finds_nothing(words: str) -> None:
    with pytest.raises(ToolFailure, match="nothing"):
        facts.WORLD.look_up(words)


def test_pages_hold_what_a_held_out_chain_needs() -> None:
    for question in facts.load("test", form="pages", hops=3, pages=8):
        shown, _, chain = question.prompt.partition(" find ")
        pages = [page.strip() for page in shown.split(";") if page.strip()]
        assert len(pages) == 8
        start, steps, _ = facts.read_chain(chain) or (0, 0, None)
        for place in range(steps):
            assert facts.WORLD.fact(facts.WORLD.follow(start, place)) in pages


def test_mistakes_are_one_line() -> None:
    for keys in ({"path": "x"}, {"form": "chain"}, {"hops": 7}, {"hops": 1, "least": 2}):
        with pytest.raises(UserMistake):
            facts.load("train", **keys)
    with pytest.raises(UserMistake, match=r"task_options\.pages is 2, .* 3 steps"):
        facts.load("test", form="pages", pages=2)
