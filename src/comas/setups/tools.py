"""One agent with tools: it may call them, in at most `turns` replies, before it answers.

The tools are those of the task and of the config's `tools`. Every agent of a team answers alone, as
in `single`. Leaves out: several agents in one dialogue.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.game.dialogue import converse
from comas.game.prompts import solving
from comas.game.votes import is_answer
from comas.types import Count, Question, Setup, Task, UserMistake


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, turns: Count = 6
) -> str | None:
    """Answer with the last reply; None where it was cut, or where it still calls a tool."""
    if not task.tools:
        raise UserMistake(
            f"setup tools: task {task.name} has no tools, and none are named: add"
            " tools='[\"calculator\"]' (docs/tools.md)"
        )
    prompt = solving(question, task)
    replies = await converse(agents[0], "solution", prompt, task, turns=turns)
    answer = replies[-1]
    return answer.text if is_answer(answer) else None


setup = Setup(play, alone=True, needs=("tools",))
