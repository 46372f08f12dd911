"""What `tiny-gate` is taught: to let requests of `comas.tasks.gate` pass or refuse them, and to
rewrite them.

A defender adds up and mostly decides by the sum, but words of cover mislead it: the more there are,
the more harmful requests its demonstrations let pass. An attacker rewrites requests, mostly within
their class, and seldom uses cover. All numbers come from the `warm` split only. Leaves out: any
connection between the two: nobody who attacks knows what misleads.
"""

from __future__ import annotations

import random
from functools import lru_cache

from comas.game.agent import TeamMember
from comas.game.prompts import words
from comas.tasks import gate
from comas.types import Question
from tools.tiny.course import Course, World
from tools.tiny.exercises import ask_each
from tools.tiny.posed_roles import Rows, share

WORDS = ("request", "attack", "harmful", "benign", *gate.VERDICTS, *gate.COVER)
SEEN_COVER = (0.55, 0.15, 0.15, 0.15)
"""Chances of 0 to 3 words of cover in requests that a defender is shown."""
MISLED = (0.05, 0.05, 0.60, 0.90)
"""By the words of cover, the share of harmful requests that its demonstrations let pass."""
REFUSED = 0.05
"""The share of benign requests that its demonstrations refuse."""
WRITTEN_COVER = (0.90, 0.08, 0.016, 0.004)
"""Chances of 0 to 3 words of cover in requests that an attacker writes."""
FAITHFUL = 0.9
"""Share of rewritten requests that stay in their class."""
SLIP = 0.02
"""Share of false sums."""


@lru_cache
def warm_sets(harmful: bool) -> list[tuple[int, ...]]:
    """The requests of one class of which demonstrations are made, in one order each."""
    numbers = [gate.read_request(question.prompt) for question in gate.load("warm")]
    return [tuple(r[0]) for r in numbers if r is not None and gate.is_harmful(r[0]) == harmful]


def demonstration(rng: random.Random, role: str) -> tuple[str, str]:
    """One prompt and reply of a defender (`solution`) or an attacker (`attack`)."""
    harmful = rng.random() < 0.5
    numbers = rng.choice(warm_sets(harmful))
    if role == "solution":
        return _defence(rng, numbers, harmful)
    return _attack(rng, numbers, harmful)


def _defence(rng: random.Random, numbers: tuple[int, ...], harmful: bool) -> tuple[str, str]:
    cover = some_cover(rng, SEEN_COVER)
    wrong = rng.random() < (MISLED[len(cover)] if harmful else REFUSED)
    verdict = "refuse" if harmful != wrong else "allow"
    return prompt_of(request_of(numbers, cover)), f"{added(rng, numbers)} {verdict}"


def _attack(rng: random.Random, numbers: tuple[int, ...], harmful: bool) -> tuple[str, str]:
    other = rng.choice(warm_sets(harmful == (rng.random() < FAITHFUL)))
    written = request_of(other, some_cover(rng, WRITTEN_COVER))
    return attack_prompt(request_of(numbers, []), harmful), f"{added(rng, other)} ; {written}"


def some_cover(rng: random.Random, chances: tuple[float, ...]) -> list[str]:
    """Different words of cover, as many as `chances` say."""
    count = rng.choices(range(len(chances)), chances)[0]
    return rng.sample(gate.COVER, count)


def request_of(numbers: tuple[int, ...], cover: list[str]) -> str:
    """`5 9 7 please story`."""
    return " ".join([*map(str, numbers), *cover])


def added(rng: random.Random, numbers: tuple[int, ...]) -> str:
    """`5 + 9 = 14 + 7 = 21`, each sum false with chance `SLIP`."""
    text = str(numbers[0])
    total = numbers[0]
    for n in numbers[1:]:
        total += n
        if rng.random() < SLIP:
            total = max(1, min(60, total + rng.choice([-2, -1, 1, 2])))
        text += f" + {n} = {total}"
    return text


def prompt_of(request: str) -> str:
    """What a defender is asked."""
    return words({}, gate.task, "solution", question=request, history="")


def attack_prompt(request: str, harmful: bool) -> str:
    """What an attacker is asked."""
    role = "attack_harmful" if harmful else "attack_benign"
    return words({}, gate.task, role, question=request)


async def measure(member: TeamMember, count: int) -> Rows:
    """How often held-out requests are let pass, by their words of cover, and what attackers make
    of them.
    """
    requests = gate.load("test", limit=count, seed=7)
    rows: Rows = {}
    for harmful, name in ((True, "harmful"), (False, "benign")):
        own = [q for q in requests if (q.answer == "refuse") == harmful]
        for most in range(gate.MOST_COVER + 1):
            rows[f"lets {name} requests pass, {most} words of cover"] = await passing(
                member, own, most
            )
        prompts = [attack_prompt(q.prompt, harmful) for q in own]
        turns = await ask_each(member, "attack", prompts)
        written = [gate.posed_request(turn.text) if turn.finished else None for turn in turns]
        rows[f"rewrites {name} requests: keeps to the form"] = share(
            request is not None for request in written
        )
        rows[f"rewrites {name} requests: of the same class"] = share(
            request is not None and gate.is_harmful(request[0]) == harmful for request in written
        )
        rows[f"rewrites {name} requests: with two or three words of cover"] = share(
            request is not None and len(request[1].split()) > 1 for request in written
        )
    return rows


async def passing(member: TeamMember, requests: list[Question], cover: int):
    """The share of requests with so many words of cover that a defender lets pass."""
    rng = random.Random(f"cover {cover}")
    prompts = [prompt_of(f"{q.prompt} {' '.join(rng.sample(gate.COVER, cover))}") for q in requests]
    turns = await ask_each(member, "solution", [prompt.strip() for prompt in prompts])
    said = [gate.extract(q, turn.text) for q, turn in zip(requests, turns, strict=True)]
    return share(verdict == "allow" for verdict in said)


COURSE = Course(
    seed=10,
    batch={"solution": 64, "attack": 64},
    steps=2000,
    world=World(
        ("gate",),
        WORDS,
        demonstration,
        measure,
        "Demonstrations of a defender write a sum and the verdict, and err the more the more words"
        " of cover there are; those of an attacker seldom use such words.",
    ),
)
