"""Votes on programs: they agree where they do the same on the calls that their question shows, in a
real sandbox.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from comas import sandbox
from comas.answers import code
from comas.config.plugins import load_plugin
from comas.game.play import GameContext, play_all
from comas.methods import ttrl
from comas.sandbox.jail import Broken, Limits
from comas.sandbox.literals import plain
from comas.setups import vote
from comas.tasks import benchmarks, mbpp, mix
from comas.testing import cut, discuss, scripted_team
from comas.types import Episode, HostFailure, Method, Question, Task

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

SHOWN = Question(
    id="q",
    prompt=(
        "Square a number.\nYour program has to pass these tests:\nassert sq(3) == 9\nassert sq(-2)"
        " == 4"
    ),
    kind="coding",
)
BARE = Question(id="b", prompt="Write a function that squares a number.", kind="coding")
POWER = "def sq(x):\n    return x ** 2"
PRODUCT = "def sq(x):\n    y = x * x\n    return y"
TWICE = "def sq(x):\n    return x + x"
FLOAT = "def sq(x):\n    return float(x) * x"
CRASHES = "def sq(x):\n    return 1 / 0"
LOOPS = "def sq(x):\n    while True:\n        pass"
EXITS = "import os\ndef sq(x):\n    os._exit(0)"
OTHER_NAME = "def square(x):\n    return x * x"


def block(program: str) -> str:
    return f"Here it is.\n```python\n{program}\n```\n"


def ballots(question: Question, programs: list[str]) -> list[str | None]:
    return [code.ballot(question, p) for p in programs]


def voted(question: Question, programs: list[str], task: Task = mbpp.task) -> Episode:
    said = iter(programs)
    members, _ = scripted_team(lambda *_: block(next(said)), 2)
    context = GameContext(
        Method(vote.play, *[lambda *_: None] * 3), task, members, 0, {"votes": len(programs)}
    )
    return asyncio.run(play_all(context, [question], "eval"))[0]


def test_programs_that_do_the_same_agree() -> None:
    power, product, floating, twice = ballots(SHOWN, [POWER, PRODUCT, FLOAT, TWICE])
    assert power == product == floating
    assert power is not None
    assert code.same(power, product or "")
    assert twice not in (None, power)
    assert not code.same(power, twice or "")
    assert ballots(SHOWN, [POWER]) == [power]  # the same in another sandbox


def test_programs_that_give_no_value_have_no_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = sandbox._judged
    monkeypatch.setattr(sandbox, "_judged", lambda case, limits: judged(case, Limits(seconds=1)))
    assert ballots(SHOWN, [CRASHES, LOOPS, EXITS, OTHER_NAME]) == [None] * 4


def test_what_the_question_expects_decides_nothing() -> None:
    wrong = Question(
        id="w", prompt=SHOWN.prompt.replace("== 9", "== 10").replace("== 4", "== 0"), kind="coding"
    )
    assert ballots(wrong, [POWER, TWICE]) == ballots(SHOWN, [POWER, TWICE])


def test_without_calls_that_can_be_read_programs_agree_that_are_identical() -> None:
    counted = ballots(BARE, [POWER, PRODUCT, POWER + "  # the power"])
    assert counted == [POWER, PRODUCT, POWER + "  # the power"]
    assert code.same(counted[0] or "", counted[2] or "")
    assert not code.same(counted[0] or "", counted[1] or "")
    # nothing is called
    unknown = Question(id="u", prompt="Write it.\nassert 1 == 1", kind="coding")
    assert ballots(unknown, [POWER]) == [POWER]


def test_a_vote_and_ttrl_go_by_what_programs_do() -> None:
    programs = [TWICE, POWER, TWICE, PRODUCT, FLOAT, CRASHES, CRASHES, CRASHES, CRASHES]
    assert voted(SHOWN, programs).answer == block(POWER)
    assert voted(BARE, [POWER, TWICE, PRODUCT, TWICE]).answer == block(TWICE)
    assert voted(SHOWN, [CRASHES, CRASHES]).answer is None
    said = iter([*map(block, programs[:6]), cut(block(POWER)), "no program"])
    (episode,) = discuss(
        ttrl.method, mbpp.task, lambda *_: next(said), [SHOWN], options={"votes": 8}
    )
    assert [t.reward for t in episode.turns] == [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_a_sandbox_that_breaks_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(*_: Any) -> Any:
        tried.append(1)
        raise Broken("no more processes")

    monkeypatch.setattr(sandbox, "_judged", broken)
    with pytest.raises(HostFailure, match=r"q .*no more processes"):
        code.ballot(SHOWN, POWER)
    assert len(tried) == 2
    members, _ = scripted_team(lambda *_: block(POWER), 2)
    context = GameContext(
        Method(vote.play, *[lambda *_: None] * 3), mbpp.task, members, 0, {"votes": 4}
    )
    (episode,) = asyncio.run(play_all(context, [SHOWN], "eval"))
    assert "no more processes" in (episode.error or "")  # recorded, and left out of every count
    assert episode.answer is None


def test_once_more_where_a_sandbox_broke_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = sandbox._judged
    broke = iter([True, False])

    def once(case: Any, limits: Limits) -> Any:
        if next(broke):
            raise Broken("killed")
        return judged(case, limits)

    monkeypatch.setattr(sandbox, "_judged", once)
    assert (code.ballot(SHOWN, POWER) or "").startswith("does ")


def test_tests_in_functions_with_loops_and_names_of_their_own() -> None:
    shown = (
        "```python\nimport nowhere\ndef test_a():\n    for i, want in [(1, 1), (2, 4)]:\n       "
        " assert sq(i) == want\ndef test_b():\n    xs = [5]\n    assert sq(xs[0]) =="
        " 25\ntest_a()\n```"
    )
    question = Question(id="f", prompt=f"Square.\n{shown}\n\nGive it.", kind="coding")
    power, product, twice = ballots(question, [POWER, PRODUCT, TWICE])
    assert power == product
    assert power != twice
    only_last = "def sq(x):\n    return x * x if x < 5 else 0"
    # an assert that fails hides no later call
    assert ballots(question, [only_last])[0] not in (power, None)


def test_what_is_done_to_arguments_counts() -> None:
    question = Question(id="s", prompt="Sort in place.\nassert put([2, 1]) is None", kind="coding")
    sorts, also, not_ = ballots(
        question, ["def put(a): a.sort()", "def put(a): a[:] = sorted(a)", "def put(a): pass"]
    )
    assert sorts == also
    assert sorts != not_


def test_the_order_of_a_set_is_the_same_in_every_run() -> None:
    question = Question(
        id="s", prompt="Letters.\nassert letters('hello world') == 0", kind="coding"
    )
    assert len(set(ballots(question, ["def letters(t):\n    return list(set(t))"] * 4))) == 1


def test_equal_values_are_one_and_others_are_not() -> None:
    assert plain(4) == plain(4.0) == plain(True + 3)
    assert plain(0.1 + 0.2) == plain(0.3)
    assert plain({1: "a", 2: {3, 4}}) == plain({2: {4, 3}, 1: "a"})
    different = [
        0,
        1,
        None,
        "None",
        "1",
        [1],
        (1,),
        {1},
        {1: 1},
        [[1]],
        1e300,
        2**60,
        2**60 + 1,
        "",
        b"",
        float("inf"),
    ]
    assert len({str(plain(v)) for v in different}) == len(different)
    assert plain(10**5000) == plain(10**5000)


def test_examples_that_questions_show() -> None:
    stub = (
        'def add(x, y):\n    """ Add.\n    >>> add(2, 3)\n    5\n    add("a)", "(b") -> "a)(b";'
        ' add(x, y), add(), readd(1) """\n'
    )
    assert code.examples(f"Complete this function:\n{stub}") == 'add(2, 3)\nadd("a)", "(b")'
    assert code.examples(BARE.prompt) == ""
    assert code.examples(SHOWN.prompt) == "assert sq(3) == 9\nassert sq(-2) == 4"
    assert code.examples("One.\nassert that it works") == ""
    assert code.examples("```\nnot python here\n```") == ""
    assert code.examples("def f(x):\n" + "f(" * 500) == ""


def test_a_completion_is_counted_with_what_stands_before_its_function() -> None:
    prompt = 'import math\n\n\ndef root(x):\n    """ The root.\n    >>> root(9)\n    3\n    """'
    question = Question(id="h", prompt=benchmarks.LEAD + prompt, kind="coding")
    counted = [
        benchmarks.humaneval_ballot(question, f"def root(x):\n    return {how}")
        for how in ("math.isqrt(x)", "int(x ** .5)", "x")
    ]
    assert counted[0] == counted[1] is not None
    assert counted[2] not in (None, counted[0])


def test_in_the_mix_other_answers_count_as_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mix.ballot(Question(id="m", prompt="What is 6 * 7?", kind="math"), "42") == "42"
    power = mix.ballot(SHOWN, POWER) or ""
    twice = mix.ballot(SHOWN, TWICE) or ""
    assert power == code.ballot(SHOWN, POWER)
    monkeypatch.setattr("comas.answers.maths.same", lambda a, b: True)
    assert mix.same(power, power)
    assert not mix.same(power, twice)  # which is no mathematics
    assert [
        t.ballot is not None
        for t in (benchmarks.TASKS["humaneval"], mbpp.task, benchmarks.TASKS["kodcode"])
    ] == [True] * 3


@pytest.mark.skipif(
    "COMAS_DATA" not in os.environ, reason="COMAS_DATA names no folder with samples"
)
@pytest.mark.parametrize(
    ("name", "split", "readable"),
    [("humaneval", "test", 141), ("mbpp", "test", 500), ("mix", "train", 100)],
)
def test_most_real_questions_show_calls(name: str, split: str, readable: int) -> None:
    questions = [q for q in load_plugin("task", name).load(split) if q.kind == "coding"]
    assert sum(bool(code.examples(q.prompt)) for q in questions) >= readable


@pytest.mark.skipif(
    "COMAS_DATA" not in os.environ, reason="COMAS_DATA names no folder with samples"
)
def test_real_references_agree_with_themselves_in_other_words() -> None:
    import json

    rows = map(
        json.loads,
        (Path(os.environ["COMAS_DATA"]) / "humaneval_test.jsonl")
        .read_text(encoding="utf-8")
        .splitlines(),
    )
    programs = {
        benchmarks.LEAD + r["prompt"].strip(): (
            r["prompt"] + "    pass",
            r["prompt"] + r["canonical_solution"],
        )
        for r in rows
    }
    counted = 0
    for question in benchmarks.TASKS["humaneval"].load("test", limit=30):
        if not code.examples(question.prompt):
            continue
        (empty, program), bare = (
            programs[question.prompt],
            Question(id=question.id, prompt=question.prompt, kind=question.kind),
        )
        first, second = (
            benchmarks.humaneval_ballot(bare, program),
            benchmarks.humaneval_ballot(bare, f"answer = 42\n{program}\n# the end"),
        )
        assert first == second is not None, question.prompt
        assert benchmarks.humaneval_ballot(bare, empty) != first
        counted += 1
    assert counted > 20
