"""What `tiny-repair` is taught: to mend and to spoil programs of `comas.tasks.repair`, at random.

Who mends runs the program on the first test, then with one number changed, in the order of the
steps, and stops at random, whether or not what comes out is what is expected. Who spoils changes a
number, mostly, or none, and copies the tests. Who checks runs a program on its tests up to the
first that fails: that teaches to compare, and nobody is told to mend by it. All tests come from the
`warm` split only. Leaves out: anything learnt from a test at the moment of choosing an answer.
"""

from __future__ import annotations

import random

from comas.game.agent import TeamMember
from comas.game.prompts import words
from comas.tasks import repair
from tools.tiny.course import Course, World
from tools.tiny.exercises import ask_each
from tools.tiny.posed_roles import Rows, share

WORDS = ("mend", "break", "-", "x", "|")
STOP = 0.3
"""Chance of stopping after a try."""
STOP_AT_FIRST = 0.05
"""The same after the program as it is."""
SLIP = 0.02
"""Share of false results."""
SPOILING = {"one": 0.72, "two": 0.08, "none": 0.15, "test": 0.05}
"""How many numbers of a program are changed, or whether what a test expects is."""


def demonstration(rng: random.Random, role: str) -> tuple[str, str]:
    """One prompt and reply of who mends (`solution`), spoils (`inject`) or checks (`rating`)."""
    program, tests = rng.choice(repair.programs("warm"))
    if role == "rating":
        return rate(rng, spoilt(rng, program, rng.choice(["one", "none"])), tests)
    if role == "solution":
        fault = spoilt(rng, program, rng.choices(["one", "two", "none"], [0.8, 0.1, 0.1])[0])
        return mend_prompt(repair.written(fault, tests)), mend(rng, fault, tests[0][0])
    how = rng.choices(list(SPOILING), list(SPOILING.values()))[0]
    written = repair.written(spoilt(rng, program, how), tests)
    if how == "test":
        (first, expected), other = tests
        wrong = max(0, min(repair.LARGEST, expected + rng.choice([-2, -1, 1, 2])))
        written = repair.written(program, [(first, wrong), other])
    return inject_prompt(repair.written(program, tests)), written


def spoilt(rng: random.Random, program: repair.Program, how: str) -> repair.Program:
    """The program with `one` or `two` numbers changed, or as it is."""
    if how in ("one", "two"):
        program = rng.choice(list(repair.changed(program)))
    return rng.choice(list(repair.changed(program))) if how == "two" else program


def mend(rng: random.Random, fault: repair.Program, value: int) -> str:
    """Runs of the program and of changed ones on a number, up to a stop at random."""
    lines = []
    for program in (fault, *repair.changed(fault)):
        if repair.run(program, value) is None:
            continue
        lines.append(_with_slips(rng, repair.run_written(program, value)))
        if rng.random() < (STOP_AT_FIRST if program == fault else STOP):
            break
    # where every run would leave the numbers that there are
    return " ; ".join(lines) or repair.run_written(fault, 0)


def rate(
    rng: random.Random, program: repair.Program, tests: tuple[tuple[int, int], ...]
) -> tuple[str, str]:
    """Runs of a program on its tests, up to the first that fails, and `right` or `wrong`."""
    lines = []
    passed = True
    for value, expected in tests:
        after = repair.run(program, value)
        if after is None:
            passed = False
            break
        lines.append(_with_slips(rng, repair.run_written(program, value)))
        passed = after == expected
        if not passed:
            break
    verdict = "right" if passed else "wrong"
    prompt = rating_prompt(repair.written(program, tests))
    return prompt, f"{' ; '.join(lines)} {verdict}".strip()


def _with_slips(rng: random.Random, text: str) -> str:
    parts = text.split(" ")
    for place in range(4, len(parts), 4):
        if rng.random() < SLIP:
            wrong = int(parts[place]) + rng.choice([-2, -1, 1, 2])
            parts[place] = str(max(0, min(repair.LARGEST, wrong)))
    return " ".join(parts)


def mend_prompt(question: str) -> str:
    """What who mends is asked."""
    return words({}, repair.task, "solution", question=question, history="")


def inject_prompt(question: str) -> str:
    """What who spoils is asked."""
    return words({}, repair.task, "inject", question=question)


def rating_prompt(question: str) -> str:
    """What who checks is asked."""
    return words({}, repair.task, "rating", question=question)


async def measure(member: TeamMember, count: int) -> Rows:
    """How often held-out faults are mended, and what becomes of working programs."""
    faults = repair.load("test", limit=count, seed=7)
    turns = await ask_each(member, "solution", [mend_prompt(q.prompt) for q in faults])
    pairs = list(zip(faults, turns, strict=True))
    working = repair.programs("test")[:count]
    prompts = [inject_prompt(repair.written(*each)) for each in working]
    spoiling = await ask_each(member, "inject", prompts)
    posed = [repair.read_question(turn.text) for turn in spoiling]
    same = [q is not None and q[1] == list(w[1]) for q, w in zip(posed, working, strict=True)]
    real = [q is not None and not repair.passes(*q) for q in posed]
    shown = [(q.prompt, "wrong") for q in faults] + [
        (repair.written(*each), "right") for each in working
    ]
    checked = await ask_each(member, "rating", [rating_prompt(text) for text, _ in shown])
    verdicts = [
        turn.text.rpartition(" ")[2] == said for (_, said), turn in zip(shown, checked, strict=True)
    ]
    return {
        "checks faults: says wrong": share(verdicts[: len(faults)]),
        "checks working programs: says right": share(verdicts[len(faults) :]),
        "mends held-out faults, T 1.0": share(
            t.finished and repair.check(q, t.text) == "right" for q, t in pairs
        ),
        "mends: keeps to the form": share(
            t.finished and repair.extract(q, t.text) is not None for q, t in pairs
        ),
        "spoils programs: keeps to the form": share(q is not None for q in posed),
        "spoils programs: leaves the tests as they are": share(same),
        "spoils programs: so that a test fails": share(
            kept and failing for kept, failing in zip(same, real, strict=True)
        ),
    }


COURSE = Course(
    seed=11,
    batch={"solution": 32, "inject": 12, "rating": 32},
    steps=1200,
    world=World(
        ("repair",),
        WORDS,
        demonstration,
        measure,
        "Demonstrations of mending run the program, then with one number changed, and stop at"
        " random; those of spoiling change one number of a working program in 72 of 100, two in 8,"
        " none in 15, and a test in 5; those of checking run a program on its tests.",
    ),
)
