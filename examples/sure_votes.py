"""A method of one's own: majority votes that count only where they are sure.  comas train
method=./examples/sure_votes.py options.least=0.7

The game, the credit and the loss are those of TTRL. A vote for the majority's answer has reward 1,
any other 0, if at least the share `least` of the votes agrees; otherwise there are no rewards, and
nobody learns from this question.
"""

from dataclasses import replace

from comas.game.votes import agrees, majority
from comas.methods.ttrl import method as ttrl
from comas.types import Role


def settle(episodes, task, *, least: float = 0.5):
    for episode in episodes:
        best = majority([turn.info["answer"] for turn in episode.turns], task)
        agreeing = [turn for turn in episode.turns if best and agrees(turn, best, task)]
        sure = len(agreeing) >= least * len(episode.turns)
        for turn in episode.turns:
            turn.reward = float(turn in agreeing) if sure else None
            turn.group = f"{episode.id}/{turn.policy}"


ROLES = {"solution": Role("answer", reward="1 for the answer of a sure majority, 0 for any other")}
method = replace(ttrl, settle=settle, roles=ROLES)
