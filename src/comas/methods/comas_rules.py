"""CoMAS whose judges are rewarded for what the task's rules say: RISE's reward (arXiv 2505.13445)
in the game of CoMAS.

Solutions are rewarded by the scores of their peers, as in CoMAS (arXiv 2510.08529). A scorer is
rewarded with 1 where its score agrees with the rules (3 for right work, 1 for wrong), 1/2 for a 2,
0 where it says the opposite, and -1 where it cannot be read; a critic is rewarded as its scorer is.
Work that cannot be read is not judged. Solvers never see what the rules say: an upper bound for
judges who learn without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from comas.methods import comas
from comas.methods.comas import play
from comas.methods.comas_agree import judgings_of, reward_judges
from comas.methods.shared.judging import ruled
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id
from comas.types import Episode, Method, Role, Task

BEST = {"right": 3, "wrong": 1}
"""The score that the rules would give."""


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward solutions as CoMAS does, and judges by the rules."""
    comas.settle(episodes, task, format_check=format_check)
    for episode in episodes:
        turns = by_id(episode)
        for work, scoring, _ in judgings_of(episode):
            # of an expected score the scorer is rewarded for the mark that it writes
            mark = scoring.info.get("mark", scoring.info["score"])
            reward = closeness(mark, ruled(episode.question, work, task))
            reward_judges(scoring, turns, reward)


def closeness(score: int | None, verdict: str | None) -> float | None:
    """1 for the score that the rules would give, 0 for the opposite; None where there is none."""
    best = BEST.get(verdict or "")
    if best is None or score is None:
        return None
    return 1.0 - abs(score - best) / 2


ROLES = {
    "solution": comas.ROLES["solution"],
    "evaluation": Role("judge", reward="whether the score after it is what the rules say"),
    "scoring": Role("judge", reward="the same; -1 for a score that cannot be read"),
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    comas.KL,
    roles=ROLES,
    grounded=True,
    needs=("check",),
    presets={"stable": {}},
)
