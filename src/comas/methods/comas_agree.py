"""CoMAS whose judges are rewarded for agreeing with each other, without a label.

The game is CoMAS (arXiv 2510.08529) with several scores of each solution, and no criticism unless
`evaluate` asks for it. Solutions are rewarded as there. A scorer is rewarded with 1 where its score
is that of most independent scores of the same work, 0 where it is another one, and -1 where it
cannot be read; a critic is rewarded as its scorer is, so that it gains by criticism that leads to
what others find, and not, as in the paper, by any criticism that lowers the score. Two scores are
independent where no policy had a part in both, as scorer or as critic: whoever follows a criticism
agrees with all who follow it, and two agents of one policy are one judge, who would agree with
itself. So a team needs three policies, and five where judges criticise. Where the others are
divided evenly, or there are none, nobody is rewarded for judging. Where scores are expected,
agreement is too: a mark is rewarded with the mean probability that the other judges give it.
Consensus is no truth: the metric `judges` of a run says how far they part.
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
            reward_judges(scoring, turns, agreement(scoring, others))


def judgings_of(episode: Episode) -> Iterator[tuple[Turn, Turn, list[Turn]]]:
    """Each solution that was judged, a scoring of it, with criticism or without, and the scorings
    of it that are independent of this one; solution by solution.
    """
    turns = by_id(episode)
    judges: dict[str, list[Turn]] = {}
    for scoring in in_role(episode, "scoring"):
        about = turns[scoring.about or ""]
        work = about.about if about.role == "evaluation" else about.id
        judges.setdefault(work or "", []).append(scoring)
    for work, scorings in judges.items():
        for scoring in scorings:
            own_judges = _judges_of(scoring, turns)
            others = [
                other for other in scorings if own_judges.isdisjoint(_judges_of(other, turns))
            ]
            yield turns[work], scoring, others


def _judges_of(scoring: Turn, turns: Mapping[str, Turn]) -> set[str]:
    """The policies that had a part in a score: the scorer's, and that of the critic, if any."""
    about = turns[scoring.about or ""]
    return {scoring.policy, about.policy} if about.role == "evaluation" else {scoring.policy}


def reward_judges(scoring: Turn, turns: Mapping[str, Turn], reward: float | None) -> None:
    """Reward a scorer and, where there is one, its critic; where there is no score, -1 for the
    scorer and nothing for the critic.
    """
    unreadable = scoring.info["score"] is None
    criticism = turns[scoring.about or ""]
    if criticism.role == "evaluation":
        criticism.reward = None if unreadable else reward
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
STABLE = {"questions": 48, "steps": 120, "options": {"evaluations": 3, "evaluate": False}}
method = Method(
    play,
    settle,
    reinforce_pp,
    clipped,
    comas.KL,
    roles=ROLES,
    presets={"stable": STABLE},
)
