"""CoMAS whose judges are paid on work whose verdict is known without a label.

The game is CoMAS (arXiv 2510.08529); after each solution, `plants` further judges see a piece of
work that is known to be wrong or likely to be right: work of another question that was played in
the step before, or, where `votes` solutions of the question agree, the work of one of them. They
are paid 1 for a score of 1 (planted) or of 3 (agreed), 1/2 for a 2, 0 for the opposite, -1 for one
that cannot be read; a critic is paid what its scorer is. Judges cannot tell which work is planted.
The judges of the game itself are not paid: they hold by what they learn here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.prompts import defuse, words
from comas.game.votes import agrees, decide, majority
from comas.methods import comas
from comas.methods.comas import WORDING, read_score
from comas.methods.comas_agree import pay_judges
from comas.methods.comas_rules import closeness
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Count, Episode, Method, Question, State, Task, Turn


def start(questions: Sequence[Question], task: Task) -> State:
    """No work yet: the first step plants none of other questions."""
    return {"works": []}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    state: State,
    votes: Count = 4,
    plants: Count = 1,
) -> str | None:
    """Have it solved `votes` times, one solution judged as in CoMAS and others as planted work; the
    majority answers.
    """
    authors = [choose(agents, rng, "solution") for _ in range(votes)]
    judges = [_judges(agents, rng) for _ in range(2 * plants + 1)]
    foreign = [work for work in state["works"] if work[0] != question.prompt]
    planted = rng.sample(foreign, min(plants, len(foreign)))
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(author.ask("solution", prompt)) for author in authors]
    solutions = [reply.result() for reply in asked]
    answer = await decide(question, solutions, task)
    shown = [defuse(task.shown(question, turn.text)) for turn in solutions]
    agreed = _agreed(solutions, task)
    readable = [place for place, turn in enumerate(solutions) if turn.info["answer"] is not None]
    async with asyncio.TaskGroup() as group:
        if readable:
            first = readable[0]
            group.create_task(_judge(question, shown[first], solutions[first], judges[0], task, ""))
        for pair, (_, work) in zip(judges[1 : plants + 1], planted, strict=False):
            group.create_task(_judge(question, defuse(work), solutions[0], pair, task, "wrong"))
        for pair, place in zip(judges[plants + 1 :], agreed, strict=False):
            group.create_task(_judge(question, shown[place], solutions[place], pair, task, "right"))
    return answer


def _judges(agents: Sequence[Agent], rng: random.Random) -> tuple[Agent, Agent]:
    """A critic and a scorer."""
    return choose(agents, rng, "evaluation"), choose(agents, rng, "scoring")


def _agreed(solutions: Sequence[Turn], task: Task) -> list[int]:
    """Places of the solutions that more than half of all agree with."""
    best = majority([turn.info["answer"] for turn in solutions], task)
    if best is None:
        return []
    places = [place for place, turn in enumerate(solutions) if agrees(turn, best, task)]
    return places if 2 * len(places) > len(solutions) else []


async def _judge(
    question: Question,
    work: str,
    about: Turn,
    judges: tuple[Agent, Agent],
    task: Task,
    known: str,
) -> None:
    """Have work criticised and scored; `info["known"]` is its verdict, empty without one."""
    critic, scorer = judges
    facts = {"question": question.prompt, "work": work}
    prompt = words(WORDING, task, "evaluation", **facts)
    evaluation = await critic.ask("evaluation", prompt, about=about)
    criticism = defuse(evaluation.text)
    prompt = words(WORDING, task, "scoring", **facts, evaluation=criticism)
    scoring = await scorer.ask("scoring", prompt, about=evaluation)
    scoring.info["score"] = read_score(scoring)
    scoring.info["known"] = known


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Pay the judged solution its score, unreadable ones 0, and judges of known work by it."""
    for episode in episodes:
        turns = {turn.id: turn for turn in episode.turns}
        for turn in episode.turns:
            if turn.role == "solution" and turn.info["answer"] is None:
                turn.reward = 0.0
        for scoring in [turn for turn in episode.turns if turn.role == "scoring"]:
            score = scoring.info["score"]
            solution = turns[turns[scoring.about or ""].about or ""]
            if scoring.info["known"]:
                pay_judges(scoring, turns, closeness(score, scoring.info["known"]))
            elif score is not None:
                solution.reward = (score - 1) / 2


def update(state: State, episodes: Sequence[Episode], task: Task) -> State:
    """The works of this step, one a question, to be planted in the next."""
    works: dict[str, str] = {}
    for episode in episodes:
        for turn in episode.turns:
            if turn.role == "solution" and turn.info["answer"] is not None:
                work = task.shown(episode.question, turn.text)
                works.setdefault(episode.question.prompt, work)
    return {"works": [list(work) for work in works.items()]}


PAYS = {
    "solution": "its score: 3 is +1, 2 is +0.5, 1 is 0",
    "evaluation": "whether the score after it is right for work that is known; else nothing",
    "scoring": "the same; -1 for a score that cannot be read",
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    comas.KL,
    start=start,
    update=update,
    paid=tuple(comas.KL),
    presets={"stable": {"questions": 48}},
    pays=PAYS,
)
