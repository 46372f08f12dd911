"""What teams make of their members, per cell in which a team plays, beside single answers of the
same system to the same questions.

- What it costs and gains to coordinate, after "Towards a Science of Scaling Agent Systems" (arXiv
  2512.08296), with generated tokens for its turns and runs of words for its embeddings. With S the
  share of right answers and T the generated tokens per question: overhead T(team) / T(single) - 1,
  error amplification (1 - S(team)) / (1 - S(single)); redundancy is the mean similarity of two
  agents' first answers.
- Confidence and critique of revisions: P(right after | right before) and P(right after | wrong
  before) of arXiv 2412.19513, for each turn that revises another turn of the same agent.
- The loss against the expert, after "Multi-Agent Teams Hold Experts Back" (arXiv 2602.01011). The
  expert of a question is the member that answers best, alone, in the *other* half of the questions:
  chosen on the same ones, the best of several would look better than it is.

Figures without data are absent, never 0. Only questions count that all runs of both were judged on.
Leaves out: prompt tokens, seconds, a regression over many tasks, teams whose members are copies of
one model, which have no expert.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from comas.evaluation.games import first_answers, revisions
from comas.evaluation.report import Cell, Record, label
from comas.objective.pay import grams, similarity
from comas.stats import (
    Interval,
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
            "error amplification": amplified,
            "redundancy": redundancy(cell),
        }
    )


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


def expert_figures(compared: Beside) -> Figures:
    """All that there are data for; nothing where one agent answers alone."""
    if len(compared.members) < 2 or len(compared.questions) < 2:
        return {}
    alone = [_right_of_experts(run) for run in compared.alone]
    expert = share_interval(alone, [[1.0] * len(run) for run in alone])
    figures: dict[str, Interval | None] = {"expert accuracy": expert}
    if expert is not None and expert.mean > 0:
        mean, low, high, n = share_ratio_interval(compared.right(), alone)
        figures["expert loss"] = Interval(1 - mean, 1 - high, 1 - low, n)
    return _known(figures)


def _right_of_experts(run: Sequence[Sequence[Record]]) -> list[float]:
    """Per question of a run 1 where the expert is right by itself, else 0: the member that is right
    most often in the other half, the first by name among equals. Halves are every second question,
    in the order of ids.
    """
    experts: list[str] = []
    for half in (0, 1):
        right: Counter[str] = Counter()
        for record in itertools.chain.from_iterable(run[1 - half :: 2]):
            right[record["agent"]] += record["verdict"] == "right"
        experts.append(max(sorted(right), key=right.__getitem__))
    found: list[float] = []
    for place, answers in enumerate(run):
        of_expert = [_right(one) for one in answers if one["agent"] == experts[place % 2]]
        found.append(max(of_expert, default=0.0))
    return found
