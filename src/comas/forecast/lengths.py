"""How long the rows of a run can get, in tokens, and how many replies a host may be asked for at
once; for the estimate of memory.

Leaves out: how long replies are in fact (`timing` guesses that).
"""

from __future__ import annotations

import os
from typing import Any

from comas.config.schema import Config
from comas.types import Method, Task, UserMistake

QUESTION = 512
"""Tokens of a question and the words around it, for the estimate of memory, where the questions are
not on this disk.
"""
TEMPLATE = 64
"""Tokens that a chat template may add."""


def reply_tokens(config: Config, method: Method, task: Task) -> int:
    """Tokens of the longest reply."""
    room = {**task.max_tokens, **config.room}
    return max(
        [config.max_tokens] if set(method.paid) - set(room) else [room[r] for r in method.paid]
    )


def tokens_of_question(config: Config, task: Task, folder: str) -> int:
    """Tokens of the longest of a few questions with the words around it."""
    if not (config.data or os.environ.get("COMAS_DATA") or task.base):
        return QUESTION
    from transformers import AutoTokenizer

    try:
        asked = task.load(
            "train", path=config.data, limit=256, seed=config.seed, **config.task_options
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    except (UserMistake, OSError, ValueError):
        return QUESTION
    around = max(task.wording.values(), key=len, default="")
    return TEMPLATE + max(
        (len(tokenizer(f"{around} {q.prompt}").input_ids) for q in asked), default=QUESTION
    )


def replies_shown(config: Config) -> int:
    """Replies in a prompt: the work and its criticism, or what a solver sees of
    the rounds before.
    """
    options = config.options
    if "rounds" not in options:
        return 0
    return max(
        2, options.get("kappa", 1) * (1 + options.get("references", 1)) * (options["rounds"] > 1)
    )


def asked_at_once(config: Config, name: str) -> int:
    """Replies that a host may be asked for at once: of all discussions of a step, or of all its
    agents while it is measured.
    """
    playing = (config.questions or 0) * (config.samples or 1) * config.options.get("votes", 1)
    agents = sum(agent.host == name for agent in config.agents.values())
    measured = max(config.test_questions or 0, config.eval_questions if config.eval_every else 0)
    return max(1, playing, measured * agents)
