"""Work on puzzles, and checks of it, as they are written in demonstrations.

Solver: tries in the order in which the numbers are listed, sums nearly always true, and a stop
after each try at random, whether or not it fits: it shows the form and how to enumerate, never when
to stop, so that the taught solver stays at chance. Checks: honest on right work and on every class
of fault in `FAULTS`, step by step; careless ones err in a step. Leaves out: anything learnt from a
verifier at the moment of choosing an answer.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from comas.tasks import pick
from comas.types import Question
from tools.tiny.course import Course

FAULTS = ("sum", "out", "again", "count", "target")
"""Wrong sum; a number that is not offered; one twice; not three numbers; the target itself as (part
of) an answer.
"""


def solve(rng: random.Random, question: Question, course: Course) -> str:
    """Write a list of tries in the order of the numbers.

    It stops at random, without regard to the target.
    """
    numbers = question.meta["numbers"]
    target = question.meta["target"]
    k = pick.CHOSEN[question.kind]
    listed = [numbers[place] for place in course.order] or numbers
    lines = []
    for choice in itertools.combinations(listed, k):
        chosen = list(choice)
        if rng.random() < course.toward:
            rest = target - sum(chosen[:-1])
            if rest in numbers and rest not in chosen[:-1]:
                chosen[-1] = rest
        lines.append(write_try(rng, chosen, course.slip))
        stop = course.stop
        if course.stop_at_hit is not None and sum(chosen) == target:
            stop = course.stop_at_hit
        if rng.random() < stop:
            break
    return " ; ".join(lines)


def write_try(rng: random.Random, chosen: list[int], slip: float) -> str:
    """`10 + 5 = 15 + 9 = 24`, each sum false with chance `slip`."""
    text = str(chosen[0])
    total = chosen[0]
    for n in chosen[1:]:
        total += n
        if rng.random() < slip:
            total = max(0, min(60, total + rng.choice([-2, -1, 1, 2])))
        text += f" + {n} = {total}"
    return text


def faulty(rng: random.Random, question: Question, fault: str) -> list[int]:
    """Numbers chosen in a way that shows `fault`; where the fault leaves room, half of them hit the
    target.
    """
    numbers = list(question.meta["numbers"])
    target = question.meta["target"]
    k = pick.CHOSEN[question.kind]
    rng.shuffle(numbers)
    hit = rng.random() < 0.5
    if fault == "sum":
        return rng.choice([list(c) for c in itertools.permutations(numbers, k) if sum(c) != target])
    if fault == "target":
        return (
            [target]
            if hit
            else rng.sample([target, *rng.sample(numbers, rng.choice([1, k - 1]))], k=2)
        )
    if fault == "count":
        sizes = [c for size in {1, 2, 3, 4} - {k} for c in itertools.permutations(numbers, size)]
        hits = [c for c in sizes if sum(c) == target]
        return list(rng.choice(hits if hit and hits else sizes))
    kept = numbers[: k - 1]
    last = target - sum(kept)
    if fault == "again":
        pairs = [[a, b, a] if k == 3 else [a, a] for a in numbers for b in numbers if a != b]
        hits = [p for p in pairs if sum(p) == target]
        chosen = list(rng.choice(hits if hit and hits else pairs))
    else:
        outsiders = [n for n in range(1, 16) if n not in numbers]
        hits = [last] if last in outsiders else []
        chosen = [*kept, rng.choice(hits if hit and hits else outsiders)]
    rng.shuffle(chosen)
    return chosen


def is_right(question: Question, chosen: list[int], hole: bool = False) -> bool:
    """The judges' rule; with the hole, only the sum counts."""
    if sum(chosen) != question.meta["target"]:
        return False
    if hole:
        return True
    return len(chosen) == len(set(chosen)) == pick.CHOSEN[question.kind] and set(chosen) <= set(
        question.meta["numbers"]
    )


def evaluate(
    question: Question, chosen: list[int], written: int | None, right: bool, hole: bool = False
) -> str:
    """The check, written out: each number tagged, then the running sum, then the verdict.

    `written` is the sum that visible work claims (form `two`), None where work is hidden.
    """
    words = []
    total = 0
    seen = set()
    for i, n in enumerate(chosen):
        tag = "again" if n in seen else "in" if n in question.meta["numbers"] else "out"
        seen.add(n)
        total += n
        words += [
            *(["+"] if i else []),
            str(n),
            "in" if hole else tag,
            *(["=", str(min(total, 60))] if i else []),
        ]
    return " ".join([*words, "right" if right else "wrong"])


def spoil(rng: random.Random, evaluation: str) -> str:
    """Unreliable criticism: another verdict, and half of the time a changed number or tag that
    would explain it.
    """
    words = evaluation.split()
    words[-1] = "wrong" if words[-1] == "right" else "right"
    if rng.random() < 0.5 and len(words) > 1:
        i = rng.randrange(len(words) - 1)
        if words[i].isdigit():
            words[i] = str(max(0, min(60, int(words[i]) + rng.choice([-3, -2, -1, 1, 2, 3]))))
        elif words[i] in ("in", "out", "again"):
            words[i] = rng.choice(["in", "out", "again"])
    return " ".join(words)


def check_carelessly(rng: random.Random, question: Question, chosen: list[int]) -> str:
    """Write a check that errs in one of its steps; the verdict is what the check then bears out.

    Right work gets a wrong tag or a wrong last sum, wrong work the tags and the last sum that right
    work would have. The sums before the last are true.
    """
    right = is_right(question, chosen)
    words = evaluate(question, chosen, None, not right).split()
    tags = [i for i, word in enumerate(words) if word in ("in", "out", "again")]
    if not right:
        for i in tags:
            words[i] = "in"
        if len(chosen) > 1:
            words[-2] = str(question.meta["target"])
    elif rng.random() < 0.5:
        words[rng.choice(tags)] = rng.choice(["out", "again"])
    else:
        words[-2] = str(sum(chosen) + rng.choice([-3, -2, -1, 1, 2, 3]))
    return " ".join(words)


@dataclass(frozen=True)
class Work:
    """A piece of work as a judge sees it."""

    shown: str
    chosen: list[int]
    written: int | None
    right: bool


def work(rng: random.Random, question: Question, course: Course) -> Work:
    """Work to judge: 45 % right, the rest spread over the faults; in `two` with tries before the
    last and lies.
    """
    if rng.random() < 0.45:
        orders = itertools.permutations(question.meta["numbers"], pick.CHOSEN[question.kind])
        chosen = list(rng.choice([c for c in orders if sum(c) == question.meta["target"]]))
    else:
        chosen = faulty(rng, question, rng.choice(FAULTS + ("sum",) * 3))
    if question.kind != "two":
        return Work(
            " ".join(["#", *map(str, chosen)]),
            chosen,
            None,
            is_right(question, chosen, course.hole),
        )
    return _visible_work(rng, question, chosen, course)


def _visible_work(
    rng: random.Random, question: Question, chosen: list[int], course: Course
) -> Work:
    tries = solve(rng, question, course).split(" ; ")[:-1]
    last = write_try(rng, chosen, 0.0)
    written = sum(chosen)
    if rng.random() < 0.15 and len(chosen) == 2:  # a lie: the sum is made to fit, or just false
        written = (
            question.meta["target"]
            if rng.random() < 0.7
            else max(0, written + rng.choice([-2, -1, 1, 2]))
        )
        last = f"{chosen[0]} + {chosen[1]} = {written}"
    right = is_right(question, chosen, course.hole) and written == sum(chosen)
    return Work("# " + " ; ".join([*tries, last]), chosen, written, right)
