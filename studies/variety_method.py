"""CoMAS for studies/variety.toml, with credit that is compared within the question, or with a floor
under the entropy of what is sampled.
"""

from dataclasses import replace

import numpy as np

from comas.methods.comas import method as comas
from comas.methods.comas import settle as settle_comas
from comas.objective.credit import grpo, reinforce_pp

GAIN = 0.5
"""Weight of the entropy bonus per nat below the floor."""


def settle(episodes, task, *, format_check: bool = True):
    """Reward as CoMAS does, and compare the solutions of one question with each other."""
    settle_comas(episodes, task, format_check=format_check)
    for episode in episodes:
        for turn in episode.turns:
            turn.group = f"{episode.question.id}/{turn.policy}/{turn.role}"


def credit(rows, kl, *, within: bool = False, entropy_floor: float = 0.0):
    """Credit of grpo without division where `within`, otherwise of reinforce_pp; a step whose mean
    entropy per sampled token is below the floor (nats) has a bonus for entropy in proportion.
    """
    sampled = [row.logprobs_T[row.mask_T] for row in rows if row.role == "solution"]
    entropy = -float(np.concatenate(sampled).mean()) if sampled else entropy_floor
    bonus = GAIN * max(0.0, entropy_floor - entropy)
    if within:
        return grpo(rows, kl, scale=False, entropy=bonus)
    return reinforce_pp(rows, kl, entropy=bonus)


method = replace(comas, settle=settle, credit=credit)
