"""CoMAS for studies/variety_again.toml and variety_equals.toml: a solution's reward is divided by
the spread of the whole step, and then compared with the other solutions to its question.
"""

from dataclasses import replace

import numpy as np

from comas.methods.comas import method as comas
from comas.methods.comas import settle as settle_comas
from comas.objective.credit import grpo, reinforce_pp
from comas.objective.spread import standardised


def settle(episodes, task, *, format_check: bool = True):
    """Reward as CoMAS does, and compare the solutions of one question with each other."""
    settle_comas(episodes, task, format_check=format_check)
    for episode in episodes:
        for turn in episode.turns:
            turn.group = f"{episode.question.id}/{turn.policy}/{turn.role}"


def credit(rows, kl, *, within: bool = False):
    """Credit of reinforce_pp; where `within`, rewards of each role are divided by their standard
    deviation over the step, and have the mean of their question subtracted.
    """
    if not within:
        return reinforce_pp(rows, kl)
    roles = np.array([row.role for row in rows])
    scaled = np.zeros(len(rows))
    for role in set(roles):
        of_role = np.flatnonzero(roles == role)
        scaled[of_role] = standardised([rows[index].reward for index in of_role])
    divided = [replace(row, reward=float(value)) for row, value in zip(rows, scaled, strict=True)]
    return grpo(divided, kl, scale=False)


method = replace(comas, settle=settle, credit=credit)
