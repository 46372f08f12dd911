"""CoMAS whose solutions are compared within their question: rewards minus the mean of the question's
works, over the standard deviation of these differences in the whole batch (REINFORCE++-baseline,
arXiv 2501.03262).
"""

from dataclasses import replace

import numpy as np

from comas.methods.comas import method as comas
from comas.methods.comas import settle as settle_comas
from comas.objective.credit import given
from comas.objective.spread import centred, standardised


def settle(episodes, task, *, format_check: bool = True):
    """Reward as CoMAS does, and compare the solutions of one question with each other."""
    settle_comas(episodes, task, format_check=format_check)
    for episode in episodes:
        for turn in episode.turns:
            turn.group = f"{episode.question.id}/{turn.policy}/{turn.role}"


def credit(rows, kl):
    """Centre rewards in their group, and divide them by the spread of the batch."""
    groups = np.array([row.group for row in rows])
    rewards = np.array([row.reward for row in rows], dtype=np.float64)
    values = np.zeros(len(rows))
    for group in set(groups):
        values[groups == group] = centred(rewards[groups == group])
    values = standardised(values)
    compared = [replace(row, reward=float(v)) for row, v in zip(rows, values, strict=True)]
    return given(compared, kl)


method = replace(comas, settle=settle, credit=credit)
