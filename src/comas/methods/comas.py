"""CoMAS (arXiv 2510.08529): agents solve, criticise and score each other; the game itself is the
reward.

One round: a solution, `evaluations` criticisms of it, one score per criticism (3 right, 2 minor
flaws, 1 fatally wrong). Unlike the paper (preset `paper`): nobody judges its own work, work without
a readable answer is paid 0 and not judged, rewards are normalised per role, a KL holds the judges.
Leaves out: the published code's synchronous rounds.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.game.prompts import defuse, words
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Count, Episode, Method, Question, Task, Turn, Whole

SCALE = (
    "How good is the solution? 3: right; 2: right, with minor flaws; 1: fatally wrong. End with"
    " <score>N</score>."
)
WORDING = {
    "solution": "{question}\n\n{history}\nGive your own solution, and end with the answer.",
    "history": "A colleague wrote:\n{work}\nIt was criticised:\n{evaluation}\n",
    "history_bare": "A colleague wrote:\n{work}\n",
    "evaluation": (
        "Question:\n{question}\n\nA proposed solution:\n{work}\n\nCheck it step by step and name"
        " every error."
    ),
    "scoring": (
        "Question:\n{question}\n\nA proposed solution:\n{work}\n\nCriticism of"
        " it:\n{evaluation}\n\n" + SCALE
    ),
    "scoring_bare": "Question:\n{question}\n\nA proposed solution:\n{work}\n\n" + SCALE,
}
Judged = tuple[Turn | None, Turn]  # evaluation, scoring
_SCORE = re.compile(r"<\s*score\s*>\s*([123])\s*<\s*/\s*score\s*>\s*\Z")
_TAG = re.compile(r"<\s*/?\s*score\b", re.IGNORECASE)


def read_score(turn: Turn) -> int | None:
    """1, 2 or 3 if the reply is finished and its one score element ends it; None otherwise."""
    found = _SCORE.search(turn.text)
    return int(found[1]) if found and turn.finished and len(_TAG.findall(turn.text)) == 2 else None


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    rounds: Count = 1,
    evaluations: Count = 1,
    kappa: Whole = 2,
    references: Whole = 1,
    avoid_self: bool = True,
    format_check: bool = True,
    evaluate: bool = True,
) -> str | None:
    """`rounds` solutions in turn, each seeing the last `kappa` rounds and up to `references`
    criticisms of each.
    """
    past: list[tuple[Turn, list[Judged]]] = []
    for at in range(rounds):
        seen = past[max(0, len(past) - kappa) :]
        history = [
            _quote(task, question, s, e)
            for s, js in seen
            for e, _ in js[:references] or [(None, None)]
        ]

        def prompt(kept: Sequence[str]) -> str:
            earlier = "\n".join(kept)
            return words(WORDING, task, "solution", question=question.prompt, history=earlier)

        author = _draw(agents, rng, "solution")
        solution = await author.ask("solution", prompt, history=history, round=at)
        solution.info["readable"] = readable = (
            solution.finished and task.extract(question, solution.text) is not None
        )
        drawn = []
        for _ in range(evaluations if readable or not format_check else 0):
            critic = (
                _draw(agents, rng, "evaluation", solution.agent if avoid_self else "")
                if evaluate
                else None
            )
            barred = [solution.agent, critic.name if critic else ""] if avoid_self else []
            drawn.append((critic, _draw(agents, rng, "scoring", *barred)))
        async with asyncio.TaskGroup() as group:
            judged = [
                group.create_task(_judge(question, solution, critic, scorer, task))
                for critic, scorer in drawn
            ]
        past.append((solution, [j.result() for j in judged]))
    # the best-scored solution, the latest among equals; unscored ones come last
    means = [_mean([scoring.info["score"] for _, scoring in js]) or 0.0 for _, js in past]
    return past[max(range(rounds), key=lambda i: (means[i], i))][0].text


async def _judge(
    question: Question, solution: Turn, critic: Agent | None, scorer: Agent, task: Task
) -> Judged:
    facts = {"question": question.prompt, "work": defuse(task.shown(question, solution.text))}
    evaluation = None
    role = "scoring_bare"
    if critic:
        evaluation = await critic.ask(
            "evaluation", words(WORDING, task, "evaluation", **facts), about=solution
        )
        role = "scoring"
        facts["evaluation"] = defuse(evaluation.text)
    scoring = await scorer.ask(
        "scoring", words(WORDING, task, role, **facts), about=evaluation or solution
    )
    scoring.info["score"] = read_score(scoring)
    return evaluation, scoring


def _quote(task: Task, question: Question, solution: Turn, evaluation: Turn | None) -> str:
    said = {"evaluation": defuse(evaluation.text)} if evaluation else {}
    return words(
        WORDING,
        task,
        "history" if said else "history_bare",
        work=defuse(task.shown(question, solution.text)),
        **said,
    )


def _draw(agents: Sequence[Agent], rng: random.Random, role: str, *barred: str) -> Agent:
    """An agent for the role, uniformly; of `barred` only if the team is too small for another."""
    able = [a for a in agents if a.takes(role)]
    return rng.choice(
        next(fit for n in (2, 1, 0) if (fit := [a for a in able if a.name not in barred[:n]]))
    )


def _mean(scores: list[int | None]) -> float | None:
    readable = [s for s in scores if s is not None]
    return sum(readable) / len(readable) if readable else None


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Zero-sum between a solution and its criticism; an unreadable score pays its scorer -1 and
    settles nothing else.
    """
    for episode in episodes:
        turns = {t.id: t for t in episode.turns}
        scores: dict[str, list[int | None]] = {
            t.id: [] for t in episode.turns if t.role == "solution"
        }
        for scoring in [t for t in episode.turns if t.role == "scoring"]:
            score = scoring.info["score"]
            scoring.reward = -1.0 if score is None else 0.0
            judged = turns[scoring.about or ""]
            if judged.role == "evaluation":
                judged.reward = None if score is None else 1.0 - (score - 1) / 2
                judged = turns[judged.about or ""]
            scores[judged.id].append(score)
        for key, given in scores.items():
            if (mean := _mean(given)) is not None:
                turns[key].reward = (mean - 1) / 2
            elif format_check and not turns[key].info["readable"]:
                turns[key].reward = 0.0


KL = {"solution": 0.1, "evaluation": 0.5, "scoring": 0.5}
PAPER = {
    "options": {"avoid_self": False, "format_check": False},
    "credit": {"normalise": "all"},
    "kl": {},
}
PAYS = {
    "solution": "the mean of its readable scores: 3 is +1, 2 is +0.5, 1 is 0",
    "evaluation": "the opposite: 1 minus that",
    "scoring": "0; -1 for a score that cannot be read",
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    KL,
    paid=tuple(KL),
    presets={"stable": {}, "paper": PAPER},
    pays=PAYS,
)
