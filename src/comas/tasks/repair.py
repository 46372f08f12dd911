"""Programs of one line that fail a test, to be mended: the small world of faults and repairs.

A program is steps on one number, a test is what goes in and what has to come out, and a question
is both: `+ 4 ; x 2 | 4 -> 14 | 7 -> 20`. A reply runs its programs on the number of the first test,
one after another; the last one is the answer: `4 + 4 = 8 x 2 = 16 ; 4 + 3 = 7 x 2 = 14` mends it as
`+ 3 ; x 2`. What a reply says comes out on the way is not judged, only whether the program passes
all tests. Numbers go from 0 to 60, and whatever leaves them fails.

Questions are divided into four disjoint parts by a hash of their *tests*: `warm` (demonstrations of
the tiny model), `train`, `validation` and `test`, and nobody may pose those of the last two.
Leaves out: programs in a language that people use (`mbpp_repair`).
"""

from __future__ import annotations

import itertools
import operator
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from comas.questions.sources import check_asked, split_of_text
from comas.types import Question, Task, Verdict

SHARES = {"warm": 0.40, "train": 0.40, "validation": 0.05, "test": 0.15}
"""Share of the tests in each split, in the order in which the hash is cut."""
HELD_OUT = ("validation", "test")
"""Splits whose tests nobody may pose."""
FORMS = ("fault", "program")
LARGEST = 60
"""Largest number on the way through a program."""
INPUTS = range(1, 13)
"""Inputs of tests."""
TESTS = 2
DRAWS = 3
"""Pairs of tests per program."""

OPERATORS = {"+": operator.add, "-": operator.sub, "x": operator.mul}
Step = tuple[str, int]
"""An operation of `+ - x` and its number."""
Program = tuple[Step, ...]
STEPS = (
    *itertools.product("+-", range(1, 10)),
    ("x", 2),
    ("x", 3),
)
"""Steps of programs that are loaded; others can be written."""
LONGEST = 4
"""Steps of a program that is written, at most."""

WORDING = {
    "solution": "mend {question} {history}",
    "inject": "break {question}",
    "rating": "check {question}",
}
"""The task's wording per role: words of the tiny model's small vocabulary."""

_NUMBER = r"[0-9]{1,2}"
_STEP = re.compile(rf"([+x-]) ({_NUMBER})")
_PROGRAM = re.compile(rf"{_STEP.pattern}(?: ; {_STEP.pattern})*")
_RUN = re.compile(rf"{_NUMBER}(?: {_STEP.pattern} = {_NUMBER})+")
_TEST = re.compile(rf"({_NUMBER}) -> ({_NUMBER})")


def run(program: Program, value: int) -> int | None:
    """Return what comes out where `value` goes in; None where a number on the way is not of
    0..60.
    """
    for operation, n in program:
        value = OPERATORS[operation](value, n)
        if not 0 <= value <= LARGEST:
            return None
    return value


def passes(program: Program, tests: Sequence[tuple[int, int]]) -> bool:
    """Whether the program gives what every test expects."""
    return all(run(program, before) == after for before, after in tests)


def written(program: Program, tests: Sequence[tuple[int, int]]) -> str:
    """`+ 4 ; x 2 | 4 -> 14 | 7 -> 20`."""
    steps = " ; ".join(f"{operation} {n}" for operation, n in program)
    return " | ".join([steps, *(f"{before} -> {after}" for before, after in tests)])


def read_program(text: str) -> Program | None:
    """The steps of `+ 4 ; x 2`; None where the text is no program."""
    if not _PROGRAM.fullmatch(text):
        return None
    steps = tuple((operation, int(n)) for operation, n in _STEP.findall(text))
    return steps if len(steps) <= LONGEST else None


def read_question(text: str) -> tuple[Program, list[tuple[int, int]]] | None:
    """The program and the tests of `+ 4 ; x 2 | 4 -> 14 | 7 -> 20`; None where the text is not of
    that form, or does not have two tests of different numbers.
    """
    first, *rest = (part.strip() for part in text.split("|"))
    program = read_program(first)
    pairs = [_TEST.fullmatch(part) for part in rest]
    tests = [(int(test[1]), int(test[2])) for test in pairs if test is not None]
    if program is None or not len(pairs) == len(tests) == len(dict(tests)) == TESTS:
        return None
    return program, tests


def read_answer(text: str) -> Program | None:
    """The program of a reply's last run, or of a question as `shown` writes it."""
    shown = read_question(text)
    if shown is not None:
        return shown[0]
    runs = [part.strip() for part in text.split(";")]
    if not all(_RUN.fullmatch(each) for each in runs):
        return None
    return read_program(" ; ".join(step[0] for step in re.finditer(_STEP, runs[-1])))


def split_of(tests: Sequence[tuple[int, int]]) -> str:
    """The split that tests belong to, whatever their order and the program."""
    return split_of_text("repair", str(sorted(tests)), SHARES)


Tested = tuple[Program, tuple[tuple[int, int], ...]]
"""A program, and tests that it passes."""


@lru_cache
def programs(split: str) -> list[Tested]:
    """Every program of two steps with each of its pairs of tests that belong to a split."""
    by_tests: dict[Tested, None] = {}
    for program in itertools.product(STEPS, repeat=2):
        sound = [(n, after) for n in INPUTS if (after := run(program, n)) is not None]
        if len(sound) < TESTS:
            continue
        draw = random.Random(f"tests of {program}")
        for _ in range(DRAWS):
            tests = tuple(draw.sample(sound, TESTS))
            if split_of(tests) == split:
                by_tests[program, tests] = None
    return list(by_tests)


def changed(program: Program) -> Iterator[Program]:
    """The program with one number changed by one, in all ways that make a step of another one."""
    for place_, (operation, n) in enumerate(program):
        for other in (n + 1, n - 1):
            if (operation, other) in STEPS:
                yield (*program[:place_], (operation, other), *program[place_ + 1 :])


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "fault",
) -> list[Question]:
    """Questions of a split in an order drawn by `seed`, at most `limit`.

    Faults are programs with one number that is one off, and fail a test. In the form
    `program` the questions of `train` are programs that pass their tests, for those who spoil them.
    `path` must be None: all are generated.
    """
    check_asked("repair", split, SHARES, path, form, FORMS)
    if form == "program" and split == "train":
        questions = [make_question(*sound, "program", sound[0]) for sound in programs(split)]
    else:
        questions = [
            make_question(fault, tests, "fault", program)
            for program, tests in programs(split)
            for fault in changed(program)
            if not passes(fault, tests)
        ]
    distinct = list({question.id: question for question in questions}.values())
    random.Random(f"repair {split} {form} {seed}").shuffle(distinct)
    return distinct[:limit]


def make_question(
    program: Program,
    tests: Sequence[tuple[int, int]],
    kind: str = "fault",
    right: Program | None = None,
) -> Question:
    """The question how to mend a program, or (`kind="program"`) how to spoil it.

    Its `answer` is the run of a right one, where that is known.
    """
    prompt = written(program, tests)
    answer = None if right is None else run_written(right, tests[0][0])
    return Question(
        id=f"repair-{kind}-{prompt.replace(' ', '')}", prompt=prompt, kind=kind, answer=answer
    )


def run_written(program: Program, value: int) -> str:
    """`4 + 3 = 7 x 2 = 14`: what a program that keeps to 0..60 makes of a number."""
    text = str(value)
    for step in program:
        value = run((step,), value) or 0
        text += f" {step[0]} {step[1]} = {value}"
    return text


def extract(question: Question, text: str) -> str | None:
    """The last program of a reply (`+ 3 ; x 2`); None where the text does not keep to the form."""
    program = read_answer(text)
    return None if program is None else written(program, [])


def mending(
    read: Callable[[str], tuple[Any, Any] | None],
    answer: Callable[[Question, str], Any],
    written: Callable[[Any, Any], str],
    split_of: Callable[[Any], str],
    make: Callable[[Any, Any], Question],
    judge: Callable[[Any, Any], Verdict],
) -> dict[str, Any]:
    """The functions of a task whose questions are a program and its tests: `read` finds both in a
    text, `answer` the program of a reply, `written` is their text, `make` their question, and
    `judge` says whether the program passes the tests.
    """

    def pose(text: str) -> Question | None:
        """The program with tests that a text is, whether or not it fails them; None where it is
        none, or where the tests are held out.
        """
        parts = read(text.strip())
        return None if parts is None or split_of(parts[1]) in HELD_OUT else make(*parts)

    def shown(question: Question, text: str) -> str:
        """The reply's program with the tests of its question: a question like those that are
        asked.
        """
        asked = read(question.prompt)
        return written(answer(question, text) or "", asked[1] if asked else "")

    def check(question: Question, text: str) -> Verdict:
        """Whether the program of the text passes all tests of the question."""
        asked = read(question.prompt)
        program = answer(question, text)
        return "wrong" if asked is None or program is None else judge(program, asked[1])

    return {"pose": pose, "shown": shown, "check": check, "verify": check}


def _judge(program: Program, tests: Sequence[tuple[int, int]]) -> Verdict:
    return "right" if passes(program, tests) else "wrong"


MENDING = mending(
    read_question, lambda _, text: read_answer(text), written, split_of, make_question, _judge
)
pose, shown, check = (MENDING[name] for name in ("pose", "shown", "check"))
task = Task(
    name="repair",
    load=load,
    wording=WORDING,
    extract=extract,
    quick=True,
    **MENDING,
    max_tokens={"solution": 64, "inject": 24, "rating": 24},
    base="tiny-repair",
)
