"""Costs of turns, and how such tables are summed.

Leaves out: money (hosts), time of the learners (hosts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def tally(entries: Iterable[tuple[dict[str, Any], Mapping[str, float | None]]]) -> list[Any]:
    """Sum the amounts of entries with the same key: a row per key, which stands in its first
    columns, sorted. None is no amount, and the sum of none.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, amounts in entries:
        row = rows.setdefault(tuple(key.values()), {**key, **dict.fromkeys(amounts)})
        for name, amount in amounts.items():
            if amount is not None:
                row[name] = (row[name] or 0) + amount
    return [rows[key] for key in sorted(rows)]


def cost(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Turns, prompt and generated tokens and seconds of waiting per agent, role and round; summed;
    turns as records or as `Turn`.

    Seconds are those for which a turn was waited for: turns that are answered side by side count
    each.
    """
    records = [turn if isinstance(turn, Mapping) else vars(turn) for turn in turns]
    amounts = ("prompt_tokens", "tokens", "seconds")
    return tally(
        (
            {"agent": turn["agent"], "role": turn["role"], "round": turn.get("round", 0)},
            {"turns": 1, **{name: turn[name] for name in amounts}},
        )
        for turn in records
    )
