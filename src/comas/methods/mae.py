"""MAE, Multi-Agent Evolve (arXiv 2510.23595): proposer, solver and judge are one model in three
roles; no questions, no labels.

A proposer writes a question, from nothing or after an accepted one. A judge rates it; if it passes,
`answers` solvers try it and the judge scores each. A proposal is paid a third each for quality, for
difficulty (1 - mean score of its answers) and for form; a solution half for its score and half for
form; a judge for form. Accepted questions go into a pool, which later steps solve again and refer
to. Unlike the paper, the answers that measure difficulty are trained on as well, an unreadable
score pays and measures nothing (the paper: 0.5), and proposers write no answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.prompts import defuse, words
from comas.game.scores import JUDGING, judge, share
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.pay import mean
from comas.types import Count, Episode, Method, Question, State, Task, Turn, Whole

WORDING = {
    "propose": (
        "{history}\nWrite one new, harder question that can be solved from its own text. Write only"
        " the question."
    ),
    "reference": "An accepted question:\n{question}",
    "rating": (
        "A proposed question:\n{question}\n\nIs it clear, complete and solvable? Check it, then end"
        " with <score>N</score>: 3 good, 2 usable, 1 malformed or unsolvable."
    ),
    "solution": "{question}\n\nSolve it and end with the answer.",
    "judging": JUDGING,
}
PASSES = 0.7
"""Share of the scale from which a rating accepts a question."""


def start(questions: Sequence[Question], task: Task, *, seeds: Whole = 0) -> State:
    """A pool of `seeds` training questions; none is the paper's zero-data setting."""
    return {"pool": [question.prompt for question in questions[:seeds]]}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    refer: float = 0.5,
    solve: float = 0.5,
) -> list[Question]:
    """A share `solve` of the step from the pool, as far as it goes; the rest are proposals, of
    which a share `refer` sees an accepted question.
    """
    pool = state["pool"]
    again = posed_again(task, rng.sample(pool, min(len(pool), int(solve * count))))
    proposals: list[Question] = []
    for place in range(count - len(again)):
        seen = rng.choice(pool) if pool and rng.random() < refer else ""
        proposals.append(Question(id=f"proposal-{place}", prompt=seen, kind="propose"))
    return again + proposals


def posed_again(task: Task, prompts: Sequence[str]) -> list[Question]:
    """The questions that these texts write."""
    assert task.pose is not None, "Method.needs"
    posed = [task.pose(prompt) for prompt in prompts]
    return [question for question in posed if question is not None]


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: Count = 5,
) -> str | None:
    """Have a question proposed and rated where it is a proposal, then solved and judged; the first
    solution answers, and None where the proposal did not pass.
    """
    about = None
    posed: Question | None = question
    if question.kind == "propose":
        about, posed = await propose(question, choose(agents, rng, "propose"), task)
        if posed is None or not await _passes(posed, about, choose(agents, rng, "rating"), task):
            return None
    cast = [
        (choose(agents, rng, "solution"), choose(agents, rng, "judging")) for _ in range(answers)
    ]
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(_answer(posed, solver, its_judge, task, about))
            for solver, its_judge in cast
        ]
    return asked[0].result().text


async def propose(question: Question, proposer: Agent, task: Task) -> tuple[Turn, Question | None]:
    """Have a question written; `info["posed"]` is its text, or None where it is none."""
    assert task.pose is not None, "Method.needs"
    seen = defuse(question.prompt)
    history = words(WORDING, task, "reference", question=seen) if seen else ""
    turn = await proposer.ask("propose", words(WORDING, task, "propose", history=history))
    posed = task.pose(turn.text) if turn.finished else None
    turn.info["posed"] = None if posed is None else posed.prompt
    return turn, posed


async def _passes(posed: Question, about: Turn, judge: Agent, task: Task) -> bool:
    """Have a proposal rated; whether it is accepted."""
    prompt = words(WORDING, task, "rating", question=defuse(posed.prompt))
    rating = await judge.ask("rating", prompt, about=about)
    rating.info["score"] = share(rating)
    return (rating.info["score"] or 0.0) >= PASSES


async def _answer(
    posed: Question, solver: Agent, its_judge: Agent, task: Task, about: Turn | None
) -> Turn:
    """Have it solved and the solution judged."""
    prompt = words(WORDING, task, "solution", question=defuse(posed.prompt), history="")
    solution = await solver.ask("solution", prompt, about=about)
    readable = solution.finished and task.extract(posed, solution.text) is not None
    solution.info["readable"] = readable
    await judge(its_judge, posed, solution, task, WORDING)
    return solution


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Pay form, scores and difficulty, as above."""
    for episode in episodes:
        judgements = [turn for turn in episode.turns if turn.role in ("rating", "judging")]
        scores = {turn.about: turn.info["score"] for turn in judgements}
        for turn in judgements:
            turn.reward = float(turn.info["score"] is not None)
        solved = [turn for turn in episode.turns if turn.role == "solution"]
        for turn in solved:
            if scores[turn.id] is not None:
                turn.reward = (scores[turn.id] + turn.info["readable"]) / 2
        success = mean([scores[turn.id] for turn in solved])
        difficulty = 0.0 if success is None else 1.0 - success
        for turn in episode.turns:
            if turn.role == "propose":
                form = float(turn.info["posed"] is not None)
                turn.reward = ((scores.get(turn.id) or 0.0) + difficulty + form) / 3


def update(state: State, episodes: Sequence[Episode], task: Task, *, pool: Count = 1000) -> State:
    """Accepted questions join the pool, each once; the oldest leave it."""
    turns = [turn for episode in episodes for turn in episode.turns]
    ratings = [turn for turn in turns if turn.role == "rating"]
    accepted = {turn.about for turn in ratings if (turn.info["score"] or 0.0) >= PASSES}
    posed = [turn.info["posed"] for turn in turns if turn.id in accepted]
    return {"pool": list(dict.fromkeys([*state["pool"], *posed]))[-pool:]}


KL = {"propose": 0.1, "rating": 0.5, "solution": 0.1, "judging": 0.5}
PAYS = {
    "propose": "a third each: its rating, the failures of its solvers, its form",
    "rating": "1 for a score that can be read",
    "solution": "half its score, half its form",
    "judging": "1 for a score that can be read",
}
PAPER = {"kl": {}, "loss": {"clip_high": 0.28}, "credit": {"entropy": 0.001}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    start=start,
    draw=draw,
    update=update,
    needs=("pose",),
    paid=tuple(KL),
    presets={"stable": {"questions": 48}, "paper": PAPER},
    pays=PAYS,
    base="seed-pose",
    team={"a0": {}},
)
