"""SEC, Self-Evolving Curriculum (arXiv 2505.14970): a bandit over kinds of questions asks where
most can be learnt.

The game, rewards and credit of `rlvr`; kinds (`Question.kind`) are the arms. What is gained from a
kind in a step is the mean absolute advantage of its answers, as GRPO assigns it before the KL: 2
sqrt(p (1 - p)) for a question that is answered rightly at a rate p, and 0 where all answers are
right or all wrong. A kind's value moves towards its gain by `rate`, and kinds are drawn by the
softmax of their values over `temperature`. Unlike the paper, a kind whose value is unknown starts
at 0. Leaves out: difficulty that is not a kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Gt, Le

from comas.methods import rlvr
from comas.objective.rewards import mean
from comas.objective.spread import standardised
from comas.types import Episode, Memory, Positive, Question, State, Task

Rate = Annotated[float, Gt(0), Le(1)]
Values = dict[str, float]
"""Kind -> its value, in units of gains."""


def start(questions: Sequence[Question], task: Task) -> State:
    """No kind is known to be worth more than another."""
    return {"values": dict.fromkeys(sorted({question.kind for question in questions}), 0.0)}


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
    return drawn(state["values"], questions, count, rng, temperature)


def drawn(
    values: Mapping[str, float],
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    temperature: float,
) -> list[Question]:
    """Draw `count` different questions: for each a kind with probability proportional to
    exp(value / temperature), among kinds that have questions left, then one of that kind,
    uniformly.
    """
    left: dict[str, list[Question]] = {}
    for question in questions:
        left.setdefault(question.kind, []).append(question)
    for kind in sorted(left):
        rng.shuffle(left[kind])
    chosen: list[Question] = []
    while left and len(chosen) < count:
        chances = softmax(values, left, temperature)
        (kind,) = rng.choices(list(chances), list(chances.values()))
        chosen.append(left[kind].pop())
        if not left[kind]:
            del left[kind]
    return chosen


def softmax(
    values: Mapping[str, float], kinds: Collection[str], temperature: float
) -> dict[str, float]:
    """Kind -> its probability among these; a kind without a value has 0."""
    value_of = {kind: values.get(kind, 0.0) for kind in sorted(kinds)}
    highest = max(value_of.values())
    weights = {kind: math.exp((value - highest) / temperature) for kind, value in value_of.items()}
    total = math.fsum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def update(state: State, episodes: Sequence[Episode], task: Task, *, rate: Rate = 0.5) -> State:
    """Values follow what each kind gained."""
    gains: dict[str, list[float]] = {}
    for episode in episodes:
        gain = gained(episode)
        if gain is not None:
            gains.setdefault(episode.question.kind, []).append(gain)
    return {"values": moved(state["values"], gains, rate)}


def moved(values: Mapping[str, float], gains: Mapping[str, Sequence[float]], rate: float) -> Values:
    """Values after a step: those of kinds that were asked move by `rate` towards their mean gain,
    TD(0) without a next state.
    """
    updated = dict(values)
    for kind, of_kind in gains.items():
        if of_kind:
            mean = math.fsum(of_kind) / len(of_kind)
            before = updated.get(kind, 0.0)
            updated[kind] = before + rate * (mean - before)
    return updated


def gained(episode: Episode) -> float | None:
    """The mean absolute advantage of the answers to a question; None where none was rewarded."""
    rewards = [turn.reward for turn in episode.turns if turn.reward is not None]
    return mean([abs(float(advantage)) for advantage in standardised(rewards)])


method = replace(
    rlvr.method,
    memory=Memory(start, draw, update),
    presets={"stable": {"questions": 48, "steps": 120}},
    task="pick_levels",
)
