"""CoMAS whose judges are rewarded for agreeing with each other, without a label.

The game is CoMAS (arXiv 2510.08529) with several evaluations of each solution. Solutions are
rewarded as there. A scorer is rewarded with 1 where its score is that of most other scorers of the
same work, 0 where it is another one, and -1 where it cannot be read; a critic is rewarded as its
scorer is, so that it gains by criticism that leads to what the others find, and not, as in the
paper, by any criticism that lowers the score. Others are other policies: two agents of one policy
are one judge, who would agree with itself; for a critic they are those of neither its own policy
nor its scorer's. Where the others are divided evenly, or there are none,
nobody is rewarded for judging. Where scores are expected, agreement is too: a mark is rewarded with
the mean probability that the other judges give it. Consensus is no truth: the metric `judges` of a
run says how far they part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from comas.game.votes import leading
from comas.game.weighing import shares
from comas.methods import comas
from comas.methods.comas import play
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.objective.rewards import by_id, in_role, mean
from comas.types import Episode, Method, Role, Task, Turn


def settle(episodes: Sequence[Episode], task: Task, *, format_check: bool = True) -> None:
    """Reward solutions as CoMAS does, and judges for agreeing with the other judges of the work."""
    comas.settle(episodes, task, format_check=format_check)
    for episode in episodes:
        turns = by_id(episode)
        for _, scoring, others in judgings_of(episode):
            reward = agreement(scoring, others)
            critics_reward = agreement(scoring, without_critic(scoring, others, turns))
            reward_judges(scoring, turns, reward, critics_reward)


def judgings_of(episode: Episode) -> Iterator[tuple[Turn, Turn, list[Turn]]]:
    """Each solution that was judged, a scoring of it, with criticism or without, and the scorings
    of it by other policies; solution by solution.
    """
    turns = by_id(episode)
    judges: dict[str, list[Turn]] = {}
    for scoring in in_role(episode, "scoring"):
        about = turns[scoring.about or ""]
        work = about.about if about.role == "evaluation" else about.id
        judges.setdefault(work or "", []).append(scoring)
    for work, scorings in judges.items():
        for scoring in scorings:
            others = [other for other in scorings if other.policy != scoring.policy]
            yield turns[work], scoring, others


def without_critic(
    scoring: Turn, others: Sequence[Turn], turns: Mapping[str, Turn]
) -> Sequence[Turn]:
    """The others whose policy is not that of the critic either, whose criticism was scored."""
    criticism = turns[scoring.about or ""]
    return [other for other in others if other.policy != criticism.policy]


def reward_judges(
    scoring: Turn, turns: Mapping[str, Turn], reward: float | None, critics_reward: float | None
) -> None:
    """Reward a scorer and, where there is one, its critic; where there is no score, -1 for the
    scorer and nothing for the critic.
    """
    unreadable = scoring.info["score"] is None
    criticism = turns[scoring.about or ""]
    if criticism.role == "evaluation":
        criticism.reward = None if unreadable else critics_reward
    scoring.reward = -1.0 if unreadable else reward


def agreement(scoring: Turn, others: Sequence[Turn]) -> float | None:
    """Whether a score is that of most others, 1 or 0; None where those are divided evenly.

    Where scores are expected: how probable the others find the mark that the scoring says.
    """
    if "mark" in scoring.info:
        said_place = scoring.info["marks"].index(scoring.info["mark"])
        return mean([shares(other)[said_place] for other in others])
    score, judges, next_most = leading([other.info["score"] for other in others])
    return None if judges == next_most else float(scoring.info["score"] == score)


ROLES = {
    "solution": comas.ROLES["solution"],
    "evaluation": Role(
        "judge", reward="whether the score after it is that of most other judges of the work"
    ),
    "scoring": Role("judge", reward="the same; -1 for a score that cannot be read"),
}
STABLE = {"questions": 48, "steps": 120, "options": {"evaluations": 3}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    comas.KL,
    roles=ROLES,
    presets={"stable": STABLE},
)
