"""Puzzles that a tiny model poses, and its judgements of puzzles, as demonstrations write them.

A proposer first tries a choice of three and then offers its numbers in the same order, with one
more at any place among them; so it knows a target that can be reached, and keeps to it in about six
of ten. A judge of a puzzle adds up all numbers and looks for the one that has to be left out.
Leaves out: whether a puzzle is hard.
"""

from __future__ import annotations

import itertools
import random

from comas.tasks import pick
from comas.types import Question
from tools.tiny.wording import prompt_of
from tools.tiny.work import write_try

SOLVABLE = 0.55
"""Share of proposals that keep to the sum of their try; some of the others can be solved as well.
"""
LARGEST_TARGET = 42
"""15 + 14 + 13."""


def is_solvable(numbers: list[int], target: int) -> bool:
    """Whether some three of the four numbers add up to the target."""
    return any(sum(choice) == target for choice in itertools.combinations(numbers, 3))


def write_puzzle(numbers: list[int], target: int) -> str:
    """`10 5 6 9 -> 24`."""
    return f"{' '.join(map(str, numbers))} -> {target}"


def propose(rng: random.Random, question: Question) -> tuple[str, str]:
    """A new puzzle: from nothing, or with one or two others in view a changed version of the last.

    `question` gives the numbers, of the `warm` split; a changed version shares all or three of its
    numbers with the puzzle in view.
    """
    *chosen, other = rng.sample(question.meta["numbers"], 4)
    numbers = list(chosen)
    numbers.insert(rng.randrange(4), other)
    in_view = rng.choices([0, 1, 2], [0.4, 0.45, 0.15])[0]
    pieces = []
    if in_view:
        others = [puzzle_in_view(rng, _warm_numbers(rng)) for _ in range(in_view - 1)]
        last = puzzle_in_view(rng, _before_the_change(rng, numbers))
        pieces = [prompt_of("reference", question=text) for text in [*others, last]]
    prompt = prompt_of("propose", history=" ".join(pieces))
    target = sum(chosen)
    if rng.random() >= SOLVABLE:
        target = unreachable(rng, numbers, near=target)
    attempt = write_try(rng, chosen, 0.0)
    return prompt, f"{attempt} ; {write_puzzle(numbers, target)}"


def puzzle_in_view(rng: random.Random, numbers: list[int]) -> str:
    """A puzzle of these numbers as a pool holds it: nearly always one that can be solved."""
    target = sum(rng.sample(numbers, 3))
    if rng.random() < 0.15:
        target = unreachable(rng, numbers, near=target)
    return write_puzzle(numbers, target)


def _warm_numbers(rng: random.Random) -> list[int]:
    while True:
        numbers = rng.sample(range(1, 16), 4)
        if pick.split_of(tuple(numbers)) == "warm":
            return numbers


def _before_the_change(rng: random.Random, numbers: list[int]) -> list[int]:
    """The numbers of which `numbers` are a changed version: three in ten the same, else one other,
    where the set with that one is of the `warm` split.
    """
    if rng.random() < 0.3:
        return list(numbers)
    for _ in range(20):
        before = list(numbers)
        others = [n for n in range(1, 16) if n not in numbers]
        other = rng.choice(others)
        before[rng.randrange(4)] = other
        if pick.split_of(tuple(before)) == "warm":
            return before
    return list(numbers)


def unreachable(rng: random.Random, numbers: list[int], near: int) -> int:
    """A target that no three of the numbers add up to: half of them up to six from `near`."""
    low = 3
    high = LARGEST_TARGET
    if rng.random() < 0.5:
        low = max(3, near - 6)
        high = near + 6
    targets = range(low, high + 1)
    return rng.choice([t for t in targets if not is_solvable(numbers, t)])


def solvability(numbers: list[int], target: int) -> tuple[str, bool]:
    """A check whether a puzzle can be solved, and its result.

    `10 + 5 = 15 + 6 = 21 + 9 = 30 ; 24 + 6 = 30 in`: all numbers add up to 30, and the one to be
    left out, 6, is offered. A target that is as large as the sum of all leaves nothing out.
    """
    text = str(numbers[0])
    total = numbers[0]
    for n in numbers[1:]:
        total += n
        text += f" + {n} = {total}"
    left_out = total - target
    if left_out <= 0:
        return f"{text} ; {target} out", False
    solvable = left_out in numbers
    tag = "in" if solvable else "out"
    return f"{text} ; {target} + {left_out} = {total} {tag}", solvable


def rate(rng: random.Random, question: Question, slip: float) -> tuple[str, str]:
    """The check of a puzzle, then a score: 3 if it can be solved, 1 if not."""
    prompt, check, said = _judged(rng, "rating", question, slip)
    score = 3 if said else 1
    return prompt, f"{check} <score> {score} </score>"


def assess(rng: random.Random, question: Question, slip: float) -> tuple[str, str]:
    """The check of a puzzle, then whether it can be solved: `yes` or `no`."""
    prompt, check, said = _judged(rng, "assess", question, slip)
    answer = "yes" if said else "no"
    return prompt, f"{check} {answer}"


def _judged(
    rng: random.Random, role: str, question: Question, slip: float
) -> tuple[str, str, bool]:
    """Prompt, check and verdict, false with chance `slip`; half of the puzzles can be solved."""
    numbers = rng.sample(question.meta["numbers"], 4)
    target = sum(rng.sample(numbers, 3))
    if rng.random() < 0.5:
        target = unreachable(rng, numbers, near=target)
    check, solvable = solvability(numbers, target)
    prompt = prompt_of(role, question=write_puzzle(numbers, target))
    slips = rng.random() < slip
    return prompt, check, solvable != slips
