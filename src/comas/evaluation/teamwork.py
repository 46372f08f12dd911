"""What teams make of their members, per cell in which a team plays, beside single answers of the
same system to the same questions.

- What it costs and gains to coordinate, after "Towards a Science of Scaling Agent Systems" (arXiv
  2512.08296), with generated tokens for its turns and runs of words for its embeddings. With S the
  share of right answers and T the generated tokens per question: overhead T(team) / T(single) - 1,
  efficiency S(team) T(single) / T(team), error amplification (1 - S(team)) / (1 - S(single));
  redundancy is the mean similarity of two agents' first answers, message density the share of turns
  that quote others.
- Confidence and critique of revisions: P(right after | right before) and P(right after | wrong
  before) of arXiv 2412.19513, for each turn that revises another turn of the same agent.
- The expert gap and the collaboration gap of pairs, after "Multi-Agent Teams Hold Experts Back"
  (arXiv 2602.01011) and "The Collaboration Gap" (arXiv 2511.02687). The expert of a question is the
  member that answers best, alone, in the *other* half of the questions: chosen on the same ones,
  the best of several would look better than it is.
- The relay gain of a pair where the stronger member leads (arXiv 2511.02687): S(the stronger one
  took the first k turns) - S(together). Who led was drawn, so that questions in which it did are a
  fair half.

Figures without data are absent, never 0. Only questions count that all runs of both were judged on.
Leaves out: prompt tokens, seconds, a regression over many tasks, teams whose members are copies of
one model, which have no expert; how a relay is played (`setups.relay`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from comas.evaluation.games import first_answers, revisions
from comas.evaluation.report import Cell, Record, label
from comas.objective.pay import grams, similarity
from comas.stats import (
    Interval,
    accuracy_interval,
    delta_interval,
    gain_interval,
    interval_record,
    ratio_interval,
    share_interval,
    share_ratio_interval,
)


def teamwork(cells: Sequence[Cell], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A record, as JSON, for each team's cell that has a figure; `others` are the systems that
    its label has to be told from.
    """
    records: list[dict[str, Any]] = []
    for cell in cells:
        if not cell.records or not is_team(cell):
            continue
        compared = beside(cell, cells)
        revised = revision_figures(cell)
        found: dict[str, Interval] = {}
        if compared is not None:
            found |= coordination_figures(cell, compared)
            found |= expert_figures(compared)
            found |= relay_figures(cell, cells)
        found |= revised
        if not found:
            continue
        record: dict[str, Any] = {
            **cell.key._asdict(),
            "label": label(cell.system, others),
            "figures": {name: interval_record(interval) for name, interval in found.items()},
        }
        if revised:
            record["revisions"] = revision_counts(cell)
        records.append(record)
    return records


# --- a team beside single answers

TEAM = "team"
"""Who answers in a record of a team's game."""
Numbers = list[list[float]]
"""Of each run, a number per question."""


@dataclass(frozen=True)
class Beside:
    """The games of S runs on the same Q questions."""

    questions: Sequence[str]
    team: Sequence[Sequence[Record]]
    """team[s][q]: the team's game."""
    alone: Sequence[Sequence[Sequence[Record]]]
    """alone[s][q]: the answer of each agent, in the order of their names."""

    def of(self, questions: Sequence[str]) -> Beside:
        """The same on some of the questions, in this order."""
        places = [self.questions.index(question) for question in questions]
        return Beside(
            questions,
            [[run[place] for place in places] for run in self.team],
            [[run[place] for place in places] for run in self.alone],
        )

    def right(self) -> Numbers:
        """1 where the team is right, else 0."""
        return [[_right(record) for record in run] for run in self.team]

    def right_alone(self) -> Numbers:
        """The share of agents that are right by themselves."""
        return [[_mean([_right(record) for record in each]) for each in run] for run in self.alone]

    def tokens(self) -> Numbers:
        """Generated tokens of the team's game."""
        return [[_tokens(record) for record in run] for run in self.team]

    def tokens_alone(self) -> Numbers:
        """Generated tokens of a single answer, the mean over agents."""
        return [[_mean([_tokens(record) for record in each]) for each in run] for run in self.alone]


def is_team(cell: Cell) -> bool:
    """Whether a team plays in this cell, rather than agents one by one."""
    return all(record["agent"] == TEAM for record in cell.records)


def beside(team: Cell, cells: Sequence[Cell]) -> Beside | None:
    """The team's games beside the `single` cell of its system and task; None where there is none,
    or no question that both were judged on.
    """
    key = team.key._replace(setup="single")
    single = next((cell for cell in cells if cell.key == key), None)
    if single is None or len(single.runs) != len(team.runs):
        return None
    of_team = [_by_question(run) for run in team.runs]
    of_single = [_by_question(run) for run in single.runs]
    judged = [set(_judged(found)) for found in [*of_team, *of_single]]
    questions = sorted(set.intersection(*judged))
    if not questions:
        return None
    return Beside(
        questions,
        [[found[question][0] for question in questions] for found in of_team],
        [[found[question] for question in questions] for found in of_single],
    )


def _by_question(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=_agent):
        found.setdefault(record["question"], []).append(record)
    return found


def _agent(record: Record) -> str:
    return record["agent"]


def _judged(found: dict[str, list[Record]]) -> list[str]:
    """The questions all of whose answers were judged."""
    return [
        question
        for question, records in found.items()
        if all(record["verdict"] != "failed" for record in records)
    ]


def _right(record: Record) -> float:
    return float(record["verdict"] == "right")


def _tokens(record: Record) -> float:
    return float(sum(turn["tokens"] for turn in record["turns"]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- coordination


def coordination_figures(cell: Cell, compared: Beside) -> dict[str, Interval]:
    """All of a team's cell that there are data for; `compared` is what stands beside it."""
    found = {
        "overhead": overhead(compared),
        "efficiency": efficiency(compared),
        "error amplification": error_amplification(compared),
        "redundancy": redundancy(cell),
        "message density": message_density(cell),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def overhead(compared: Beside) -> Interval | None:
    """How many more tokens the team generates than one agent, relative to the latter."""
    if not _table_mean(compared.tokens_alone()):
        return None
    ratio = ratio_interval(compared.tokens(), compared.tokens_alone())
    mean, low, high, n = ratio
    least = max(-1.0, low - 1)
    return Interval(mean - 1, least, high - 1, n)


def efficiency(compared: Beside) -> Interval | None:
    """The team's share of right answers, over its tokens in units of a single answer."""
    tables = (compared.right(), compared.tokens(), compared.tokens_alone())
    right, tokens, alone = map(_table_mean, tables)
    if not tokens or not alone:
        return None
    value = right * alone / tokens
    slopes = (alone / tokens, -value / tokens, right / tokens)
    found = delta_interval(value, slopes, tables)
    low = max(0.0, found.low)
    high = found.high
    if right in (0.0, 1.0):  # all questions say the same, which the spread of tokens cannot know
        said = accuracy_interval([right] * found.n)
        price = alone / tokens
        low = min(low, said.low * price)
        high = max(high, said.high * price)
    return found._replace(low=low, high=high)


def error_amplification(compared: Beside) -> Interval | None:
    """The team's share of wrong answers over that of single ones; None where these have none."""
    wrong = _complements(compared.right())
    wrong_alone = _complements(compared.right_alone())
    if not _table_mean(wrong_alone):
        return None
    return share_ratio_interval(wrong, wrong_alone)


def redundancy(cell: Cell) -> Interval | None:
    """The mean similarity of the first answers of two agents, from 0 to 1."""
    return _ratio(cell, _redundancy)


def message_density(cell: Cell) -> Interval | None:
    """The share of turns that quote another agent; None where nobody noted it."""
    return _ratio(cell, _messages)


def _redundancy(record: Record) -> tuple[float, float]:
    """The sum of similarities, and of how many pairs."""
    texts = [turn["text"] for turn in first_answers(record["turns"]).values()]
    counted = [grams(text) for text in texts]
    pairs = list(itertools.combinations(counted, 2))
    similarities = [similarity(*pair) for pair in pairs]
    return math.fsum(similarities), len(pairs)


def _messages(record: Record) -> tuple[float, float]:
    """The turns that quote, and all turns."""
    if "quoting" not in record:
        return 0, 0
    return record["quoting"], len(record["turns"])


def _ratio(cell: Cell, part: Callable[[Record], tuple[float, float]]) -> Interval | None:
    """The sum of what `part(record)` gives first over the sum of what it gives second, clustered by
    question.
    """
    questions = sorted({record["question"] for record in cell.records})
    tops: Numbers = []
    bottoms: Numbers = []
    for run in cell.runs:
        top = dict.fromkeys(questions, 0.0)
        bottom = dict.fromkeys(questions, 0.0)
        for record in run:
            one, other = part(record)
            top[record["question"]] += one
            bottom[record["question"]] += other
        tops.append(list(top.values()))
        bottoms.append(list(bottom.values()))
    return share_interval(tops, bottoms)


def _complements(table: Sequence[Sequence[float]]) -> Numbers:
    return [[1 - value for value in run] for run in table]


# --- revisions

Change = tuple[bool, bool]
"""Right before, right after."""


def changes(record: Record) -> Counter[Change]:
    """How often each change is there in a game; without those that could not be judged."""
    verdicts: dict[str, str] = record.get("verdicts", {})
    found: Counter[Change] = Counter()
    for before, after in revisions(record["turns"]):
        pair = [verdicts.get(turn["id"], "failed") for turn in (before, after)]
        if "failed" not in pair:
            found[pair[0] == "right", pair[1] == "right"] += 1
    return found


def revision_counts(cell: Cell) -> dict[str, int]:
    """Of all revisions (`revised`), those that were right before, and what became of these and of
    the others; from these counts everything else follows exactly.
    """
    total: Counter[Change] = Counter()
    for record in cell.records:
        total += changes(record)
    return {
        "revised": total.total(),
        "right_before": total[True, True] + total[True, False],
        "kept": total[True, True],
        "mended": total[False, True],
    }


def revision_figures(cell: Cell) -> dict[str, Interval]:
    """Accuracy before and after, confidence and critique; each absent where it has no case."""
    before = _share_of_changes(cell, [(True, True), (True, False)], EVERY)
    if before is None:
        return {}
    found: dict[str, Interval | None] = {
        "accuracy before": before,
        "accuracy after": _share_of_changes(cell, [(True, True), (False, True)], EVERY),
        "confidence": _share_of_changes(cell, [(True, True)], [(True, True), (True, False)]),
        "critique": _share_of_changes(cell, [(False, True)], [(False, True), (False, False)]),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


EVERY = [(True, True), (True, False), (False, True), (False, False)]


def _share_of_changes(
    cell: Cell, these: Sequence[Change], among: Sequence[Change]
) -> Interval | None:
    """The share of some changes among others, clustered by question."""

    def part(record: Record) -> tuple[float, float]:
        found = changes(record)
        return sum(found[change] for change in these), sum(found[change] for change in among)

    return _ratio(cell, part)


# --- experts

Case = tuple[bool, bool]
"""Whether something could be seen in a game, and whether it was so."""
Chosen = list[list[str]]
"""chosen[s][q]: the member that was chosen for a question, by the other half of them."""


def expert_figures(compared: Beside) -> dict[str, Interval]:
    """All that there are data for; nothing where one agent answers alone."""
    members = _members(compared)
    if len(members) < 2 or len(compared.questions) < 2:
        return {}
    experts = chosen(compared, max)
    alone = _right_alone(compared, experts)
    expert = share_interval(alone, _ones(alone))
    found: dict[str, Interval | None] = {"expert accuracy": expert}
    if expert is not None and expert.mean > 0:
        found["expert loss"] = _loss(share_ratio_interval(compared.right(), alone))
    found["identifying"] = _expert_share(compared, experts, _identifies)
    found["leveraging"] = _expert_share(compared, experts, _leverages)
    found["compromise"] = _expert_share(compared, experts, _compromises)
    if len(members) == 2:
        found["collaboration gap"] = collaboration_gap(compared)
    return {name: interval for name, interval in found.items() if interval is not None}


def collaboration_gap(compared: Beside) -> Interval:
    """The weaker member's share of right answers minus that of the pair; the weaker one is chosen
    as the expert is.
    """
    weaker = _right_alone(compared, chosen(compared, min))
    pair = compared.right()
    value = _table_mean(weaker) - _table_mean(pair)
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


def _expert_share(
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


def _table_mean(table: Numbers) -> float:
    values = [value for run in table for value in run]
    return sum(values) / len(values)


# --- relays

_LEAD = re.compile(r":lead=[1-9]\d*")


def together_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The cell in which the pair of a relay (`relay:lead=2`) speaks alternately (`relay`, or
    `relay:lead=0`) and all else is alike; None where there is none, or this is no relay.
    """
    if cell.setup.partition(":")[0] != "relay" or not _LEAD.search(cell.setup):
        return None
    setups = {_LEAD.sub("", cell.setup), _LEAD.sub(":lead=0", cell.setup)}
    keys = [cell.key._replace(setup=setup) for setup in setups]
    return next((other for other in cells if other.key in keys), None)


def relay_figures(cell: Cell, cells: Sequence[Cell]) -> dict[str, Interval]:
    """`relay gain` of a relay's cell, where single answers and the pair together are beside it."""
    both = together_of(cell, cells)
    led = beside(cell, cells)
    together = None if both is None else beside(both, cells)
    if led is None or together is None or len(_members(led)) != 2:
        return {}
    common = sorted({*led.questions} & {*together.questions})
    if len(common) < 2:
        return {}
    found = relay_gain(led.of(common), together.of(common))
    return {} if found is None else {"relay gain": found}


def relay_gain(led: Beside, together: Beside) -> Interval | None:
    """The share of right answers where the expert led, minus that of the pair together on these
    questions; None where it led in none.
    """
    leads: Numbers = []
    for games, names in zip(led.team, chosen(led, max), strict=True):
        leaders = [game["turns"][0]["agent"] for game in games]
        leads.append([float(one == name) for one, name in zip(leaders, names, strict=True)])
    if not any(any(run) for run in leads):
        return None
    gaps: Numbers = []
    for rows in zip(leads, led.right(), together.right(), strict=True):
        gaps.append([lead * (a - b) for lead, a, b in zip(*rows, strict=True)])
    found = ratio_interval(gaps, leads)
    used = max(1, round(fmean(sum(run) for run in leads)))
    if found.low == found.high:
        return gain_interval([found.mean] * used)
    low = max(-1.0, found.low)
    high = min(1.0, found.high)
    return Interval(found.mean, low, high, used)


def _members(compared: Beside) -> set[str]:
    """The different models that answer alone."""
    return {record["agent"] for each in compared.alone[0] for record in each}
