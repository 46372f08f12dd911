"""Rewards without a game."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs import SMALL

PAID = '''"""Replies are paid by their letters, so that untaught models have something to learn from."""
import asyncio

from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method

async def play(question, agents, rng, task):
    return [await agent.ask("solution", question.prompt) for agent in agents][0].text

def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = float(len(set(turn.text)))

method = Method(play, settle, reinforce_pp, clipped, kl={"solution": 0.05})
'''


@pytest.fixture(scope="session")
def paid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a small run whose adapters move."""
    method = tmp_path_factory.mktemp("methods") / "letters.py"
    method.write_text(PAID)
    return {
        **SMALL,
        "method": str(method),
        "preset": None,
        "room": {"solution": 8},
        "options__format_check": None,
        "steps": 3,
        "checkpoint_every": 1,
        "questions": 3,
        "test_questions": 2,
        "eval_questions": 2,
    }
