"""Programs of one line: the interpreter, what can be read and posed, what is held out."""

from __future__ import annotations

import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from comas.game.prompts import defuse
from comas.tasks import repair
from comas.tasks.repair import LARGEST, Program
from comas.testing import check_task
from comas.types import Question, UserMistake

STEPS = st.tuples(st.sampled_from("+-x"), st.integers(0, 9))
PROGRAMS = st.lists(STEPS, min_size=1, max_size=repair.LONGEST).map(tuple)
VALUES = st.integers(0, LARGEST)
TESTS = st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=2, unique_by=lambda test: test[0])


def by_hand(program: Program, value: int) -> int | None:
    """What Python makes of the program, number by number."""
    operators = {"+": operator.add, "-": operator.sub, "x": operator.mul}
    for operation, n in program:
        value = operators[operation](value, n)
        if value < 0 or value > LARGEST:
            return None
    return value


def question(program: Program, tests: list[tuple[int, int]]) -> Question:
    return Question(id="q", prompt=repair.written(program, tests))


@pytest.mark.parametrize("form", repair.FORMS)
def test_it_keeps_the_contract_of_tasks(form: str) -> None:
    check_task(repair.task, names=list(repair.SHARES), form=form)


@given(PROGRAMS, VALUES)
def test_the_interpreter_does_what_python_does(program: Program, value: int) -> None:
    assert repair.run(program, value) == by_hand(program, value)


@given(PROGRAMS, PROGRAMS, VALUES)
def test_a_program_after_another_is_their_concatenation(
    first: Program, second: Program, value: int
) -> None:
    between = repair.run(first, value)
    expected = None if between is None else repair.run(second, between)
    assert repair.run(first + second, value) == expected


@given(PROGRAMS, TESTS)
def test_what_is_written_is_read_again(program: Program, tests: list[tuple[int, int]]) -> None:
    text = repair.written(program, tests)
    assert defuse(text) == text
    assert repair.read_question(text) == (program, tests)
    posed = repair.pose(text)
    assert (posed is None) == (repair.split_of(tests) in repair.HELD_OUT)
    assert posed is None or posed.prompt == text
    assert repair.split_of(tests) == repair.split_of(tests[::-1])


@given(PROGRAMS, TESTS, VALUES)
def test_the_last_program_of_a_reply_is_run_on_all_tests(
    program: Program, tests: list[tuple[int, int]], value: int
) -> None:
    asked = question((("+", 1),), tests)
    reply = repair.run_written(program, value)
    assume(repair.run(program, value) is not None)
    verdict = "right" if repair.passes(program, tests) else "wrong"
    for text in (reply, f"3 + 4 = 9 ; {reply}", repair.written(program, tests)):
        assert repair.extract(asked, text) == repair.written(program, [])
        assert repair.check(asked, text) == verdict
        assert repair.shown(asked, text) == repair.written(program, tests)
    lies = reply[: reply.rindex("=")] + "= 60"
    assert repair.check(asked, lies) == verdict, "what is said to come out is not judged"


@pytest.mark.parametrize("split", repair.SHARES)
def test_loaded_faults_fail_and_their_answers_mend_them(split: str) -> None:
    for asked in repair.load(split, limit=200):
        found = repair.read_question(asked.prompt)
        assert found is not None
        assert not repair.passes(*found)
        assert asked.kind == "fault"
        assert repair.check(asked, asked.answer or "") == "right"
        assert repair.split_of(found[1]) == split


def test_working_programs_pass_and_only_train_has_them() -> None:
    for asked in repair.load("train", form="program"):
        assert asked.kind == "program"
        assert repair.check(asked, asked.prompt) == "right"
    assert {asked.kind for asked in repair.load("test", form="program")} == {"fault"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+ 5 ; x 2",
        "+ 5 ; x 2 | 4 -> 14",
        "+ 5 ; x 2 | 4 -> 14 | 4 -> 14",
        "+ 5 ; x 2 | 4 -> 14 | 4 -> 15 | 7 -> 20",
        "+ 5 ; x 2 | 4 -> 14 | 7 -> 20 |",
        "+ 5 ; / 2 | 4 -> 14 | 7 -> 20",
        "+ 5 x 2 | 4 -> 14 | 7 -> 20",
        "+ 1 ; + 1 ; + 1 ; + 1 ; + 1 | 4 -> 9 | 7 -> 12",
        "here: + 5 ; x 2 | 4 -> 14 | 7 -> 20",
    ],
)
def test_what_is_no_question(text: str) -> None:
    assert repair.pose(text) is None


def test_mistakes_are_told() -> None:
    with pytest.raises(UserMistake, match=r"task repair .*data=x"):
        repair.load("train", path="x")
    with pytest.raises(UserMistake, match=r"task repair .*'dev': one of warm"):
        repair.load("dev")
    with pytest.raises(UserMistake, match="no form 'bug': one of fault, program"):
        repair.load("train", form="bug")
