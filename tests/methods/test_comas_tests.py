"""Programs that are judged by running them on inputs of their colleagues: what can be read as an
input, what is rewarded, and the game itself in a real sandbox.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from comas import sandbox
from comas.game.agent import TeamMember
from comas.game.play import GameContext, play_all
from comas.methods import comas_tests
from comas.methods.comas_tests import (
    function_of,
    method,
    parameters_of,
    read_input,
    separation,
    showing,
)
from comas.sandbox.jail import Broken, Limits
from comas.tasks import benchmarks, mbpp
from comas.testing import Scripted, check_method, cut, discuss
from comas.types import CannotBePlayed, Episode, Question, Reply, Task, Turn, UserMistake
from tests.support import runs
from tests.support.platforms import needs_sandbox
from tests.support.scripts import POWER, PRODUCT, SQUARE, TWICE, block, programmer

needs_data = pytest.mark.skipif(
    "COMAS_DATA" not in os.environ, reason="COMAS_DATA names no folder with samples"
)

CRASHES = "def sq(x):\n    return 1 / 0"
LOOPS = "def sq(x):\n    while True:\n        pass"


# --- what can be read as an input


def said(text: str, finished: bool = True) -> Turn:
    return Turn("e", "a", "h/a", "evaluation", "", text, finished, 0, kind="judge")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("f([1, 2], 3)", "f([1, 2], 3)"),
        ("An edge case is the empty list.\n\n  f([],3)  \n", "f([], 3)"),
        ("`f('a')`", "f('a')"),
        ("So:\n```python\nf(\n    {1: (2,)},\n    key=None,\n)\n```", "f({1: (2,)}, key=None)"),
        ("```\nf(-1.5, 2+3j, b'x', set())\n```\n", "f(-1.5, 2 + 3j, b'x', set())"),
        ("f()", "f()"),
        ("f('```')", "f('```')"),
        ("f(1)  # below all examples", "f(1)"),
        # an expected output, which is not looked at
        ("f(1) == 2", "f(1)"),
        ("assert f(1) == g(2)", "f(1)"),
        ("assert f('a'), 'why'", "f('a')"),
        ("assert (f(1)) == 2", "f(1)"),
        # other tests, a second call
        ("2 == f(1)", None),
        ("f(1) != 2", None),
        ("f(1) == 2 == 2", None),
        ("assert not f(1)", None),
        ("assert f(1) == 2 and f(2) == 3", None),
        ("assert f(1) == 2; assert f(2) == 3", None),
        ("assert abs(f(1) - 2) < 1", None),
        ("f(1), f(2)", None),
        ("f(1); f(2)", None),
        ("```\nf(1)\nf(2)\n```", None),
        ("f(1)(2)", None),
        ("print(f(1))", None),
        ("x = f(1)", None),
        # no literals
        ("f(f(1))", None),
        ("f(g(1))", None),
        ("f(x)", None),
        ("f(...)", None),
        ("f([..., 1])", None),
        ("f(10 ** 9)", None),
        ("f('a' * 10)", None),
        ("f([0 for _ in range(9)])", None),
        ("f(*[1])", None),
        ("f(**{'x': 1})", None),
        ("f({[]: 1})", None),
        ("f(f'{1}')", None),
        ("f(lambda: 1)", None),
        # another function
        ("__import__('os')", None),
        ("g(1)", None),
        ("os.f(1)", None),
        ("eval('f(1)')", None),
        # none at the end
        ("f(1)\nThat is it.", None),
        ("```python\nf(1)\n```\nThat is it.", None),
        ("The input: f(1)", None),
        ("f(1", None),
        ("```", None),
        ("f(1)\n```", None),
        ("", None),
        ("\x00", None),
        ("f(" + "[" * 400 + "]" * 400 + ")", None),
        ("f(" + "-" * 900 + "1)", None),
        (f"f('{'a' * 1000}')", None),
    ],
)
def test_one_call_with_literal_arguments_is_an_input(text: str, call: str | None) -> None:
    assert read_input(said(text), "f") == call


def test_a_reply_that_was_cut_is_no_input() -> None:
    assert read_input(said("f(1)", finished=False), "f") is None


def test_any_function_may_be_called_where_the_question_names_none_but_none_of_pythons() -> None:
    assert read_input(said("area(2)"), None) == "area(2)"
    assert read_input(said("__import__('os')"), None) is None
    assert read_input(said("print(2)"), None) is None


@pytest.mark.parametrize(
    "calls",
    [
        ("f(1)", "f(+1)", "f( 1 )", "f(0x1)"),
        ("f(0)", "f(-0)"),
        ("f({1, 2})", "f({2, 1, 1})"),
        ("f({1: 2, 3: 4})", "f({3: 4, 1: 2})"),
        ("f([{2, 1}], (3,))", "f([{1, 2}], (3,))"),
        ("f('a')", 'f("a")', "f('' 'a')"),
        ("f(1, y=2)", "f(1, 2)", "f(x=1, y=2)", "f(y=2, x=1)"),
    ],
)
def test_calls_with_the_same_values_are_one_input(calls: tuple[str, ...]) -> None:
    assert len({read_input(said(call), "f", ["x", "y"]) for call in calls}) == 1


@pytest.mark.parametrize(
    "calls",
    [
        ("f(1)", "f(True)", "f(1.0)", "f('1')"),
        ("f((1, 2))", "f([1, 2])", "f(1, 2)"),
        ("f(x=1)", "f(y=1)"),
    ],
)
def test_calls_with_other_values_are_other_inputs(calls: tuple[str, ...]) -> None:
    assert len({read_input(said(call), "f", ["x", "y"]) for call in calls}) == len(calls)


def test_parameters_are_those_that_the_question_shows() -> None:
    assert parameters_of("def f(x, y: int = 2) -> int:\n", "f") == ["x", "y"]
    assert parameters_of("def f(x, *, y):\n", "f") == []
    assert parameters_of("def f(\n    x,\n    y=2,\n) -> int:\n    ...", "f") == ["x", "y"]
    assert parameters_of("def f(x,\n", "f") == []
    assert parameters_of("assert f(1) == 2", "f") == parameters_of("", None) == []
    assert read_input(said("f(y=2, x=1)"), "f") == read_input(said("f(x=1, y=2)"), "f")
    assert read_input(said("f(1, x=2)"), "f", ["x"]) is None


@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    call = read_input(said(text), None)
    assert call is None or read_input(said(call), None) == call


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        (SQUARE.prompt, "sq"),
        ("Sort.\nassert set(uniq((1, 2))) == set(both(3))", "uniq"),
        ("Near.\n    assert math.isclose(half(1), 0.5)", "half"),
        ("Tall.\nassert (height(root)) == 3", "height"),
        ("Complete:\ndef helper(x):\n    return x\n\ndef wanted(x):\n    ...", "wanted"),
        ("Write `def area(w, h):` for a rectangle.", "area"),
        ("Write a function that squares.", None),
        ("Assert that it works (always).", None),
    ],
)
def test_the_function_that_a_question_asks_for(prompt: str, name: str | None) -> None:
    assert function_of(prompt) == name


# --- what is rewarded


def episode(
    inputs: Sequence[tuple[str | None, Sequence[int | None]]], readable: Sequence[bool]
) -> Episode:
    """Programs that can be read or not, and inputs with the clusters that they make of them."""
    turns = [
        Turn(
            f"s{place}",
            "a",
            "h/a",
            "solution",
            "",
            f"{place}",
            True,
            0,
            info={"readable": can},
            kind="answer",
        )
        for place, can in enumerate(readable)
    ]
    for place, (call, clusters) in enumerate(inputs):
        info = {"input": call} if call is None else {"input": call, "clusters": list(clusters)}
        turns.append(
            Turn(f"e{place}", "b", "h/b", "evaluation", "", "", True, 0, info=info, kind="judge")
        )
    return Episode("q", SQUARE, turns)


def paid(inputs: Sequence[tuple[str | None, Sequence[int | None]]], readable: str) -> list[Any]:
    """What a matrix pays: of programs first, of inputs then."""
    played = episode(inputs, [sign == "+" for sign in readable])
    comas_tests.settle([played], mbpp.task)
    return [turn.reward for turn in played.turns]


N = None
ALONG = [0, 0, 0, 1]
"""The last program differs."""


@pytest.mark.parametrize(
    ("inputs", "programs", "critics"),
    [
        # all agree: programs have the full reward, inputs none
        ([("f(1)", [0, 0, 0, 0]), ("f(2)", [0, 0, 0, 0])], [1, 1, 1, 1], [0, 0]),
        # all crash
        ([("f(1)", [N] * 4), ("f(2)", [N] * 4)], [0, 0, 0, 0], [0, 0]),
        # both tell the last one apart
        ([("f(1)", ALONG), ("f(2)", ALONG)], [0.75, 0.75, 0.75, 0], [1, 1]),
        # crashing alike is no agreement
        ([("f(1)", [0, N, N, N]), ("f(2)", [0, 0, 0, 0])], [0.625, 0.5, 0.5, 0.5], [0, 0]),
        # two clusters of the same size are none
        ([("f(1)", [0, 0, 1, 1]), ("f(2)", ALONG)], [0.375, 0.375, 0.375, 0], [0, 0]),
        ([("f(1)", [0, 1, 2, 3]), ("f(2)", ALONG)], [0.375, 0.375, 0.375, 0], [0, 0]),
        # an input that tells the first one apart, against two that tell the last one apart
        (
            [("f(1)", ALONG), ("f(2)", ALONG), ("f(3)", [0, 1, 1, 1])],
            [0.5, 0.75, 0.75, 0.25],
            [pytest.approx(1 / math.sqrt(3)), pytest.approx(1 / math.sqrt(3)), -1 / 3],
        ),
        # one input alone has nothing to be compared with
        ([("f(1)", ALONG)], [0.75, 0.75, 0.75, 0], [N]),
        # nor has one that two critics wrote; it counts once
        (
            [("f(1)", ALONG), ("f(1)", ALONG), ("f(2)", [0, 0, 0, 0])],
            [0.875, 0.875, 0.875, 0.5],
            [0, 0, 0],
        ),
        ([("f(1)", ALONG), ("f(1)", ALONG)], [0.75, 0.75, 0.75, 0], [N, N]),
        # what cannot be read judges nobody
        ([(N, []), ("f(2)", ALONG)], [0.75, 0.75, 0.75, 0], [-1, N]),
        ([(N, []), (N, [])], [N, N, N, N], [-1, -1]),
    ],
)
def test_pay_of_a_matrix(inputs: Any, programs: list[Any], critics: list[Any]) -> None:
    assert paid(inputs, "++++") == [*programs, *critics]


def test_programs_that_run_on_nothing_bear_no_input_out() -> None:
    """The last one cannot be read, the one before crashes on everything."""
    inputs = [("f(1)", [0, 0, N, N]), ("f(2)", [0, 0, N, N])]
    assert paid(inputs, "+++-") == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_what_is_unreadable_is_paid_without_any_input() -> None:
    assert paid([(None, [])], "+-") == [None, 0.0, -1.0]
    assert paid([("f(1)", [None, None]), ("f(2)", [None, None])], "--") == [0.0] * 4


def test_the_inputs_pay_does_not_depend_on_their_order() -> None:
    matrix = {"f(1)": ALONG, "f(2)": [0, 0, 1, 1], "f(3)": [0, N, 0, 1]}
    turned = dict(reversed(matrix.items()))
    assert [separation(call, matrix) for call in matrix] == [
        separation(call, turned) for call in matrix
    ]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), max_size=8))
def test_rank_correlation_is_kendalls(pairs: list[tuple[int, int]]) -> None:
    xs = [x for x, _ in pairs]
    ys = [y for _, y in pairs]
    found = comas_tests.rank_correlation(xs, ys)
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        assert found == 0.0
    else:
        assert found == pytest.approx(kendalltau(xs, ys).statistic)


def test_replies_of_one_policy_to_one_question_are_compared_by_role() -> None:
    played = episode([("f(1)", ALONG), (None, [])], [True] * 4)
    comas_tests.settle([played], mbpp.task)
    assert [turn.group for turn in played.turns] == ["q/h/a/solution"] * 4 + [
        "q/h/b/evaluation"
    ] * 2


# --- the game


def game(
    programs: Sequence[str | Reply],
    inputs: Sequence[str | Reply],
    question: Question = SQUARE,
    task: Task = mbpp.task,
    agents: int = 1,
) -> Episode:
    """A discussion in which these are said."""
    options = {"programs": len(programs), "inputs": len(inputs)}
    script = {"solution": list(programs), "evaluation": list(inputs)}
    (played,) = discuss(method, task, script, [question], agents=agents, options=options)
    assert played.error is None
    return played


def rewards(played: Episode) -> list[float | None]:
    """Of programs first, of inputs then."""
    by_id = {turn.id.split("/")[-1]: turn.reward for turn in played.turns}
    return [by_id[name] for name in sorted(by_id, key=lambda name: (name[0] != "s", name))]


@needs_sandbox
def test_contract() -> None:
    questions = [SQUARE, replace(SQUARE, id="other", prompt=f"{SQUARE.prompt}\nassert sq(0) == 0")]
    check_method(method, mbpp.task, questions, programmer, options={"programs": 4, "inputs": 3})


@needs_sandbox
def test_a_program_that_differs_is_found_by_the_input_that_shows_it() -> None:
    """`sq(2)` and `sq(0)` cannot tell a square from a double."""
    programs = [block(TWICE), block(POWER), block(PRODUCT), block(POWER + "  # again")]
    played = game(programs, ["sq(5)", "assert sq(-1) == 7", "sq(2)", "sq(x)"])
    assert rewards(played) == pytest.approx([1 / 3, 5 / 6, 5 / 6, 5 / 6, 1, 1, 0, -1])
    assert played.answer == block(POWER)


@needs_sandbox
def test_crashes_and_time_outs_are_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = sandbox._judged
    monkeypatch.setattr(sandbox, "_judged", lambda case, limits: judged(case, Limits(seconds=1)))
    played = game([block(CRASHES), block(CRASHES), block(LOOPS), block(POWER)], ["sq(5)", "sq(7)"])
    clusters = [turn.info["clusters"] for turn in played.turns if turn.role == "evaluation"]
    assert clusters == [[None, None, None, 0]] * 2
    assert rewards(played) == [0, 0, 0, 0.25, 0, 0]
    assert played.answer == block(POWER)


@needs_sandbox
def test_the_calls_that_the_question_shows_are_not_run() -> None:
    """On 3 and -2, which are shown, this one does as the others do."""
    by_heart = "def sq(x):\n    return {3: 9, -2: 4}.get(x, 0)"
    played = game([block(POWER), block(by_heart)], ["sq(3)", "sq(5)"])
    clusters = [turn.info["clusters"] for turn in played.turns if turn.role == "evaluation"]
    assert clusters == [[0, 0], [0, 1]]


@needs_sandbox
def test_a_completion_is_run_behind_what_stands_before_its_function() -> None:
    prompt = 'import math\n\n\ndef root(x):\n    """ The root.\n    >>> root(9)\n    3\n    """'
    question = Question(id="h", prompt=benchmarks.LEAD + prompt, kind="coding")
    programs = [f"def root(x):\n    return {how}" for how in ("math.isqrt(x)", "int(x ** .5)", "x")]
    played = game(
        [*map(block, programs)], ["root(16)", "root(1)"], question, benchmarks.TASKS["humaneval"]
    )
    assert rewards(played) == pytest.approx([5 / 6, 5 / 6, 0.5, 0, 0])


@needs_sandbox
def test_a_call_that_cannot_be_made_gives_no_output() -> None:
    played = game(
        [block(POWER), block(PRODUCT)], ["sq(" + "[" * 70 + "]" * 70 + ")", "sq(1, 2)", "sq(y=3)"]
    )
    assert rewards(played) == [0.0] * 5


def test_without_a_readable_program_nothing_is_run() -> None:
    task = replace(mbpp.task, ballot=None)
    played = game(
        ["no program", cut(block(POWER)), block("def sq(")], ["sq(5)", "sq(6)"], task=task
    )
    assert rewards(played) == [0.0] * 5
    assert played.answer is None


def test_without_a_readable_input_the_first_readable_program_answers() -> None:
    task = replace(mbpp.task, ballot=None)
    played = game(["no program", block(TWICE), block(POWER)], ["sq(x)", ""], task=task)
    assert rewards(played) == [0.0, None, None, -1.0, -1.0]
    assert played.answer == block(TWICE)


def test_a_sandbox_that_breaks_down_ends_the_discussion(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise Broken("no more processes")

    monkeypatch.setattr(sandbox, "_judged", broken)
    script = {"solution": block(POWER), "evaluation": "sq(5)"}
    (played,) = discuss(method, mbpp.task, script, [SQUARE])
    assert "no more processes" in (played.error or "")
    assert [turn.reward for turn in played.turns] == [None] * 8


def test_nobody_sees_another_reply_or_a_test_that_is_not_shown() -> None:
    task = replace(mbpp.task, ballot=lambda question, program: "does the same")
    script = {"solution": block(POWER), "evaluation": "sq(5)"}
    (played,) = discuss(method, task, script, [SQUARE])
    assert len({(turn.role, turn.prompt) for turn in played.turns}) == 2
    for turn in played.turns:
        assert SQUARE.prompt in turn.prompt
        assert "1234" not in turn.prompt
    assert not method.supervised
    assert not method.grounded


@pytest.mark.parametrize("agents", [1, 2, 3, 4])
def test_each_policy_writes_two_of_a_kind_at_least(agents: int) -> None:
    task = replace(mbpp.task, ballot=lambda question, program: "does the same")
    script = {"solution": block(POWER), "evaluation": "sq(5)"}
    asked = set()
    for seed in range(12):
        (played,) = discuss(method, task, script, [SQUARE], agents=agents, seed=seed)
        groups = Counter(turn.group for turn in played.turns)
        assert set(groups.values()) == ({4} if agents == 1 else {2})
        asked |= {(turn.agent, turn.role) for turn in played.turns}
    assert len(asked) == 2 * agents


def test_a_team_without_critics_is_told() -> None:
    host = Scripted({"solution": block(POWER)})
    members = [TeamMember("a", host, "a", roles=("solution",))]
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(play_all(GameContext(method, mbpp.task, members, 0), [SQUARE], 0))
    assert caught.group_contains(CannotBePlayed, match="role 'evaluation'")


def test_a_task_whose_answers_are_no_programs_is_a_mistake_at_the_start() -> None:
    with pytest.raises(UserMistake, match=r"comas_tests .*`ballot`, .*task pick"):
        runs.planned(["method=comas_tests", "task=pick"])


@needs_data
@needs_sandbox
def test_three_real_questions() -> None:
    """A program that gives its first argument, and one that gives how many there are."""
    questions = mbpp.load("train", limit=3, parts=True)
    for question in questions:
        name = function_of(question.prompt)
        assert name in question.meta["names"]
        assert f"assert {name}(1)" in showing(question, f"{name}(1)").prompt
        first = block(f"def {name}(*given):\n    return given[0]")
        count = block(f"def {name}(*given):\n    return len(given)")
        played = game([first, count, first], [f"{name}(7, 8)", f"{name}(1)", "?"], question)
        assert rewards(played) == pytest.approx([5 / 6, 0.5, 5 / 6, 0, 0, -1])
        assert played.answer == first
