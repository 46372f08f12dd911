"""A setup that is trained: a debate rewards what the majority ends with.  comas train
method=./examples/debate.py

The game is the setup that `comas eval --setups debate` plays; all that is added is what is
rewarded. No labels: an answer of either round has reward 1 if it is what most agents end with,
otherwise 0. Beware of habits that all share (see docs/method.md).
"""

from comas.game.votes import agrees, majority, read
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.setups.debate import play
from comas.types import Method, Role


def settle(episodes, task):
    for episode in episodes:
        read(episode.question, episode.turns, task)
        last = max(t.round for t in episode.turns)
        best = majority([t.info["answer"] for t in episode.turns if t.round == last], task)
        for turn in episode.turns:
            turn.reward = float(best is not None and agrees(turn, best, task))


KL = {"solution": 0.1, "revision": 0.1}
ROLES = dict.fromkeys(KL, Role("answer", reward="1 for what the majority ends with, else 0"))
method = Method(play, settle, reinforce_pp, clipped, KL, roles=ROLES)
