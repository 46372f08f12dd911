"""What a team makes of its best member: the expert gap, and the collaboration gap of pairs.

After "Multi-Agent Teams Hold Experts Back" (arXiv 2602.01011) and "The Collaboration Gap" (arXiv
2511.02687). The expert of a question is the member that answers best, alone, in the *other* half of
the questions: chosen on the same ones, the best of several would look better than it is. Leaves
out: teams whose members are copies of one model, which have no expert; relays (`relay`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from comas.evaluation.beside import TEAM, Beside, Numbers
from comas.evaluation.report import Record
from comas.evaluation.turns import first_answers
from comas.stats import (
    Interval,
    delta_interval,
    gain_interval,
    share_interval,
    share_ratio_interval,
)

Case = tuple[bool, bool]
"""Whether something could be seen in a game, and whether it was so."""
Chosen = list[list[str]]
"""chosen[s][q]: the member that was chosen for a question, by the other half of them."""


def figures(compared: Beside) -> dict[str, Interval]:
    """All that there are data for; nothing where one agent answers alone."""
    members = {record["agent"] for each in compared.alone[0] for record in each}
    if len(members) < 2 or len(compared.questions) < 2:
        return {}
    experts = chosen(compared, max)
    alone = _right_alone(compared, experts)
    expert = share_interval(alone, _ones(alone))
    found: dict[str, Interval | None] = {"expert accuracy": expert}
    if expert is not None and expert.mean > 0:
        found["expert loss"] = _loss(share_ratio_interval(compared.right(), alone))
    found["identifying"] = _share(compared, experts, _identifies)
    found["leveraging"] = _share(compared, experts, _leverages)
    found["compromise"] = _share(compared, experts, _compromises)
    if len(members) == 2:
        found["collaboration gap"] = collaboration_gap(compared)
    return {name: interval for name, interval in found.items() if interval is not None}


def collaboration_gap(compared: Beside) -> Interval:
    """The weaker member's share of right answers minus that of the pair; the weaker one is chosen
    as the expert is.
    """
    weaker = _right_alone(compared, chosen(compared, min))
    pair = compared.right()
    value = _mean(weaker) - _mean(pair)
    found = delta_interval(value, (1.0, -1.0), (weaker, pair))
    if found.low == found.high:
        return gain_interval([value] * found.n)
    low = max(-1.0, found.low)
    high = min(1.0, found.high)
    return found._replace(low=low, high=high)


def chosen(compared: Beside, extreme: Callable[..., str]) -> Chosen:
    """Of each run and question the best (`max`) or the weakest (`min`) member in the other half,
    the first by name among equals. Halves are every second question, in the order of ids.
    """
    found: Chosen = []
    for run in compared.alone:
        of_half: list[str] = []
        for half in (0, 1):
            right = _right_counts(run[1 - half :: 2])
            of_half.append(extreme(sorted(right), key=right.__getitem__))
        found.append([of_half[place % 2] for place in range(len(run))])
    return found


def _right_counts(answers: Sequence[Sequence[Record]]) -> dict[str, int]:
    """Member -> how many of these questions it answers rightly by itself."""
    right: dict[str, int] = {}
    for each in answers:
        for record in each:
            agent = record["agent"]
            right[agent] = right.get(agent, 0) + (record["verdict"] == "right")
    return right


def _right_alone(compared: Beside, members: Chosen) -> Numbers:
    """1 where the chosen member is right by itself, else 0."""
    return [
        [_is_right(each, member) for each, member in zip(run, names, strict=True)]
        for run, names in zip(compared.alone, members, strict=True)
    ]


def _is_right(answers: Sequence[Record], member: str) -> float:
    own = [answer for answer in answers if answer["agent"] == member]
    return float(any(answer["verdict"] == "right" for answer in own))


def _identifies(record: Record, firsts: Mapping[str, str], expert: str) -> Case:
    """The game's answer is the expert's first one, where the members' first ones differ."""
    says = record["says"]
    members = {says[turn] for turn in firsts.values()}
    own = says[firsts[expert]]
    return len(members) > 1, own is not None and says[TEAM] == own


def _leverages(record: Record, firsts: Mapping[str, str], expert: str) -> Case:
    """The team is right, where the expert's first answer is."""
    was_right = record["verdicts"][firsts[expert]] == "right"
    return was_right, record["verdict"] == "right"


def _compromises(record: Record, firsts: Mapping[str, str], expert: str) -> Case:
    """The game's answer is nobody's first one, where it has an answer."""
    says = record["says"]
    members = {says[turn] for turn in firsts.values()}
    return says[TEAM] is not None, says[TEAM] not in members


def _share(
    compared: Beside, experts: Chosen, seen: Callable[[Record, Mapping[str, str], str], Case]
) -> Interval | None:
    """How often it was so, of the games in which it could be seen; games in which the expert gives
    no first answer say nothing.
    """
    tops: Numbers = []
    bottoms: Numbers = []
    for run, names in zip(compared.team, experts, strict=True):
        cases: list[Case] = []
        for record, expert in zip(run, names, strict=True):
            answers = first_answers(record["turns"])
            firsts = {agent: turn["id"] for agent, turn in answers.items()}
            known = "says" in record and expert in firsts
            cases.append(seen(record, firsts, expert) if known else (False, False))
        tops.append([float(could and was) for could, was in cases])
        bottoms.append([float(could) for could, _ in cases])
    return share_interval(tops, bottoms)


def _loss(kept: Interval) -> Interval:
    """1 minus the share of the expert's accuracy that the team keeps, which is not negative."""
    return Interval(1 - kept.mean, 1 - kept.high, 1 - kept.low, kept.n)


def _ones(table: Numbers) -> Numbers:
    return [[1.0] * len(run) for run in table]


def _mean(table: Numbers) -> float:
    values = [value for run in table for value in run]
    return sum(values) / len(values)
