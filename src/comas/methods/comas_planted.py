"""CoMAS whose judges are paid on work whose verdict is known without a label.

The game is CoMAS (arXiv 2510.08529) on the first readable of `votes` solutions. Beside it, up to
`plants` pairs of judges each see work that is as good as surely wrong, since it was written in the
step before for another question, and work that is likely to be right, since more than half of the
solutions agree with it. They are paid 1 for a score of 1 (planted) or of 3 (agreed), 1/2 for a 2, 0
for the opposite, -1 for one that cannot be read; a critic is paid what its scorer is. Nothing tells
judges which work is planted but the work itself. The judges of the game are not paid: they hold by
what they learn here. Judges are drawn from all who take their role, an author among them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose, together
from comas.game.votes import agrees, decide, most_frequent, solved
from comas.methods import comas
from comas.methods.comas import WORDING
from comas.methods.comas_agree import pay_judges
from comas.methods.comas_rules import closeness
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.pay import by_id, in_role
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
    counts = {"": 1, "wrong": plants, "right": plants}
    judges = {verdict: _judges(agents, rng, count) for verdict, count in counts.items()}
    foreign = [work for prompt, work in state["works"] if prompt != question.prompt]
    planted = rng.sample(foreign, min(plants, len(foreign)))
    solutions = await solved(question, authors, task, WORDING)
    answer = await decide(question, solutions, task)
    readable = [turn for turn in solutions if turn.info["answer"] is not None]
    works = {
        "": [(turn, task.shown(question, turn.text)) for turn in readable],
        "wrong": [(solutions[0], work) for work in planted],
        "right": [(turn, task.shown(question, turn.text)) for turn in _agreed(solutions, task)],
    }
    judging = [
        _judge(question, about, work, pair, task, verdict)
        for verdict, pairs in judges.items()
        for (about, work), pair in zip(works[verdict], pairs, strict=False)
    ]
    await together(judging)
    return answer


def _judges(agents: Sequence[Agent], rng: random.Random, count: int) -> list[tuple[Agent, Agent]]:
    """So many pairs of a critic and a scorer."""
    pairs: list[tuple[Agent, Agent]] = []
    for _ in range(count):
        critic = choose(agents, rng, "evaluation")
        pairs.append((critic, choose(agents, rng, "scoring")))
    return pairs


def _agreed(solutions: Sequence[Turn], task: Task) -> list[Turn]:
    """The solutions that give the majority's answer, where that are more than half of all, and more
    than one.
    """
    best, share = most_frequent(solutions, task)
    if best is None or share <= 0.5:
        return []
    agreed = [turn for turn in solutions if agrees(turn, best, task)]
    return agreed if len(agreed) > 1 else []


async def _judge(
    question: Question,
    about: Turn,
    work: str,
    judges: tuple[Agent, Agent],
    task: Task,
    verdict: str,
) -> None:
    """Have work criticised and scored; `info["known"]` is its verdict, empty without one."""
    _, scoring = await comas.judge(question, about, work, *judges, task)
    scoring.info["known"] = verdict


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Pay the judged solution its score, unreadable ones 0, and judges of known work by it."""
    for episode in episodes:
        turns = by_id(episode)
        for turn in in_role(episode, "solution"):
            turn.reward = 0.0 if turn.info["answer"] is None else None
        for scoring in in_role(episode, "scoring"):
            score = scoring.info["score"]
            solution = turns[turns[scoring.about or ""].about or ""]
            verdict = scoring.info["known"]
            if verdict:
                pay_judges(scoring, turns, closeness(score, verdict))
            elif score is not None:
                solution.reward = (score - 1) / 2


def update(state: State, episodes: Sequence[Episode], task: Task) -> State:
    """The works of this step, one a question, to be planted in the next."""
    works: dict[str, str] = {}
    for episode in episodes:
        for turn in in_role(episode, "solution"):
            if turn.info["answer"] is not None:
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
    presets={"stable": {"questions": 48, "steps": 120}},
    pays=PAYS,
)
