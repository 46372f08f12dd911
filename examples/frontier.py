"""A method that remembers: votes on the questions that split the team when it was last asked.
comas train method=./examples/frontier.py options.votes=8

Where all agree a vote teaches nothing. The record holds the share of the majority for each question
that was asked; half of a step are questions whose share lay between `low` and `high`, the other
half are drawn from the rest. A vote for the majority's answer has reward 1, any other 0.
"""

import asyncio

from comas.game.prompts import words
from comas.game.votes import agrees, decide, majority
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Memory, Method

WORDING = {"solution": "{question}\n\nSolve it and end with the answer."}


def start(questions, task):
    return {"shares": {}}


def draw(state, questions, count, rng, task, *, low: float = 0.2, high: float = 0.8):
    split = [q for q in questions if low <= state["shares"].get(q.id, 0.0) <= high]
    again = rng.sample(split, min(count // 2, len(split)))
    others = [q for q in questions if q not in again]
    return again + rng.sample(others, min(count - len(again), len(others)))


async def play(question, agents, rng, task, *, votes: int = 8):
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    voters = [rng.choice(agents) for _ in range(votes)]
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(agent.ask("solution", prompt)) for agent in voters]
    # notes on each turn what it votes for, info["answer"]
    return await decide(question, [vote.result() for vote in asked], task)


def settle(episodes, task):
    for episode in episodes:
        best = majority([turn.info["answer"] for turn in episode.turns], task)
        for turn in episode.turns:
            turn.reward = float(best is not None and agrees(turn, best, task))
            turn.group = f"{episode.id}/{turn.policy}"


def update(state, episodes, task):
    shares = dict(state["shares"])
    for episode in episodes:
        rewards = [turn.reward for turn in episode.turns]
        shares[episode.question.id] = sum(rewards) / len(rewards)
    return {"shares": shares}


method = Method(play, settle, grpo, clipped, memory=Memory(start, draw, update))
