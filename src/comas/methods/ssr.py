"""SSR, Self-play SWE-RL (arXiv 2512.18552): an injector breaks working programs, a solver mends
them, and the tests of each program say who did.

A question of the kind `program` is a program that passes its tests. An injector writes the same
with a fault, and the task's `pose` reads it. It is consistent if it is a question, its tests hold
for the working program, and the changed one fails them. Solvers try it `tries` times and are
rewarded with 1 or -1. The injector is rewarded with -1 for what is inconsistent, -`alpha` if all of
its solvers succeed or none, else 1 - (1 + `alpha`) s, where s is the share that succeeds: hard and
possible is best. A failed repair of a fault is a new one of higher order, which later steps draw.
`checks=False` lets through all that can be read. Unlike the paper, agents have no shell, tests are
fixed rather than written and weakened, and of the seven checks those remain that a program and its
tests allow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.methods.shared.judging import ruled, success
from comas.methods.shared.posing import posed_again, rewritten, solve, with_newest
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Memory, Method, Question, Role, State, Task, Turn, Whole

WORDING = {
    "inject": (
        "{question}\n\nPut a fault into this program that makes a test fail and is hard to find."
        " Write the whole program with its tests again, in the same form."
    ),
}


def start(questions: Sequence[Question], task: Task) -> State:
    """No faults of higher order."""
    return {"faults": []}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    higher: Whole = 16,
) -> list[Question]:
    """Working programs, and up to `higher` failed repairs."""
    again = rng.sample(state["faults"], min(higher, count // 2, len(state["faults"])))
    faults = posed_again(again, task)
    working = [question for question in questions if question.kind == "program"] or questions
    return faults + rng.sample(working, min(count - len(faults), len(working)))


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    tries: Count = 4,
    checks: bool = True,
) -> str | None:
    """Have a fault injected where the program works, and mended; the first repair answers."""
    fault: Question | None = question
    injection = None
    if question.kind != "fault":
        injector = choose(agents, rng, "inject")
        injection, fault = await rewritten(question, injector, "inject", task, WORDING)
        sound = False if fault is None else is_consistent(fault, question, task)
        injection.info["fake"] = None if sound is None else not sound
        if checks and not sound:
            return None
    if fault is None:
        return None
    solvers = [choose(agents, rng, "solution") for _ in range(tries)]
    repairs = await together(solve(fault, solver, task, injection) for solver in solvers)
    for repair in repairs:
        repair.info["verdict"] = ruled(fault, repair, task)
        if repair.info["verdict"] == "wrong":
            repair.info["failed"] = task.shown(fault, repair.text)
    return repairs[0].text


def is_consistent(fault: Question, working: Question, task: Task) -> bool | None:
    """Whether the tests hold for the working program and fail for the changed one; None where they
    could not be run.
    """
    assert task.check is not None, "Method.needs"
    before = task.check(fault, working.prompt)
    if before != "right":
        return None if before == "failed" else False
    after = task.check(fault, fault.prompt)
    return None if after == "failed" else after == "wrong"


def settle(
    episodes: Sequence[Episode], task: Task, *, alpha: float = 0.8, checks: bool = True
) -> None:
    """Reward injectors by how many of their solvers succeed, and solvers by the tests."""
    for episode in episodes:
        repairs = in_role(episode, "solution")
        for repair in repairs:
            failed = repair.info["verdict"] == "failed"
            repair.reward = None if failed else 2.0 * (repair.info["verdict"] == "right") - 1.0
        for injection in in_role(episode, "inject"):
            unsound = injection.info["fake"] if checks else injection.info["posed"] is None
            share = success(repairs)  # None: it is not known
            if unsound:
                injection.reward = -1.0
            elif share is not None:
                extreme = share in (0.0, 1.0)
                injection.reward = -alpha if extreme else 1.0 - (1.0 + alpha) * share


def update(state: State, episodes: Sequence[Episode], task: Task, *, pool: Count = 256) -> State:
    """Failed repairs join the faults, each once; the oldest leave them."""
    repairs: list[Turn] = [t for episode in episodes for t in in_role(episode, "solution")]
    failed = [turn.info["failed"] for turn in repairs if "failed" in turn.info]
    return {"faults": with_newest(state["faults"], failed, pool)}


KL = {"inject": 0.01, "solution": 0.01}
ROLES = {
    "inject": Role(
        "other",
        reward="1 - 1.8 times the share that mends it; -.8 if all do or none, -1 if inconsistent",
    ),
    "solution": Role("answer", reward="1 if the program passes its tests, else -1"),
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    grounded=True,
    memory=Memory(start, draw, update),
    needs=("pose", "check"),
    presets={"stable": {"questions": 48, "task_options": {"form": "program"}}},
    base="tiny-repair",
    task="repair",
    team={"injector": {"roles": ["inject"]}, "solver": {"roles": ["solution"]}},
)
