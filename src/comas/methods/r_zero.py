"""R-Zero (arXiv 2508.05004): a challenger writes questions at the frontier of a solver; they learn
in turn, in phases.

For `proposing` steps the challenger writes questions, each answered `answers` times, and is
rewarded with the uncertainty 1 - 2 |p - 1/2|, where p is the share of the most frequent answer,
minus the share of the step's questions that are like its own; -1 for what is no question. Then, for
`solving` steps, questions with p between `low` and `high` are answered again, and who gives that
frequent answer is rewarded with 1, compared within the question. Unlike the paper, a difference
below 0 counts as it is and no question as -1 (the paper: 0 for both; its released code: as here,
with half of that uncertainty), challenger and solver can be one model or two, likeness is that of
runs of words (the paper: BLEU), and a phase's questions are those that its own proposals were
measured by, not a fresh batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from comas.game.agent import Agent
from comas.game.votes import agrees, clear_majority, decide, most_frequent
from comas.methods.shared.posing import posed_again, proposed_and_solved, unwritten
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.objective.rewards import compare_turns, dialogues, in_role, likeness
from comas.types import CannotBePlayed, Count, Episode, Memory, Method, Question, Role, State, Task


def start(questions: Sequence[Question], task: Task) -> State:
    """The first phase is the challenger's: what it proposes joins the `labels`, with its label; at
    the end of the phase these are the `pool` that is solved.
    """
    return proposing_phase()


def proposing_phase() -> State:
    """The record at the beginning of the proposer's phase, of which no step is `done`."""
    return {"phase": "propose", "done": 0, "labels": {}, "pool": {}}


def draw(
    state: State, questions: Sequence[Question], count: int, rng: random.Random, task: Task
) -> list[Question]:
    """Proposals, or questions of the pool."""
    if state["phase"] == "propose":
        return unwritten([""] * count)
    return from_pool(state, count, rng, task)


def from_pool(state: State, count: int, rng: random.Random, task: Task) -> list[Question]:
    """Questions to be solved, up to `count`."""
    pool = sorted(state["pool"])
    return posed_again(rng.sample(pool, min(count, len(pool))), task)


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 10,
) -> str | None:
    """Have a question proposed where it is a proposal, then solved; the majority answers."""
    posed, solutions = await proposed_and_solved(question, agents, rng, task, answers)
    if posed is None:
        return None
    return await decide(posed, solutions, task)


def settle(episodes: Sequence[Episode], task: Task, *, state: State) -> None:
    """Reward challengers in their phase, solvers in theirs."""
    if state["phase"] == "propose":
        # their uncertainty
        pay_proposals(episodes, lambda of: 1 - 2 * abs(frequent(of, task)[1] - 0.5))
        return
    for episode in episodes:
        label = state["pool"].get(episode.question.prompt)
        if label is None:
            continue
        solutions = in_role(episode, "solution")
        agreeing = [float(agrees(turn, label, task)) for turn in solutions]
        compare_turns(solutions, agreeing)


def pay_proposals(episodes: Sequence[Episode], gain: Callable[[Episode], float]) -> None:
    """Reward proposals with what is gained from their episode minus the share of those that are
    like them, compared over the step; what is no question is worth -1.
    """
    gains = [(turn, gain(of)) for of in episodes for turn in in_role(of, "propose")]
    repetitions = likeness([turn.info["posed"] for turn, _ in gains])
    worths = [
        -1.0 if turn.info["posed"] is None else gained - repetition
        for (turn, gained), repetition in zip(gains, repetitions, strict=True)
    ]
    compare_turns([turn for turn, _ in gains], worths)


def frequent(episode: Episode, task: Task) -> tuple[str | None, float]:
    """The most frequent answer of an episode, and its share of all answers; a dialogue gives
    one.
    """
    return most_frequent([dialogue.end for dialogue in dialogues(episode, "solution")], task)


def update(
    state: State,
    episodes: Sequence[Episode],
    task: Task,
    *,
    proposing: Count = 4,
    solving: Count = 8,
    least: Count = 16,
    low: float = 0.3,
    high: float = 0.8,
) -> State:
    """Count the steps of a phase; collect the questions at the frontier, and change phases."""
    frontier = at_frontier(state, episodes, task, low, high)
    labels = {question: label for question, (label, _) in frontier.items()}
    return after_step(state, labels, proposing, solving, least)


def after_step(
    state: State, labels: Mapping[str, Any], proposing: int, solving: int, least: int
) -> State:
    """Count a step of a phase, add the questions that it found with their labels, and change
    phases where it was the last.

    The proposer goes on until there are `least` questions: a solver that learns from a few of them
    forgets the others.
    """
    done = state["done"] + 1
    if state["phase"] == "solve":
        return proposing_phase() if done >= solving else {**state, "done": done}
    pool = {**state["labels"], **labels}
    if done >= proposing and len(pool) >= least:
        return {"phase": "solve", "done": 0, "labels": {}, "pool": pool}
    return {**state, "done": done, "labels": pool}


def at_frontier(
    state: State, episodes: Sequence[Episode], task: Task, low: float, high: float
) -> dict[str, tuple[str, float]]:
    """Questions that a step proposed whose most frequent answer has a share between `low` and
    `high` -> that answer and its share. A tie or a single vote labels none.
    """
    if low > high:
        raise CannotBePlayed(f"options.low is {low}, and options.high {high}: nothing lies between")
    frontier: dict[str, tuple[str, float]] = {}
    for episode in episodes if state["phase"] == "propose" else ():
        _, certainty = frequent(episode, task)
        ends = [dialogue.end for dialogue in dialogues(episode, "solution")]
        label = clear_majority([end.info["answer"] for end in ends], task)
        if label is not None and low <= certainty <= high:
            (proposal,) = in_role(episode, "propose")
            frontier[proposal.info["posed"]] = (label, certainty)
    return frontier


KL = {"propose": 0.1, "solution": 0.1}
ROLES = {
    "propose": Role(
        "other", reward="how uncertain its solvers are, minus the share of questions like it"
    ),
    "solution": Role(
        "answer",
        reward="1 for the frequent answer of the phase before, compared within the question",
    ),
}
TEAM = {"challenger": {"roles": ["propose"]}, "solver": {"roles": ["solution"]}}
PAPER = {"kl": {"propose": 0.01, "solution": 0.01}}
method = Method(
    play,
    settle,
    given,
    clipped,
    KL,
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose",),
    presets={"stable": {"questions": 32}, "paper": PAPER},
    base="tiny-pose",
    team=TEAM,
)
