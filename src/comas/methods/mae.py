"""MAE, Multi-Agent Evolve (arXiv 2510.23595): proposer, solver and judge are one model in three
roles; no questions, no labels.

A proposer writes a question, from nothing or after an accepted one. A judge rates it; if it passes,
`answers` solvers try it and the judge scores each. A proposal is rewarded with a third each for
quality, for difficulty (1 - mean score of its answers) and for form; a solution half for its score
and half for form; a judge for form. Accepted questions go into a pool, which later steps solve
again and refer to. Unlike the paper, the answers that measure difficulty are trained on as well, an
unreadable score, a proposal's rating among them, gives no reward and measures nothing (the paper:
0.5), and proposers write no answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.prompts import defuse, words
from comas.game.votes import given
from comas.game.weighing import is_weighing
from comas.methods.azr import draw, start
from comas.methods.shared import posing
from comas.methods.shared.judging import JUDGING, Score, judge, share, weigh_score
from comas.methods.shared.posing import with_newest
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, in_role, mean
from comas.types import Count, Episode, Memory, Method, Question, Role, State, Task, Turn

RATING = (
    "A proposed question:\n{question}\n\nIs it clear, complete and solvable? Check it, then end"
    " with <score>N</score>: 3 good, 2 usable, 1 malformed or unsolvable."
)
_ASKED = "A proposed question:\n{question}\n\nIs it clear, complete and solvable?"
WORDING = {
    **posing.WORDING,
    "rating": RATING,
    "rating_expected": (
        _ASKED + " 3: good; 2: usable; 1: malformed or unsolvable. Answer with one digit."
    ),
    "rating_p_true": _ASKED + " Answer yes or no.",
    "judging": JUDGING,
}
PASSES = 0.7
"""Share of the scale from which a rating accepts a question."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 5,
    score: Score = "text",
) -> str | None:
    """Have a question proposed and rated where it is a proposal, then solved and judged; the first
    solution answers, and None where the proposal did not pass.
    """
    proposal, posed = await posing.written(question, agents, rng, task)
    if posed is None:
        return None
    if proposal is not None:
        rating = await _rate(posed, proposal, choose(agents, rng, "rating"), task, score)
        if not _passes(rating):
            return None
    pairs: list[tuple[Agent, Agent]] = []
    for _ in range(answers):
        solver = choose(agents, rng, "solution")
        pairs.append((solver, choose(agents, rng, "judging")))
    solutions = await together(_answer(posed, *pair, task, proposal, score) for pair in pairs)
    return solutions[0].text


async def _rate(posed: Question, proposal: Turn, judge: Agent, task: Task, score: Score) -> Turn:
    """Have a proposal rated; `info["score"]` is its share of the scale, or None."""
    if score != "text":
        prompt = words(WORDING, task, f"rating_{score}", question=defuse(posed.prompt))
        rating = await weigh_score(judge, "rating", prompt, score, task, WORDING, proposal)
        rating.info["score"] = rating.info.pop("belief")
        return rating
    prompt = words(WORDING, task, "rating", question=defuse(posed.prompt))
    rating = await judge.ask("rating", prompt, about=proposal)
    rating.info["score"] = share(rating)
    return rating


def _passes(rating: Turn) -> bool:
    """Whether a rating accepts its proposal."""
    score = rating.info["score"]
    return score is not None and score >= PASSES


async def _answer(
    posed: Question,
    solver: Agent,
    its_judge: Agent,
    task: Task,
    about: Turn | None,
    score: Score,
) -> Turn:
    """Have it solved and the solution judged."""
    solution = await posing.solve(posed, solver, task, about)
    solution.info["readable"] = given(posed, solution, task) is not None
    await judge(its_judge, posed, solution, task, WORDING, score)
    return solution


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward form, scores and difficulty, as above."""
    for episode in episodes:
        judgements = in_role(episode, "rating", "judging")
        scores = {turn.about: turn.info["score"] for turn in judgements}
        for turn in judgements:
            if not is_weighing(turn):  # all would have the same reward
                turn.reward = float(turn.info["score"] is not None)
        solutions = in_role(episode, "solution")
        for turn in solutions:
            score = scores[turn.id]
            if score is not None:
                turn.reward = (score + turn.info["readable"]) / 2
        success = mean([scores[turn.id] for turn in solutions])
        if solutions and success is None:
            continue  # no judge could be read: how hard the question is stays unknown
        difficulty = 0.0 if success is None else 1.0 - success
        for turn in in_role(episode, "propose"):
            quality = scores.get(turn.id, 0.0)
            if quality is not None:
                form = float(turn.info["posed"] is not None)
                turn.reward = (quality + difficulty + form) / 3


def update(state: State, episodes: Sequence[Episode], task: Task, *, pool: Count = 1000) -> State:
    """Accepted questions join the pool, each once; the oldest leave it."""
    accepted: list[str] = []
    for episode in episodes:
        turns = by_id(episode)
        for rating in in_role(episode, "rating"):
            if _passes(rating):
                proposal = turns[rating.about or ""]
                accepted.append(proposal.info["posed"])
    return {"pool": with_newest(state["pool"], accepted, pool)}


KL = {"propose": 0.1, "rating": 0.5, "solution": 0.1, "judging": 0.5}
ROLES = {
    "propose": Role(
        "other", reward="a third each: its rating, the failures of its solvers, its form"
    ),
    "rating": Role("rater", reward="1 for a score that can be read; none if weighed"),
    "solution": Role("answer", reward="half its score, half its form"),
    "judging": Role("judge", reward="1 for a score that can be read; none if weighed"),
}
PAPER = {"kl": {}, "loss": {"clip_high": 0.28}, "credit": {"entropy": 0.001}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    roles=ROLES,
    memory=Memory(start, draw, update),
    needs=("pose",),
    presets={"stable": {"questions": 48, "steps": 100}, "paper": PAPER},
    base="tiny-pose",
    team={"a0": {}},
)
