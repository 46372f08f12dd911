"""SPPO, Self-Play Preference Optimization (arXiv 2405.00675): a policy against itself; a judge says
who wins.

An agent answers a question `votes` times; a judge scores each answer `readings` times, and the
probability that one beats another is the sigmoid of the difference of their mean scores times
`sharpness`. An answer's reward is its mean probability against all. The best and the worst are
trained on, towards log(pi / pi_t) = eta (reward - 1/2), where pi_t is the policy at the start of
the step: a step is an iteration of the paper, `epochs` and `minibatches` are its updates. Unlike
the paper, a judge that writes takes the place of PairRM; where it is frozen (the default team), it
is the paper's fixed judge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from comas.game.agent import Agent, choose, together
from comas.game.prompts import solving
from comas.methods.shared.judging import JUDGING, Score, judge
from comas.objective.losses import plain
from comas.objective.preference import sigmoid, sppo
from comas.objective.rewards import in_role, mean
from comas.objective.spread import is_flat
from comas.types import Count, Episode, Method, Question, Role, Task, Turn

WORDING = {"judging": JUDGING}


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 5,
    readings: Count = 1,
    score: Score = "text",
) -> str | None:
    """Have one agent solve it `votes` times, each answer judged; the best-liked answers."""
    author = choose(agents, rng, "solution")
    answers: list[Coroutine[Any, Any, Turn]] = []
    for _ in range(votes):
        judges = [choose(agents, rng, "judging") for _ in range(readings)]
        answers.append(_answer(question, author, judges, task, score))
    turns = await together(answers)
    means = [turn.info["mean"] for turn in turns]
    likings = [-1.0 if liking is None else liking for liking in means]
    return turns[likings.index(max(likings))].text


async def _answer(
    question: Question, author: Agent, judges: Sequence[Agent], task: Task, score: Score
) -> Turn:
    """Have it solved once, and the solution scored by each judge."""
    solution = await author.ask("solution", solving(question, task))
    judgings = await together(
        judge(each, question, solution, task, WORDING, score) for each in judges
    )
    scores = [judging.info["score"] for judging in judgings]
    solution.info["mean"] = mean(scores)
    return solution


def settle(episodes: Sequence[Episode], task: Task, *, sharpness: float = 4.0) -> None:
    """Reward the best and the worst answer of an episode with their probability to win.

    Others, and answers without a readable score, are not rewarded.
    """
    for episode in episodes:
        scored = scored_of(episode)
        pay_extremes(episode, scored, [_chance(turn, scored, sharpness) for turn in scored])


def pay_extremes(episode: Episode, turns: Sequence[Turn], worths: Sequence[float]) -> None:
    """Reward the best and the worst of some turns with what they are worth; none where all are
    equal but for rounding.
    """
    if is_flat(worths):
        return
    for worth in (max(worths), min(worths)):
        turn = turns[worths.index(worth)]
        turn.reward = worth
        turn.group = episode.id


def scored_of(episode: Episode) -> list[Turn]:
    """The answers of an episode whose score can be read."""
    answers = in_role(episode, "solution")
    return [turn for turn in answers if turn.info["mean"] is not None]


def _chance(turn: Turn, others: Sequence[Turn], sharpness: float) -> float:
    """The mean probability that an answer beats one of these."""
    own_mean: float = turn.info["mean"]
    gaps = [own_mean - other.info["mean"] for other in others]
    chances = [sigmoid(sharpness * gap) for gap in gaps]
    return math.fsum(chances) / len(chances)


ROLES = {
    "solution": Role(
        "answer", reward="the probability that it beats another answer, for the best and the worst"
    ),
    "judging": Role("judge"),
}
PAPER = {"epochs": 4, "minibatches": 4, "credit": {"eta": 1000.0}}
TEAM = {"a0": {"roles": ["solution"]}, "judge": {"roles": ["judging"], "frozen": True}}
method = Method(
    play,
    settle,
    sppo,
    plain,
    roles=ROLES,
    fresh=True,
    epochs=2,
    minibatches=2,
    presets={"stable": {"questions": 32}, "paper": PAPER},
    base="tiny-pose",
    team=TEAM,
)
