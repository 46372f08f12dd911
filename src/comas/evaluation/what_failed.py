"""What failed within games that went on: calls of tools, and games that were given up.

Answers that failed, and replies that were cut or could not be read, are in `report`. Leaves out:
what failed in training (`training.learning_signal`, the metric `tools`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from comas.game.moves import LONGEST

MANY = 0.5
"""Share of failures from which on there is a note."""
SHOWN = 120
"""Characters of a failure that is shown as an example."""


def failure_notes(records: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """A note for each tool most of whose calls failed, and one on games without end, of the cell
    `where`.
    """
    facts = [turn.get("info") or {} for record in records for turn in record["turns"]]
    calls: dict[str, list[str | None]] = {}
    for info in facts:
        if "call" in info:
            calls.setdefault(info["call"]["tool"], []).append(info["call"]["failed"])
    for tool, failures in calls.items():
        failed = [failure for failure in failures if failure is not None]
        if len(failed) >= MANY * len(failures):
            count = f"{len(failed)} of {len(failures)} calls of {tool} failed"
            yield f"{where}: {count}, the first: {failed[0][:SHOWN]}"
    endless = sum(_unended(record) for record in records)
    if endless:
        count = f"{endless} of {len(records)} games were given up after {LONGEST} moves"
        yield f"{where}: {count}: nobody has won them"


def _unended(record: Mapping[str, Any]) -> bool:
    """Whether a game was given up; where the agent was never asked, nothing else has no answer."""
    facts = [turn.get("info") or {} for turn in record["turns"]]
    silent = not facts and record["answer"] is None and not record["error"]
    return silent or any(info.get("unended") for info in facts)
