"""TTRL's game with random rewards in the place of the vote: what learning does where rewards say
nothing.

A solution is rewarded with 1 or 0 by a draw from its turn's id. Whatever a base gains by this it
had before: gains under other rewards count from here.
"""

from comas.game.agent import derive_seed
from comas.methods.ttrl import play
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method


def settle(episodes, task):
    """Give each turn a random reward."""
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = float(derive_seed("coin", turn.id) % 2)
            turn.group = f"{episode.id}/{turn.policy}"


method = Method(play, settle, grpo, clipped, kl={"solution": 0.1})
