"""CoMAS whose judges' weighings are not learnt: their reward is the same for all, so that only a KL
could act on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from comas.methods import comas
from comas.objective.rewards import in_role
from comas.types import Episode, Task


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward as CoMAS does, and give no reward to a scoring that could be read."""
    comas.settle(episodes, task, format_check=format_check)
    for episode in episodes:
        for scoring in in_role(episode, "scoring"):
            if scoring.reward == 0.0:
                scoring.reward = None


method = replace(comas.method, settle=settle)
