"""SEC, Self-Evolving Curriculum (arXiv 2505.14970): a bandit over kinds of questions asks where
most can be learnt.

The game, pay and credit of `rlvr`; kinds (`Question.kind`) are the arms. What is gained from a kind
in a step is the mean absolute advantage of its answers, as GRPO assigns it before the KL: 2
sqrt(p (1 - p)) for a question that is answered rightly at a rate p, and 0 where all answers are
right or all wrong. A kind's value moves towards its gain by `rate`, and kinds are drawn by the
softmax of their values over `temperature`. Unlike the paper, a kind whose value is unknown starts
at 0. Leaves out: difficulty that is not a kind; `game.curriculum` takes any.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Gt, Le

from comas.game import curriculum
from comas.methods import rlvr
from comas.objective.pay import mean, standardised
from comas.types import Episode, Positive, Question, State, Task

Rate = Annotated[float, Gt(0), Le(1)]


def start(questions: Sequence[Question], task: Task) -> State:
    """No kind is known to be worth more than another."""
    return {"values": curriculum.first_values(questions)}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    temperature: Positive = 0.25,
) -> list[Question]:
    """Kinds by their values, then questions of them at random."""
    return curriculum.drawn(state["values"], questions, count, rng, temperature)


def update(state: State, episodes: Sequence[Episode], task: Task, *, rate: Rate = 0.5) -> State:
    """Values follow what each kind gained."""
    gains: dict[str, list[float]] = {}
    for episode in episodes:
        gain = gained(episode)
        if gain is not None:
            gains.setdefault(episode.question.kind, []).append(gain)
    return {"values": curriculum.moved(state["values"], gains, rate)}


def gained(episode: Episode) -> float | None:
    """The mean absolute advantage of the answers to a question; None where none was paid."""
    rewards = [turn.reward for turn in episode.turns if turn.reward is not None]
    return mean([abs(advantage) for advantage in standardised(rewards)])


method = replace(
    rlvr.method,
    start=start,
    draw=draw,
    update=update,
    presets={"stable": {"questions": 48, "steps": 120}},
    task="pick_levels",
)
