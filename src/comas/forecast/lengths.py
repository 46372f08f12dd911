"""How long the rows of a run can get, in tokens, and how many replies a host may be asked for at
once; for the estimate of memory.

Leaves out: how long replies are in fact (`forecast.hours` guesses that).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from comas.config.policies import Resolved
from comas.config.rehearsal import rehearse
from comas.config.schema import Config
from comas.types import Task, UserMistake

QUESTION = 512
"""Tokens of a question and the words around it, for the estimate of memory, where the questions are
not on this disk.
"""
TEMPLATE = 64
"""Tokens that a chat template may add."""


@dataclass(frozen=True)
class Lengths:
    """Of a discussion, in tokens and replies; at most."""

    reply: int
    """Tokens of the longest reply."""
    generated: int
    """Tokens of all replies."""
    replies: int
    shown: int
    """Replies in a prompt: the work and its criticism, or what a solver sees of others."""


def lengths_of(resolved: Resolved) -> Lengths:
    """Of a discussion of a resolved config; of a game that cannot be rehearsed as if every agent
    were asked once and saw nobody else's reply.
    """
    config, method, task, _ = resolved
    room = {**task.max_tokens, **config.room}
    rehearsal = rehearse(resolved)
    roles = rehearsal.roles if rehearsal else ()
    said = (*method.paid, *(rehearsal.asked if rehearsal else ()))
    longest = max((room.get(role, config.max_tokens) for role in said), default=config.max_tokens)
    if rehearsal is None:
        agents = len(config.agents)
        return Lengths(longest, agents * longest, agents, 0)
    generated = sum(room.get(role, config.max_tokens) for role in roles)
    return Lengths(longest, generated, rehearsal.replies, rehearsal.shown)


def tokens_of_question(config: Config, task: Task, folder: str) -> int:
    """Tokens of the longest of a few questions with the words around it."""
    if not (config.data or os.environ.get("COMAS_DATA") or task.base):
        return QUESTION
    from transformers import AutoTokenizer

    try:
        options = config.task_options
        asked = task.load("train", path=config.data, limit=256, seed=config.seed, **options)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    except (UserMistake, OSError, ValueError):
        return QUESTION
    around = max(task.wording.values(), key=len, default="")
    counts = [len(tokenizer(f"{around} {question.prompt}").input_ids) for question in asked]
    return TEMPLATE + max(counts, default=QUESTION)


def asked_at_once(resolved: Resolved, name: str) -> int:
    """Replies that a host may be asked for at once: of all discussions of a step, or of all its
    agents while it is measured.
    """
    config = resolved.config
    rehearsal = rehearse(resolved)
    side_by_side = rehearsal.at_once[name] if rehearsal else len(config.agents)
    playing = (config.questions or 0) * (config.samples or 1) * side_by_side
    agents = sum(agent.host == name for agent in config.agents.values())
    measured = max(config.test_questions or 0, config.eval_questions if config.eval_every else 0)
    return max(1, playing, measured * agents)
