"""What `tiny-facts` is taught: to search in the world of `comas.tasks.facts`, to ask for what it
found, and to read.

A solver follows one pointer reliably, but often answers too early where more are asked for. A
proposer mostly asks for one step, and sometimes writes a chain that leads elsewhere. A reader works
well: it has to tell questions that hold from others. All chains that are asked come from the `warm`
split. Leaves out: any reward.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from comas.game.agent import TeamMember
from comas.tasks import facts
from tools.tiny.course import Course, World
from tools.tiny.exercises import ask_each
from tools.tiny.posed_roles import Rows, share

WORDS = (
    *("find", "ask", "for", "from", "same", "yes", "no"),
    *("search", "<search>", "</search>", "nothing"),
)
"""Beside those of all tiny models."""
GO_ON = 0.5
"""Chance that a solver looks up the next number while there are steps left."""
STEPS = (0.6, 0.28, 0.12)
"""Chances of 1 to 3 steps in what a proposer asks."""
ASTRAY = 0.15
"""Share of proposals that do not lead where they should."""
SLIP = 0.02
"""Share of wrong readings and of wrong judgements."""
NOISE = 4
"""Facts beside those of a question that a reader sees, at most."""
MORE_NOISE = 7
"""The same of who asks about documents: it has to ask what holds before others learn to read."""


def exchange(world: facts.World, prompt: str, calls: Sequence[str]) -> str:
    """A prompt with calls of `search` and what came back, as the chat template shows them."""
    turns = [f"<end> <assistant> {call(w)} <end> <user> {world.look_up(w)}" for w in calls]
    return " ".join([prompt, *turns])


def call(words: str) -> str:
    """A reply that searches."""
    return f"<search> {words} </search>"


def warm_chain(rng: random.Random, steps: int) -> int:
    """The start of a chain of so many steps of the `warm` split."""
    while True:
        start = rng.randrange(facts.SIZE)
        if facts.split_of(facts.chain(start, steps)) == "warm":
            return start


def demonstration(rng: random.Random, role: str) -> tuple[str, str]:
    """One prompt and reply; of a dialogue, a reply somewhere in it.

    Each is of a world of its own, so that no pointer can be learnt by heart.
    """
    world = facts.World(f"lesson {rng.random()}")
    if role == "solution":
        return _solve(rng, world)
    if role == "propose":
        return "ask", _asked(rng, *_drawn(rng))
    if role == "propose_for":
        return _ask_for(rng, world)
    if role == "propose_from":
        return _ask_from(rng, world)
    if role == "propose_within":
        return _ask_within(rng, world)
    if role == "reading":
        return _read(rng, world)
    return _compare(rng)


def _drawn(rng: random.Random) -> tuple[int, int]:
    """Start and steps of what a proposer asks."""
    steps = rng.choices((1, 2, 3), STEPS)[0]
    return warm_chain(rng, steps), steps


def _solve(rng: random.Random, world: facts.World) -> tuple[str, str]:
    """A reply of a solver: it looks up numbers, and answers with the last one that it found."""
    steps = rng.choice((1, 1, 2, 2, 3, 4))
    start = warm_chain(rng, steps)
    looked = 1
    while looked < steps and rng.random() < GO_ON:
        looked += 1
    calls = [str(world.follow(start, place)) for place in range(looked)]
    made = rng.randint(0, looked)
    prompt = exchange(world, f"find {facts.chain(start, steps)}", calls[:made])
    if made < looked:
        return prompt, call(calls[made])
    return prompt, str(world.follow(start, made))


def _asked(rng: random.Random, start: int, steps: int) -> str:
    """The text of a question, sometimes with a step too many or too few."""
    if rng.random() < ASTRAY:
        steps = max(1, steps + rng.choice((-1, 1)))
    return facts.chain(start, steps)


def _ask_for(rng: random.Random, world: facts.World) -> tuple[str, str]:
    """A reply of a proposer who is to ask for an answer: it looks up what leads there."""
    start, steps = _drawn(rng)
    numbers = [world.follow(start, place) for place in range(steps, 0, -1)]
    calls = [f"-> {number}" for number in numbers]
    made = rng.randint(0, steps)
    prompt = exchange(world, f"ask for {numbers[0]}", calls[:made])
    if made < steps:
        return prompt, call(calls[made])
    return prompt, _asked(rng, start, steps)


def _ask_from(rng: random.Random, world: facts.World) -> tuple[str, str]:
    """A reply of a proposer who starts from a document, and gives the answer too."""
    steps = rng.choice((1, 2, 3, 4))
    start = warm_chain(rng, steps)
    calls = [str(world.follow(start, place)) for place in range(1, steps)]
    made = rng.randint(0, len(calls))
    prompt = exchange(world, f"ask from {world.fact(start)} in {steps}", calls[:made])
    if made < len(calls):
        return prompt, call(calls[made])
    return prompt, f"{_asked(rng, start, steps)} = {world.follow(start, steps)}"


def documents(
    rng: random.Random, world: facts.World, start: int, steps: int, noise: int = NOISE
) -> str:
    """The facts of a chain among up to `noise` others, in any order."""
    needed = [world.follow(start, place) for place in range(steps)]
    others = rng.sample(range(facts.SIZE), rng.randint(0, noise))
    numbers = [*dict.fromkeys([*needed, *others])]
    rng.shuffle(numbers)
    return " ".join(f"{world.fact(number)} ;" for number in numbers)


def _ask_within(rng: random.Random, world: facts.World) -> tuple[str, str]:
    """A reply of a proposer who sees documents: the chain that it follows, then its question."""
    start, steps = _drawn(rng)
    shown = documents(rng, world, start, steps, MORE_NOISE)
    read = followed(world, start, steps)
    return f"{shown} ask", f"{read} ; {facts.chain(start, steps)} = {world.follow(start, steps)}"


def followed(world: facts.World, start: int, steps: int) -> str:
    """A chain with the numbers that it leads over."""
    return " -> ".join(str(world.follow(start, place)) for place in range(steps + 1))


def _read(rng: random.Random, world: facts.World) -> tuple[str, str]:
    """A reply of a reader: the chain that it follows, and where it ends."""
    steps = rng.choice((1, 2, 3, 4))
    start = warm_chain(rng, steps)
    reply = followed(world, start, steps)
    if rng.random() < SLIP:
        reply = f"{reply.rpartition(' ')[0]} {rng.randrange(facts.SIZE)}"
    return f"{documents(rng, world, start, steps)} find {facts.chain(start, steps)}", reply


def _compare(rng: random.Random) -> tuple[str, str]:
    """A reply of a judge who compares two answers."""
    one = rng.randrange(facts.SIZE)
    other = one if rng.random() < 0.5 else rng.randrange(facts.SIZE)
    said = (one == other) != (rng.random() < SLIP)
    return f"same {one} {other}", "yes" if said else "no"


async def measure(member: TeamMember, count: int) -> Mapping[str, Any]:
    """Shares of right first looks and of right readings, on held-out chains."""
    rng = random.Random("facts card")
    questions = facts.load("test", hops=4)
    chosen = [rng.choice(questions) for _ in range(count)]
    looks = await ask_each(member, "solution", [f"find {q.prompt}" for q in chosen])
    chains = [facts.read_chain(q.prompt) or (0, 0, None) for q in chosen]
    prompts = [
        f"{documents(rng, facts.WORLD, start, steps)} find {facts.chain(start, steps)}"
        for start, steps, _ in chains
    ]
    readings = await ask_each(member, "reading", prompts)
    rows: Rows = {
        "searching: looks up the start, T 1.0": share(
            [
                turn.text == call(str(start))
                for turn, (start, _, _) in zip(looks, chains, strict=True)
            ]
        ),
        "reading: right, with other facts beside, T 1.0": share(
            [
                facts.check(question, turn.text) == "right"
                for question, turn in zip(chosen, readings, strict=True)
            ]
        ),
    }
    return rows


COURSE = Course(
    seed=12,
    steps=2600,
    batch={
        "solution": 28,
        "propose": 4,
        "propose_for": 16,
        "propose_from": 16,
        "propose_within": 20,
        "reading": 24,
        "comparing": 4,
    },
    world=World(
        tasks=("facts",),
        words=WORDS,
        demonstration=demonstration,
        measure=measure,
        lessons=(
            "To follow one pointer with `search`, and often to answer too early where more are"
            " asked for; to ask for a given answer, from a document or within several, mostly in"
            " one step; to read a chain off documents."
        ),
    ),
)
