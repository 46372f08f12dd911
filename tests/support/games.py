"""Games of one question, played by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from comas.game.agent import Agent
from comas.objective.credit import grpo
from comas.objective.losses import plain
from comas.types import Episode, Method, Question, Task, Turn


def game(play: Callable[..., Any], **fields: Any) -> Method:
    def settle(episodes: list[Episode], task: Task) -> None:
        for turn in [t for e in episodes for t in e.turns]:
            turn.reward = 1.0

    return Method(play, settle, grpo, plain, **fields)


def turn(name: str, agent: str, reward: float | None, policy: str = "h/p") -> Turn:
    return Turn(
        name, agent, policy, "solution", "", "", True, 0, reward=reward, group="g", kind="answer"
    )


async def one(question: Question, agents: list[Agent], rng: random.Random, task: Task) -> str:
    return (await agents[0].ask("solution", question.prompt)).text
