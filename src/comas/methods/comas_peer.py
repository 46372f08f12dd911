"""CoMAS whose judges are rewarded for agreeing on this work more than on any: peer prediction.

The game is CoMAS (arXiv 2510.08529) with several scores of each solution, and no criticism unless
`evaluate` asks for it; solutions are rewarded as there. What a judge says of a work is whether it
accepts it: a score of 2 or 3. A scorer is rewarded with its agreement with the independent scores
of the work, less the agreement of the same two judges on different works of the step, one each,
this work left out (correlated agreement, arXiv 1603.03151). What is independent, and how many
policies a team needs, says `comas_agree`. Whoever says the same of everything is rewarded with 0 in
the mean, and judges at chance are too; judges that tell right from wrong by J_j and J_k gain
2 p (1 - p) J_j J_k where a share p of the work is right. A critic is rewarded as its scorer is, and
a score that cannot be read with -1. Nobody is rewarded where no other judge is independent, or
where the two have not judged two other works in the step, one each. Leaves out: more than two
verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from comas.game.weighing import expected, is_weighing
from comas.methods import comas
from comas.methods.comas import play
from comas.methods.comas_agree import STABLE, judgings_of, reward_judges
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, mean
from comas.types import Episode, Method, Role, Task, Turn

Works = Mapping[str, float]
"""Work -> how far a judge accepts it, from 0 to 1."""


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward solutions as CoMAS does, and judges for agreeing where they need not."""
    comas.settle(episodes, task, format_check=format_check)
    accepted = _accepted(episodes)
    for episode in episodes:
        turns = by_id(episode)
        for work, scoring, others in judgings_of(episode):
            reward_judges(scoring, turns, _reward(scoring, others, work.id, accepted))


def _accepted(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Policy -> work -> how far it accepts the work, the mean where it judged it twice."""
    verdicts_of: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        for work, scoring, _ in judgings_of(episode):
            verdict = acceptance(scoring)
            if verdict is not None:
                verdicts_of.setdefault((scoring.policy, work.id), []).append(verdict)
    accepted: dict[str, dict[str, float]] = {}
    for (judge, work), verdicts in verdicts_of.items():
        accepted.setdefault(judge, {})[work] = math.fsum(verdicts) / len(verdicts)
    return accepted


def acceptance(scoring: Turn) -> float | None:
    """Return how far a scoring accepts its work: 1 for a score of 2 or 3 and 0 for 1; of an
    expected score the probability of these two marks. None where it cannot be read.
    """
    if is_weighing(scoring):
        return expected(scoring, [float(mark > 1) for mark in scoring.info["marks"]])
    score = scoring.info["score"]
    return None if score is None else float(score > 1)


def _reward(
    scoring: Turn, others: Sequence[Turn], work: str, accepted: Mapping[str, Works]
) -> float | None:
    """The mean over the other judges of agreement less expected agreement; None where no other
    judge can be compared with.
    """
    if acceptance(scoring) is None:
        return None
    # the scorer is rewarded for the mark that it writes, where its score is expected
    said_verdict = float(scoring.info.get("mark", scoring.info["score"]) > 1)
    gains: list[float | None] = []
    for other in others:
        theirs = acceptance(other)
        elsewhere = _apart(accepted[scoring.policy], accepted.get(other.policy, {}), work)
        if theirs is not None and elsewhere is not None:
            gains.append(agreement(said_verdict, theirs) - elsewhere)
    return mean(gains)


def agreement(one: float, other: float) -> float:
    """Compute the probability that two verdicts agree, which accept with these probabilities."""
    return one * other + (1 - one) * (1 - other)


def _apart(one: Works, other: Works, work: str) -> float | None:
    """Average how far two judges agree on two different works, neither of which is `work`; None
    where there are none. Counted by the sums of all pairs less those of one work.
    """
    mine = {name: verdict for name, verdict in one.items() if name != work}
    theirs = {name: verdict for name, verdict in other.items() if name != work}
    both = mine.keys() & theirs.keys()
    pairs = len(mine) * len(theirs) - len(both)
    if pairs == 0:
        return None
    accepted = math.fsum(mine.values()) * math.fsum(theirs.values())
    rejected = math.fsum(1 - v for v in mine.values()) * math.fsum(1 - v for v in theirs.values())
    same = math.fsum(agreement(mine[name], theirs[name]) for name in both)
    return (accepted + rejected - same) / pairs


ROLES = {
    "solution": comas.ROLES["solution"],
    "evaluation": Role(
        "judge", reward="agreement with the other judges of the work, less that on other works"
    ),
    "scoring": Role("judge", reward="the same; -1 for a score that cannot be read"),
    "blind": Role("other"),
}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    comas.KL,
    roles=ROLES,
    presets={"stable": STABLE},
)
