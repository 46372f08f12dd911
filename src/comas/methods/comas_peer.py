"""CoMAS whose judges are rewarded for agreeing on this work more than on any: peer prediction.

The game is CoMAS (arXiv 2510.08529) with several evaluations of each solution, and solutions are
rewarded as there. What a judge says of a work is whether it accepts it: a score of 2 or 3. A scorer
is rewarded with its agreement with the other judges of the work, less the agreement that is to be
expected of the same two judges on different works of the step: m_j m_k + (1 - m_j)(1 - m_k), where
m is the share of works that a judge accepts, this work left out (correlated agreement, arXiv
1603.03151). Judges are policies: several agents of one are one judge, and no judge is compared with
itself. Whoever says the same of everything is rewarded with 0 in the mean, and judges at chance are
too; judges that tell right from wrong by J_j and J_k gain 2 p (1 - p) J_j J_k where a share p of
the work is right. A critic is rewarded as its scorer is, and a score that cannot be read with -1.
Nobody is rewarded where no other policy judged the work, or where one of the two has judged no
other work in the step. Leaves out: more than two verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from comas.game.weighing import expected, is_weighing
from comas.methods import comas
from comas.methods.comas import play
from comas.methods.comas_agree import STABLE, judgings_of, reward_judges, without_critic
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
            neutral = without_critic(scoring, others, turns)
            reward = _reward(scoring, others, work.id, accepted)
            critics_reward = _reward(scoring, neutral, work.id, accepted)
            reward_judges(scoring, turns, reward, critics_reward)


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
    verdict = acceptance(scoring)
    own_rate = _rate_without(accepted, scoring.policy, work)
    if verdict is None or own_rate is None:
        return None
    # the scorer is rewarded for the mark that it writes, where its score is expected
    said_verdict = float(scoring.info.get("mark", scoring.info["score"]) > 1)
    gains: list[float | None] = []
    for other in others:
        theirs = acceptance(other)
        rate = _rate_without(accepted, other.policy, work)
        if theirs is not None and rate is not None:
            gains.append(agreement(said_verdict, theirs) - agreement(own_rate, rate))
    return mean(gains)


def agreement(one: float, other: float) -> float:
    """Compute the probability that two verdicts agree, which accept with these probabilities."""
    return one * other + (1 - one) * (1 - other)


def _rate_without(accepted: Mapping[str, Works], judge: str, work: str) -> float | None:
    """Average how far a judge accepts the other works of the step; None without any."""
    return mean([verdict for name, verdict in accepted.get(judge, {}).items() if name != work])


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
