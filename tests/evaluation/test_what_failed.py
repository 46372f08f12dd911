"""Notes on what failed within games that went on."""

from __future__ import annotations

from typing import Any

from comas.evaluation.report import failure_notes


def game(*facts: dict[str, Any], answer: str | None = None) -> dict[str, Any]:
    turns = [{"info": info} for info in facts]
    return {"turns": turns, "answer": answer, "error": None}


def call(tool: str, failed: str | None) -> dict[str, Any]:
    return {"call": {"tool": tool, "failed": failed}}


def test_tools_most_of_whose_calls_failed_are_named_with_the_first_failure() -> None:
    records = [game(call("search", "gone"), call("calculator", None)), game(call("search", None))]
    assert list(failure_notes(records, "here")) == [
        "here: 1 of 2 calls of search failed, the first: gone"
    ]
    assert not list(failure_notes([game({}), game() | {"turns": [{}]}], "here"))
