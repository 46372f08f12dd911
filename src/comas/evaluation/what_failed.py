"""What failed within games that went on: calls of tools, and games that were given up.

Answers that failed, and replies that were cut or could not be read, are in `report`. Leaves out:
what failed in training (`training.learning_signal`, the metric `tools`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from comas.game.dialogue import failing
from comas.game.moves import LONGEST

Info = Mapping[str, Any]
"""What a game noted of a turn."""


def failure_notes(records: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """A note for each tool most of whose calls failed, and one on games without end, of the cell
    `where`.
    """
    facts = [info for record in records for info in _infos(record)]
    for tool in failing(info["call"] for info in facts if "call" in info):
        yield f"{where}: {tool.text}"
    is_game = any("seat" in info for info in facts)
    endless = sum(_unended(record) for record in records)
    if is_game and endless:
        count = f"{endless} of {len(records)} games were given up after {LONGEST} moves"
        yield f"{where}: {count}: nobody has won them"


def _unended(record: Mapping[str, Any]) -> bool:
    """Whether a game was given up; where the agent was never asked, nothing else has no answer."""
    facts = _infos(record)
    silent = not facts and record["answer"] is None and not record["error"]
    return silent or any(info.get("unended") for info in facts)


def _infos(record: Mapping[str, Any]) -> list[Info]:
    return [turn.get("info") or {} for turn in record["turns"]]
