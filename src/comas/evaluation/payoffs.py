"""What games of an evaluation were worth to those who were evaluated, besides whether they won.

Read from the answers that `game.moves.outcome` writes. Leaves out: who played (`setups.duel`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean as mean
from typing import Any

from comas.evaluation.as_json import finite
from comas.game.moves import payoff_in
from comas.stats import seeds_interval


def payoff_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Mean payoff per game with its interval, clustered by question, and how many games were won,
    drawn and lost; None where no answer is the outcome of a game.
    """
    gains: dict[str, list[float]] = {}
    outcomes: Counter[str] = Counter()
    for record in records:
        payoff = payoff_in(record["answer"])
        if payoff is not None:
            gains.setdefault(record["question"], []).append(payoff)
            outcomes[record["answer"].split()[0]] += 1
    if not gains:
        return None
    found = seeds_interval([mean(of_question) for of_question in gains.values()])
    interval = {"mean": found.mean, "low": finite(found.low), "high": finite(found.high)}
    counts = {word: outcomes[word] for word in ("won", "drawn", "lost")}
    return interval | counts


def payoff_record(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same under the key `payoff`; nothing where there are no games."""
    found = payoff_of(records)
    return {} if found is None else {"payoff": found}


def payoff_notes(records: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """The same in words, of the cell `where`; none where there are no games."""
    found = payoff_of(records)
    if found is None:
        return
    counts = ", ".join(f"{found[word]} {word}" for word in ("won", "drawn", "lost"))
    between = ""
    if found["low"] is not None and found["high"] is not None:
        between = f" [{found['low']:+.3f}, {found['high']:+.3f}]"
    yield f"{where}: mean payoff {found['mean']:+.3f}{between} per game: {counts}"
