"""What tiny models are asked: the wording of `comas.tasks.pick`, filled."""

from __future__ import annotations

from comas.game.prompts import words
from comas.tasks import pick


def prompt_of(role: str, **facts: str) -> str:
    """The prompt of a role as a method would write it."""
    return words({}, pick.task, role, **facts)
