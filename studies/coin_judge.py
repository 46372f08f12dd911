"""`comas_votes` with random rewards in the place of the votes that pay a judge: what learning does where
pay says nothing.

A verdict is paid 1 or 0 by a draw from its turn's id; all else is as there.
"""

from dataclasses import replace

from comas.game.agent import derive_seed
from comas.methods import comas_votes
from comas.objective.rewards import in_role


def settle(episodes, task, *, gate: bool = True):
    """Pay as `comas_votes` does, and judges by random rewards."""
    comas_votes.settle(episodes, task, gate=gate)
    for episode in episodes:
        for scoring in in_role(episode, "scoring"):
            if scoring.reward is not None:
                scoring.reward = float(derive_seed("coin", scoring.id) % 2)


method = replace(comas_votes.method, settle=settle)
