"""SFT: supervised fine-tuning on demonstrations, a warm start for roles whose format a base does
not know yet.

Each step tells the team's policies the demonstrations that were drawn, in the role that each names;
all are rewarded with 1, and the plain loss of that is the mean cross-entropy of the replies'
tokens, in nats: the `loss` in `metrics.jsonl`. Nothing is measured unless it is asked for: a
demonstration says what to write, not what is right (`comas eval RUN --tasks ...` measures). Leaves
out: weights of demonstrations, packing, rehearsal of what the base could do before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, together
from comas.objective.credit import given
from comas.objective.losses import plain
from comas.types import Episode, Method, Question, Role, Task, UserMistake


async def play(question: Question, agents: Sequence[Agent], rng: random.Random, task: Task) -> None:
    """Tell the demonstration once to each policy that takes its role."""
    role = question.meta.get("role")
    if role is None or question.answer is None:
        raise UserMistake(
            f"question {question.id} of task {task.name} is no demonstration, and method sft learns"
            " nothing else: set task=demonstrations data=FILE"
        )
    takers = [agent for agent in agents if agent.takes(role)]
    pupils: dict[str, Agent] = {}
    for agent in sorted(takers, key=lambda agent: agent.member.frozen):
        pupils.setdefault(agent.member.address, agent)  # one that learns, where there is one
    if not pupils:
        raise UserMistake(
            f"demonstration {question.id} is for role {role!r}, which no agent takes: see"
            " agents.<name>.roles"
        )
    messages = question.meta.get("messages", question.prompt)
    reply = question.answer
    await together(agent.tell(role, messages, reply) for agent in pupils.values())


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for every demonstration."""
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = 1.0


ROLES = {
    "solution": Role("answer"),
    "revision": Role("answer"),
    "evaluation": Role("judge"),
    "judging": Role("judge"),
    "scoring": Role("judge"),
    "rating": Role("rater"),
}
"""Kinds of roles that demonstrations may have; any other is one of no kind."""
method = Method(
    play,
    settle,
    given,
    plain,
    roles=ROLES,
    supervised=True,
    presets={"stable": {"questions": 32, "test_questions": 0, "eval_every": 0}},
)
