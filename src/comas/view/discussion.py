"""A recorded discussion as the page shows it, and its row in a list.

Leaves out: where it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from comas.game.judgements import unreadable
from comas.storage.records import kind_of
from comas.types import TRUTH

REWARDED = 0.5
"""Worth from which work counts as rewarded: shipped methods reward it from 0 to 1, or compare what
they would give so, and note that as `raw`.
"""
QUOTE = 200
"""Characters of a question or an answer in a list."""
SHOWN_APART = (*TRUTH, "advantage", "kl")
"""Facts that have a place of their own."""
FIELDS = (
    *("agent", "policy", "version", "role", "round", "prompt", "text", "thoughts", "finished"),
    *("reward", "tokens", "prompt_tokens", "seconds", "logprob", "dropped"),
)


def shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """A discussion; ids of turns are shortened by what they all begin with."""
    beginning = record["id"] + "/"
    asked = record["question"]
    question = dict(asked) if isinstance(asked, Mapping) else {"id": asked, "prompt": None}
    return {
        "id": record["id"],
        "question": question,
        "answer": record["answer"],
        "error": record["error"],
        "verdict": record.get("verdict"),
        "turns": [_turn(turn, beginning) for turn in record["turns"]],
    }


def _turn(turn: Mapping[str, Any], beginning: str) -> dict[str, Any]:
    info = turn["info"]
    about = turn["about"]
    shown_turn = {field: turn.get(field) for field in FIELDS}
    shown_turn["id"] = turn["id"].removeprefix(beginning)
    shown_turn["about"] = about.removeprefix(beginning) if about is not None else None
    shown_turn["facts"] = {key: info[key] for key in info if key not in SHOWN_APART}
    shown_turn["judges"] = kind_of(turn) == "judge"
    shown_turn["unreadable"] = unreadable(info)
    for key in SHOWN_APART:
        shown_turn[key] = info.get(key)
    return shown_turn


def row(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A line of a list: which discussion, who got which reward, and its `kinds`."""
    asked = record["question"]
    is_known = isinstance(asked, Mapping)
    rewards = [(turn["role"], turn["reward"]) for turn in record["turns"]]
    return {
        "number": number,
        "id": asked["id"] if is_known else asked,
        "question": (asked["prompt"] if is_known else asked)[:QUOTE],
        "answer": (record["answer"] or "")[-QUOTE:],
        "verdict": record.get("verdict") or _verdict(record["turns"]),
        "turns": len(record["turns"]),
        "rewards": [[role, reward] for role, reward in rewards if reward is not None],
        "kinds": sorted(set(_kinds(record))),
    }


def _verdict(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """Sum up the known labels of the work in these turns: `right`, `wrong` or `both`; None of
    none.
    """
    labels = {turn["info"]["right"] for turn in turns if "right" in turn["info"]}
    if len(labels) == 2:
        return "both"
    return ("right" if labels.pop() else "wrong") if labels else None


KINDS = {
    "rewarded-but-wrong": "work that was rewarded, and is wrong by its label",
    "right-but-unrewarded": "work that was not rewarded, and is right by its label",
    "misjudged": "a judgement that accepts wrong work or rejects right work",
    "unreadable": "a reply that the game could not read",
    "cut": "a reply that was cut at the token limit",
    "failed": "a discussion that a machine failed",
}
"""Kinds to which a list can be narrowed, and what they mean."""


def _kinds(record: Mapping[str, Any]) -> Iterator[str]:
    """Find the `KINDS` that hold of a discussion."""
    if record["error"] is not None:
        yield "failed"
    turns = {turn["id"]: turn for turn in record["turns"]}
    is_trained = any(
        turn["reward"] is not None for turn in record["turns"]
    )  # in an evaluation nobody
    for turn in record["turns"]:
        info = turn["info"]
        worth = info.get("raw", turn["reward"]) or 0.0
        right = info.get("right")
        if not turn["finished"]:
            yield "cut"
        if unreadable(info):
            yield "unreadable"
        if right is False and worth >= REWARDED:
            yield "rewarded-but-wrong"
        if right is True and worth < REWARDED and is_trained:
            yield "right-but-unrewarded"
        work = _work(turn, turns) if info.get("accepts") is not None else None
        if work is not None and work["info"]["right"] is not info["accepts"]:
            yield "misjudged"


def _work(
    turn: Mapping[str, Any], turns: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The work that a judgement goes back to; None where that has no label, or other work was shown
    instead.
    """
    if turn["info"].get("known") == "wrong":
        return None
    seen: set[str] = set()
    work = turns.get(turn["about"])
    while work is not None and kind_of(work) == "judge":
        if work["id"] in seen:  # no game of ours writes a circle, but a file may have one
            return None
        seen.add(work["id"])
        work = turns.get(work["about"])
    return work if work is not None and "right" in work["info"] else None
