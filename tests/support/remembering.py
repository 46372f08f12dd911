"""A method with a record, in a file of its user's own: every text, draw and reward of a step depends
on all steps before it.
"""

from __future__ import annotations

METHOD = '''
import asyncio
import hashlib

from comas.objective.credit import grpo
from comas.objective.losses import plain
from comas.types import Method


def start(questions, task):
    return {"steps": 0, "digest": "", "lengths": {}}


def draw(state, questions, count, rng, task):
    """The questions with the longest replies, then new ones."""
    known = sorted(questions, key=lambda q: (-state["lengths"].get(q.id, 0), q.id))
    first = known[: count // 2]
    return first + rng.sample([q for q in questions if q not in first], count - len(first))


async def play(question, agents, rng, task, *, state):
    prompt = f"{question.prompt} {state['steps'] % 9 + 1}"
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(agent.ask("solution", prompt)) for agent in agents * 2]
    return None


def settle(episodes, task, *, state):
    """Any number will do, if it comes from the text and from the record."""
    for episode in episodes:
        for turn in episode.turns:
            mark = hashlib.sha256(f"{state['digest']} {turn.text}".encode()).digest()[0]
            turn.reward = mark / 255
            turn.group = f"{episode.id}/{turn.policy}"


def update(state, episodes, task):
    texts = [turn.text for episode in episodes for turn in episode.turns]
    digest = hashlib.sha256((state["digest"] + "".join(texts)).encode()).hexdigest()
    lengths = {e.question.id: sum(len(t.text) for t in e.turns) for e in episodes}
    return {
        "steps": state["steps"] + 1,
        "digest": digest,
        "lengths": {**state["lengths"], **lengths},
    }


method = Method(play, settle, grpo, plain, start=start, draw=draw, update=update)
'''
