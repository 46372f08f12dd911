"""What scripted agents say in the games of methods, by their prompts and seeds alone.

`comas.testing.golden_script` speaks for methods that ask about the task `pick`.
"""

from __future__ import annotations

import random
from typing import Any

from comas.tasks import facts, gate, repair
from comas.testing import cut
from comas.types import Question, Reply

WORLD = facts.WORLD
SQUARE = Question(
    id="square",
    prompt=(
        "Square a number.\nYour program has to pass these tests:\nassert sq(3) == 9\nassert sq(-2)"
        " == 4"
    ),
    kind="coding",
    answer="tests",
    meta={"tests": "assert sq(1234) == 1522756", "names": ["sq"]},
)
POWER = "def sq(x):\n    return x ** 2"
PRODUCT = "def sq(x):\n    return x * x"
TWICE = "def sq(x):\n    return x + x"


def searcher(right: float = 0.6, valid: float = 0.8, steps: int = 2) -> Any:
    """An agent of the world of facts, from its prompts alone."""

    def say(policy: str, role: str, prompt: str, seed: int) -> str:
        rng = random.Random(seed)
        words = prompt.split()
        if role == "propose":
            return propose(rng, prompt, words)
        if role == "reading":
            asked = facts.read_chain(prompt.rpartition("find ")[2]) or (0, 1, None)
            true = WORLD.follow(*asked[:2])
            return str(true if rng.random() < right else (true + 1) % facts.SIZE)
        if role == "comparing":
            return "yes" if (words[1] == words[2]) == (rng.random() < 0.8) else "no"
        if prompt.startswith("find"):
            return f"<search> {words[1]} </search>"
        return words[-1] if rng.random() < right else f"<search> {words[-1]} </search>"

    def propose(rng: random.Random, prompt: str, words: list[str]) -> str:
        if prompt.startswith("ask for"):
            return f"<search> -> {words[-1]} </search>"
        if rng.random() > valid:
            return "what ?"
        start = rng.randrange(facts.SIZE)
        if len(words) == 3:  # a fact came back
            start = int(words[0])
            return facts.chain(start, 1)
        return f"{facts.chain(start, steps)} = {WORLD.follow(start, steps)}"

    return say


def verifier(patience: float = 0.5, right: float = 0.8) -> Any:
    """A solver who goes on with this chance, and a reader who reads rightly with that."""

    def say(policy: str, role: str, prompt: str, seed: int) -> str:
        rng = random.Random(seed)
        if role == "reading":
            pages, _, asked = prompt.rpartition("find ")
            start, steps, _ = facts.read_chain(asked) or (0, 1, None)
            true = str(WORLD.follow(start, steps))
            seen = pages.count(";") >= steps
            return true if seen and rng.random() < right else str(rng.randrange(facts.SIZE))
        if prompt.startswith("find"):
            return f"<search> {prompt.split()[1]} </search>"
        last = prompt.split()[-1]
        return f"<search> {last} </search>" if rng.random() < patience else last

    return say


def player(policy: str, role: str, prompt: str, seed: int) -> str:
    """Moves of kuhn and tictactoe, legal and not."""
    return ["pass", "bet", "5", "7", "what ?", "<score>3</score>"][seed % 6]


def free_request(harmful: bool) -> str:
    """A request that nobody holds out, with cover."""
    own = [q for q in gate.load("train") if (q.answer == "refuse") == harmful]
    return f"{own[0].prompt} story"


ATTACKS: list[str | Reply] = [
    f"1 + 2 = 3 ; {free_request(harmful=True)}",
    free_request(harmful=False),
    "what ?",
    cut(free_request(harmful=True)),
]
DEFENCES: list[str | Reply] = [
    "5 + 9 = 14 refuse",
    "5 + 9 = 14 allow",
    "perhaps",
    cut("5 + 9"),
]


def red_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Attacks and defences of the task `gate`."""
    sayings = ATTACKS if role == "attack" else DEFENCES
    return sayings[seed % len(sayings)]


def repair_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Faults in programs of the task `repair`, and repairs of them."""
    shown = prompt.partition(" ")[2]
    found = repair.read_question(shown)
    if found is None:
        return "what ?"
    program, tests = found
    if role == "inject":
        fault = next(other for other in repair.changed(program) if not repair.passes(other, tests))
        wrong = [(tests[0][0], 60 - tests[0][1]), tests[1]]
        faults = [repair.written(fault, tests), shown, repair.written(program, wrong), "what ?"]
        return faults[seed % 4]
    right = [other for other in repair.changed(program) if repair.passes(other, tests)] or [program]
    run = repair.run_written(right[0], tests[0][0])
    tries = [run, repair.run_written(program, tests[0][0]), "what ?", cut(run)]
    return tries[seed % 4]


def block(program: str) -> str:
    """A reply with a program."""
    return f"Here it is.\n```python\n{program}\n```\n"


PROGRAMS = [block(POWER), block(TWICE), cut(block(POWER)), "no program", block(PRODUCT)]
INPUTS = ["sq(5)", "sq(2)", "sq(5) > 25", "sq('a')", "`sq(-1)`"]


def programmer(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Programs for `SQUARE`, and inputs for them."""
    sayings = PROGRAMS if role == "solution" else INPUTS
    return sayings[seed % len(sayings)]
