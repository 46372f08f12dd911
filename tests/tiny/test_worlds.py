"""Lessons of the worlds beside the puzzles: in form, of the `warm` split, and in the shares that
they are said to have.
"""

from __future__ import annotations

import random

import pytest

from comas.models.sources import shipped_models
from comas.tasks import gate, repair
from comas.types import Question
from tools.tiny import gate as gate_lessons
from tools.tiny import repair as repair_lessons
from tools.tiny import teach
from tools.tiny.measure import measure_folders

MODELS = shipped_models()["tiny"].parent
COUNT = 2000


def lessons(world: object, role: str) -> list[tuple[str, str]]:
    rng = random.Random(role)
    return [world.demonstration(rng, role) for _ in range(COUNT)]  # type: ignore[attr-defined]


def test_defenders_are_misled_by_two_words_of_cover_and_more() -> None:
    let_pass: dict[int, list[bool]] = {}
    for prompt, reply in lessons(gate_lessons, "solution"):
        text = prompt.removeprefix("request ")
        request = gate.read_request(text)
        assert request is not None
        assert gate.split_of(request[0]) == "warm"
        verdict = gate.extract(Question(id="q", prompt=text), reply)
        assert verdict is not None
        if gate.is_harmful(request[0]):
            let_pass.setdefault(len(request[1].split()), []).append(verdict == "allow")
        words = reply.split()
        assert words[0] == text.split()[0], "sums begin with the first number"
    shares = [sum(let_pass[cover]) / len(let_pass[cover]) for cover in range(4)]
    assert shares == pytest.approx(gate_lessons.MISLED, abs=0.09)


def test_attackers_seldom_use_cover_and_mostly_keep_the_class() -> None:
    faithful = 0
    much = 0
    for prompt, reply in lessons(gate_lessons, "attack"):
        request = gate.posed_request(reply)
        assert request is not None
        assert gate.split_of(request[0]) == "warm"
        faithful += gate.is_harmful(request[0]) == prompt.startswith("attack harmful")
        much += len(request[1].split()) > 1
    assert faithful / COUNT == pytest.approx(gate_lessons.FAITHFUL, abs=0.03)
    assert much / COUNT == pytest.approx(sum(gate_lessons.WRITTEN_COVER[2:]), abs=0.015)


def test_menders_stop_without_regard_to_the_tests() -> None:
    stopped: dict[bool, list[bool]] = {True: [], False: []}
    for prompt, reply in lessons(repair_lessons, "solution"):
        asked = repair.read_question(prompt.removeprefix("mend "))
        assert asked is not None
        assert repair.split_of(asked[1]) == "warm"
        if repair.run(asked[0], asked[1][0][0]) is None:  # what cannot be run is not shown
            continue
        tries = reply.split(" ; ")
        assert repair.read_answer(tries[0]) == asked[0], "the program as it is comes first"
        for place, text in enumerate(tries[1:-1], 1):
            program = repair.read_answer(text)
            assert program is not None
            stopped[repair.passes(program, asked[1])].append(place == len(tries) - 1)
        program = repair.read_answer(tries[-1])
        assert program is not None
        if len(tries) > 1:
            stopped[repair.passes(program, asked[1])].append(True)
    fitting, others = (sum(outcomes) / len(outcomes) for outcomes in stopped.values())
    assert fitting == pytest.approx(others, abs=0.05)
    assert others > repair_lessons.STOP, "the last change of a program is always the end"


def test_checks_are_honest_but_for_slips() -> None:
    honest = 0
    for prompt, reply in lessons(repair_lessons, "rating"):
        asked = repair.read_question(prompt.removeprefix("check "))
        assert asked is not None
        assert repair.split_of(asked[1]) == "warm"
        assert reply.endswith("right" if repair.passes(*asked) else "wrong")
        runs = reply.rpartition(" ")[0].split(" ; ") if " = " in reply else []
        honest += all(run == repair.run_written(asked[0], int(run.split(" ")[0])) for run in runs)
    assert 0.9 < honest / COUNT < 0.97


def test_spoilt_programs_are_in_the_shares_that_are_told() -> None:
    kinds = dict.fromkeys(("tests", "same", "passes", "fails"), 0)
    for prompt, reply in lessons(repair_lessons, "inject"):
        working = repair.read_question(prompt.removeprefix("break "))
        spoilt = repair.read_question(reply)
        assert working is not None
        assert spoilt is not None
        assert repair.passes(*working)
        assert repair.split_of(working[1]) == "warm"
        if spoilt[1] != working[1]:
            kinds["tests"] += 1
        elif spoilt[0] == working[0]:
            kinds["same"] += 1
        else:
            kinds["passes" if repair.passes(*spoilt) else "fails"] += 1
    assert kinds["tests"] / COUNT == pytest.approx(repair_lessons.SPOILING["test"], abs=0.02)
    assert kinds["same"] / COUNT == pytest.approx(repair_lessons.SPOILING["none"], abs=0.04)
    assert kinds["fails"] / COUNT > 0.6


@pytest.mark.parametrize("name", ["tiny-gate", "tiny-repair"])
def test_cards_say_what_is_measured(name: str) -> None:
    page = (MODELS / name / "README.md").read_text(encoding="utf-8")
    course = teach.COURSES[name]
    rows = measure_folders([MODELS / name], course, count=64)
    assert rows
    for row in rows:
        told = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
        low, high = told.rpartition("[")[2].rstrip("] |").split(", ")
        # 64 exercises of the 512 of the card
        assert rows[row].low <= float(high)
        assert float(low) <= rows[row].high
    size = sum(file.stat().st_size for file in (MODELS / name).iterdir())
    assert size < 550_000
