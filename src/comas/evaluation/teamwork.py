"""What teams make of their members, per cell in which a team plays, beside single answers of the
same system to the same questions.

- What it costs and gains to coordinate, after "Towards a Science of Scaling Agent Systems" (arXiv
  2512.08296), with generated tokens for its turns and runs of words for its embeddings. With S the
  share of right answers and T the generated tokens per question: overhead T(team) / T(single) - 1,
  efficiency S(team) T(single) / T(team), error amplification (1 - S(team)) / (1 - S(single));
  redundancy is the mean similarity of two agents' first answers.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
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

Figures = dict[str, Interval]
"""Name of a figure -> its mean and interval; what there are no data for is absent."""


def teamwork(cells: Sequence[Cell], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A record, as JSON, for each team's cell that has a figure; `others` are the systems that
    its label has to be told from.
    """
    records: list[dict[str, Any]] = []
    for cell in cells:
        if not cell.records or any(record["agent"] != TEAM for record in cell.records):
            continue  # agents one by one
        figures: Figures = {}
        compared = beside(cell, cells)
        if compared is not None:
            figures |= coordination_figures(cell, compared)
            figures |= expert_figures(compared)
            figures |= relay_figures(cell, cells)
        revised = revision_figures(cell)
        figures |= revised
        if not figures:
            continue
        record: dict[str, Any] = {
            **cell.key._asdict(),
            "label": label(cell.system, others),
            "figures": {name: interval_record(interval) for name, interval in figures.items()},
        }
        if revised:
            record["revisions"] = revision_counts(cell)
        records.append(record)
    return records


def _known(figures: Mapping[str, Interval | None]) -> Figures:
    return {name: interval for name, interval in figures.items() if interval is not None}


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

    @property
    def members(self) -> set[str]:
        """The different models that answer alone."""
        return {record["agent"] for answers in self.alone[0] for record in answers}

    def right(self) -> Numbers:
        """1 where the team is right, else 0."""
        return [[_right(record) for record in run] for run in self.team]

    def right_alone(self) -> Numbers:
        """The share of agents that are right by themselves."""
        return [[_mean(map(_right, answers)) for answers in run] for run in self.alone]

    def tokens(self) -> Numbers:
        """Generated tokens of the team's game."""
        return [[_tokens(record) for record in run] for run in self.team]

    def tokens_alone(self) -> Numbers:
        """Generated tokens of a single answer, the mean over agents."""
        return [[_mean(map(_tokens, answers)) for answers in run] for run in self.alone]


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
    questions = sorted(set.intersection(*map(set, [*of_team, *of_single])))
    if not questions:
        return None
    return Beside(
        questions,
        [[games[question][0] for question in questions] for games in of_team],
        [[games[question] for question in questions] for games in of_single],
    )


def _by_question(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Question -> its answers in the order of agents, of questions all of whose answers were
    judged.
    """
    answers: dict[str, list[Record]] = {}
    for record in sorted(records, key=itemgetter("agent")):
        answers.setdefault(record["question"], []).append(record)
    failed = {record["question"] for record in records if record["verdict"] == "failed"}
    return {question: answers[question] for question in answers.keys() - failed}


def _right(record: Record) -> float:
    return float(record["verdict"] == "right")


def _tokens(record: Record) -> float:
    return float(sum(turn["tokens"] for turn in record["turns"]))


def _mean(numbers: Iterator[float]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def _table_mean(table: Numbers) -> float:
    return _mean(itertools.chain.from_iterable(table))


# --- coordination


def coordination_figures(cell: Cell, compared: Beside) -> Figures:
    """All of a team's cell that there are data for; `compared` is what stands beside it."""
    overhead = None
    if _table_mean(compared.tokens_alone()):
        ratio = ratio_interval(compared.tokens(), compared.tokens_alone())
        overhead = Interval(ratio.mean - 1, max(-1.0, ratio.low - 1), ratio.high - 1, ratio.n)
    wrong, wrong_alone = (
        [[1 - right for right in run] for run in table]
        for table in (compared.right(), compared.right_alone())
    )
    amplified = share_ratio_interval(wrong, wrong_alone) if _table_mean(wrong_alone) else None
    return _known(
        {
            "overhead": overhead,
            "efficiency": efficiency(compared),
            "error amplification": amplified,
            "redundancy": redundancy(cell),
        }
    )


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


def redundancy(cell: Cell) -> Interval | None:
    """The mean similarity of the first answers of two agents, from 0 to 1."""

    def similarities(record: Record) -> tuple[float, float]:
        texts = [turn["text"] for turn in first_answers(record["turns"]).values()]
        pairs = list(itertools.combinations(map(grams, texts), 2))
        return math.fsum(similarity(*pair) for pair in pairs), len(pairs)

    return _share(cell, similarities)


def _share(cell: Cell, cases: Callable[[Record], tuple[float, float]]) -> Interval | None:
    """The sum of what `cases(record)` gives first over the sum of what it gives second, clustered
    by question.
    """
    questions = sorted({record["question"] for record in cell.records})
    tops: Numbers = []
    bottoms: Numbers = []
    for run in cell.runs:
        top = dict.fromkeys(questions, 0.0)
        bottom = dict.fromkeys(questions, 0.0)
        for record in run:
            counted, of_all = cases(record)
            top[record["question"]] += counted
            bottom[record["question"]] += of_all
        tops.append(list(top.values()))
        bottoms.append(list(bottom.values()))
    return share_interval(tops, bottoms)


# --- revisions

Change = tuple[bool, bool]
"""Right before, right after."""
KEPT, SPOILT, MENDED, LEFT = (True, True), (True, False), (False, True), (False, False)


def changes(record: Record) -> Counter[Change]:
    """How often each change is there in a game; without those that could not be judged."""
    verdicts: dict[str, str] = record.get("verdicts", {})
    counts: Counter[Change] = Counter()
    for before, after in revisions(record["turns"]):
        pair = [verdicts.get(turn["id"], "failed") for turn in (before, after)]
        if "failed" not in pair:
            counts[pair[0] == "right", pair[1] == "right"] += 1
    return counts


def revision_counts(cell: Cell) -> dict[str, int]:
    """Of all revisions (`revised`), those that were right before, and what became of these and of
    the others; from these counts everything else follows exactly.
    """
    total: Counter[Change] = Counter()
    for record in cell.records:
        total += changes(record)
    return {
        "revised": total.total(),
        "right_before": total[KEPT] + total[SPOILT],
        "kept": total[KEPT],
        "mended": total[MENDED],
    }


def revision_figures(cell: Cell) -> Figures:
    """Accuracy before and after, confidence and critique; each absent where it has no case."""

    def share(these: Sequence[Change], among: Sequence[Change]) -> Interval | None:
        def cases(record: Record) -> tuple[float, float]:
            counts = changes(record)
            return sum(counts[change] for change in these), sum(counts[change] for change in among)

        return _share(cell, cases)

    every = (KEPT, SPOILT, MENDED, LEFT)
    return _known(
        {
            "accuracy before": share((KEPT, SPOILT), every),
            "accuracy after": share((KEPT, MENDED), every),
            "confidence": share((KEPT,), (KEPT, SPOILT)),
            "critique": share((MENDED,), (MENDED, LEFT)),
        }
    )


# --- experts

Chosen = list[list[str]]
"""chosen[s][q]: the member that was chosen for a question, by the other half of them."""


def expert_figures(compared: Beside) -> Figures:
    """All that there are data for; nothing where one agent answers alone."""
    members = compared.members
    if len(members) < 2 or len(compared.questions) < 2:
        return {}
    experts = chosen(compared, max)
    alone = _right_alone(compared, experts)
    expert = share_interval(alone, [[1.0] * len(run) for run in alone])
    figures: dict[str, Interval | None] = {"expert accuracy": expert}
    if expert is not None and expert.mean > 0:
        mean, low, high, n = share_ratio_interval(compared.right(), alone)
        figures["expert loss"] = Interval(1 - mean, 1 - high, 1 - low, n)
    if len(members) == 2:
        figures["collaboration gap"] = collaboration_gap(compared)
    return _known(figures)


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
    return found.within(-1.0, 1.0)


def chosen(compared: Beside, extreme: Callable[..., str]) -> Chosen:
    """Of each run and question the best (`max`) or the weakest (`min`) member in the other half,
    the first by name among equals. Halves are every second question, in the order of ids.
    """
    choices: Chosen = []
    for run in compared.alone:
        of_half: list[str] = []
        for half in (0, 1):
            right: Counter[str] = Counter()
            for record in itertools.chain.from_iterable(run[1 - half :: 2]):
                right[record["agent"]] += record["verdict"] == "right"
            of_half.append(extreme(sorted(right), key=right.__getitem__))
        choices.append([of_half[place % 2] for place in range(len(run))])
    return choices


def _right_alone(compared: Beside, members: Chosen) -> Numbers:
    """1 where the chosen member is right by itself, else 0."""
    return [
        [
            float(any(one["agent"] == name and one["verdict"] == "right" for one in answers))
            for answers, name in zip(run, names, strict=True)
        ]
        for run, names in zip(compared.alone, members, strict=True)
    ]


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


def relay_figures(cell: Cell, cells: Sequence[Cell]) -> Figures:
    """`relay gain` of a relay's cell, where single answers and the pair together are beside it."""
    both = together_of(cell, cells)
    led = beside(cell, cells)
    together = None if both is None else beside(both, cells)
    if led is None or together is None or len(led.members) != 2:
        return {}
    common = sorted({*led.questions} & {*together.questions})
    if len(common) < 2:
        return {}
    return _known({"relay gain": relay_gain(led.of(common), together.of(common))})


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
    return found.within(-1.0, 1.0)._replace(n=used)
