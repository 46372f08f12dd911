"""CoMAS whose judges' weighings are learnt: their reward is the same for all, so that only a KL
acts on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from comas.methods import comas
from comas.objective.rewards import in_role
from comas.types import Episode, Task


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward as CoMAS does, and a scoring that has no reward with 0."""
    comas.settle(episodes, task, format_check=format_check)
    for episode in episodes:
        for scoring in in_role(episode, "scoring"):
            if scoring.reward is None:
                scoring.reward = 0.0


method = replace(comas.method, settle=settle)
