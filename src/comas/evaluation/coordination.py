"""What it costs and gains to coordinate, against single answers of the same system.

After "Towards a Science of Scaling Agent Systems" (arXiv 2512.08296), with generated tokens for its
turns and runs of words for its embeddings. With
S the share of right answers and T the generated tokens per question: overhead T(team) / T(single)
- 1, efficiency S(team) T(single) / T(team), error amplification (1 - S(team)) / (1 - S(single));
redundancy is the mean similarity of two agents' first answers, message density the share of turns
that quote others. Leaves out: prompt tokens, seconds, a regression over many tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from comas.evaluation.beside import Beside, Numbers
from comas.evaluation.report import Cell, Record
from comas.evaluation.turns import first_answers
from comas.objective.pay import grams, similarity
from comas.stats import (
    Interval,
    accuracy_interval,
    delta_interval,
    ratio_interval,
    share_interval,
    share_ratio_interval,
)


def figures(cell: Cell, compared: Beside) -> dict[str, Interval]:
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
    if not _mean(compared.tokens_alone()):
        return None
    ratio = ratio_interval(compared.tokens(), compared.tokens_alone())
    mean, low, high, n = ratio
    least = max(-1.0, low - 1)
    return Interval(mean - 1, least, high - 1, n)


def efficiency(compared: Beside) -> Interval | None:
    """The team's share of right answers, over its tokens in units of a single answer."""
    tables = (compared.right(), compared.tokens(), compared.tokens_alone())
    right, tokens, alone = map(_mean, tables)
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
    if not _mean(wrong_alone):
        return None
    return share_ratio_interval(wrong, wrong_alone)


def redundancy(cell: Cell) -> Interval | None:
    """The mean similarity of the first answers of two agents, from 0 to 1."""
    return _share(cell, _redundancy)


def message_density(cell: Cell) -> Interval | None:
    """The share of turns that quote another agent; None where nobody noted it."""
    return _share(cell, _messages)


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


def _share(cell: Cell, part: Any) -> Interval | None:
    """The sum of what `part(record)` gives first over the sum of what it gives second."""
    questions = sorted({record["question"] for record in cell.records})
    tops: Numbers = []
    bottoms: Numbers = []
    for run in cell.runs:
        parts = {record["question"]: part(record) for record in run}
        of_run = [parts.get(question, (0, 0)) for question in questions]
        tops.append([top for top, _ in of_run])
        bottoms.append([bottom for _, bottom in of_run])
    return share_interval(tops, bottoms)


def _complements(table: Sequence[Sequence[float]]) -> Numbers:
    return [[1 - value for value in run] for run in table]


def _mean(table: Sequence[Sequence[float]]) -> float:
    return float(np.mean(table))
