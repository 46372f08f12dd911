"""What tiny models are taught: synthetic demonstrations for the puzzles of `comas.tasks.pick`.

Solver: see `work`. Judges: honest but for slips; a scorer sees work with criticism (some of it
unreliable) and without; in role `judging` the check is written before the score, since a judge that
writes nothing down is at chance on hidden work. Proposers and judges of puzzles: see `posing`. All
numbers come from the `warm` split only.
"""

from __future__ import annotations

import itertools
import random

from comas.tasks import pick
from comas.types import Question
from tools.tiny.course import Course
from tools.tiny.posing import assess, propose, rate
from tools.tiny.wording import prompt_of
from tools.tiny.work import check_carelessly, evaluate, solve, spoil, work, write_try

VERDICT = {
    "verdict": "verdict {question} {work} says {evaluation}",
    "verdict_bare": "verdict {question} {work}",
}
"""The wording of a role that the shipped models were taught and no game asks."""


def demonstration(
    rng: random.Random, role: str, questions: list[Question], course: Course
) -> tuple[str, str]:
    """One (prompt, reply) for `role`: one of the course's batch."""
    if course.world is not None:
        return course.world.demonstration(rng, role)
    question = rng.choice(questions)
    if role == "solution":
        return _solution_prompt(rng, question, course), solve(rng, question, course)
    if role == "sabotage":
        return _sabotage(rng, question, course)
    if role == "propose":
        return propose(rng, question)
    if role == "rating":
        return rate(rng, question, course.slip)
    if role == "assess":
        return assess(rng, question, course.slip)
    return _judgement(rng, role, question, course)


def _judgement(
    rng: random.Random, role: str, question: Question, course: Course
) -> tuple[str, str]:
    """One (prompt, reply) of a judge of work: evaluation, judging, scoring or verdict."""
    done = work(rng, question, course)
    right = done.right != (rng.random() < course.slip)
    facts = {"question": question.prompt, "work": done.shown}
    if role in ("evaluation", "judging"):
        check = evaluate(question, done.chosen, done.written, right, course.hole)
        if course.careless and rng.random() < course.careless:
            check = check_carelessly(rng, question, done.chosen)
        score = _score(check.endswith("right"))
        reply = check if role == "evaluation" else f"{check} {score}"
        return pick.WORDING[role].format(**facts), reply
    criticised = rng.random() < 0.6
    if criticised:
        honest = evaluate(question, done.chosen, done.written, done.right, course.hole)
        facts["evaluation"] = spoil(rng, honest) if rng.random() < 0.25 else honest
    wording = VERDICT if role == "verdict" else pick.WORDING
    prompt = wording[role if criticised else role + "_bare"].format(**facts)
    if role == "verdict":
        return prompt, "right" if right else "wrong"
    return prompt, _score(right)


def _score(right: bool) -> str:
    return f"<score> {3 if right else 1} </score>"


def _sabotage(rng: random.Random, question: Question, course: Course) -> tuple[str, str]:
    """Right work, as it was written or as peers see it, and the same spoilt.

    A little more than half of the replies change a number, which makes the work wrong; the others
    take the same numbers in another order, which does not.
    """
    numbers = question.meta["numbers"]
    target = question.meta["target"]
    orders = itertools.permutations(numbers, pick.CHOSEN[question.kind])
    right = [list(order) for order in orders if sum(order) == target]
    chosen = rng.choice(right)
    if rng.random() < 0.2:
        given = " ".join(["#", *map(str, chosen)])
    else:
        tries = solve(rng, question, course).split(" ; ")[:-1]
        given = " ; ".join([*tries, write_try(rng, chosen, course.slip)])
    if rng.random() < 0.55:
        spoilt = _with_one_changed(rng, chosen, numbers)
    else:
        others = [order for order in itertools.permutations(chosen) if list(order) != chosen]
        spoilt = list(rng.choice(others))
    prompt = prompt_of("sabotage", question=question.prompt, work=given)
    return prompt, write_try(rng, spoilt, course.slip)


def _with_one_changed(rng: random.Random, chosen: list[int], numbers: list[int]) -> list[int]:
    """The choice with one number replaced: by one left over, one not offered, or one twice."""
    place = rng.randrange(len(chosen))
    kept = chosen[:place] + chosen[place + 1 :]
    fault = rng.choice(["sum", "out", "again"])
    if fault == "sum":
        others = [n for n in numbers if n not in chosen]
    elif fault == "again":
        others = kept
    else:
        others = [n for n in range(1, 16) if n not in numbers]
    spoilt = list(chosen)
    spoilt[place] = rng.choice(others)
    return spoilt


def _solution_prompt(rng: random.Random, question: Question, course: Course) -> str:
    """The share `peers` has up to two pieces of peers' work in view, with or without what was said
    of them.
    """
    items = []
    for _ in range(rng.choice([1, 2]) if rng.random() < course.peers else 0):
        done = work(rng, question, course)
        said = evaluate(question, done.chosen, done.written, done.right, course.hole)
        wording = pick.WORDING["history" if rng.random() < 0.7 else "history_bare"]
        items.append(wording.format(work=done.shown, evaluation=said))
    return (
        pick.WORDING["solution"].format(question=question.prompt, history=" ".join(items)).strip()
    )
