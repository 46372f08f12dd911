"""Episodes, metrics and settings as JSON and TOML: what a run's files hold, line by line.

Leaves out: where the files are and when they are written (`storage.run`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from comas.storage import files
from comas.types import COMMON_KINDS, TRUTH, Episode, Kind, Question, Turn, UserMistake


def episode_record(episode: Episode) -> dict[str, Any]:
    """An episode as JSON: `id question turns answer error`."""
    return {
        **vars(episode),
        "question": dict(vars(episode.question)),
        "turns": [dict(vars(turn)) for turn in episode.turns],
    }


def episode_of(record: Mapping[str, Any]) -> Episode:
    """The inverse of `episode_record`."""
    turns = [Turn(**{"kind": kind_of(turn), **turn}) for turn in record["turns"]]
    question = Question(**record["question"])
    return Episode(record["id"], question, turns, record["answer"], record["error"])


def kind_of(turn: Mapping[str, Any]) -> Kind:
    """The kind of a recorded turn's role; records of 0.1 say none."""
    return turn.get("kind") or COMMON_KINDS.get(turn["role"], "other")


def without_truth(episode: Episode) -> Episode:
    """Take away from an episode what was noted of its turns after learning, and return it."""
    for turn in episode.turns:
        for key in TRUTH:
            turn.info.pop(key, None)
    return episode


def line(record: Any) -> str:
    """A record as a line of JSON; a fact that JSON does not know is written as
    what comes nearest.
    """
    try:
        return files.as_json(record, default=plain) + "\n"
    except (TypeError, ValueError):  # keys that are no texts, or a fact that holds itself
        return files.as_json(strict(record, finite=False)) + "\n"


def plain(value: Any) -> Any:
    """Return what JSON can hold of a fact that a game, a settlement or a task noted: nothing that
    has been learnt is lost to a fact.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def strict(value: Any, *, finite: bool = True, depth: int = 50) -> Any:
    """Return what every reader of JSON takes: keys are texts, other facts are as in `plain`, and of
    what is nested deeper than `depth` its type; where `finite`, what is infinite or no number is
    null.
    """
    if depth == 0:
        return repr(type(value))
    if isinstance(value, np.generic):
        value = plain(value)
    if isinstance(value, float):
        return None if finite and not math.isfinite(value) else value
    if value is None or isinstance(value, int | str):
        return value
    deeper = partial(strict, finite=finite, depth=depth - 1)
    if isinstance(value, Mapping):
        return {str(key): deeper(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [deeper(part) for part in value]
    return deeper(plain(value))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a last line that is still being written is left out."""
    with path.open("rb") as log:
        for number, line in enumerate(log, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield files.object_in(line)
            except ValueError as error:
                raise UserMistake(f"{path} line {number} is damaged: {error}") from error


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Tables within tables as dotted keys; a table without keys is a value."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{above}{key}.")
        else:
            values[f"{above}{key}"] = value
    return values


def without_none(value: Any) -> Any:
    """TOML has no null: a key that is None is left out."""
    if isinstance(value, Mapping):
        return {key: without_none(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [without_none(part) for part in value]
    return value


def moved_in(steps: Sequence[Mapping[str, Any]], learning: Iterable[str]) -> dict[str, int]:
    """Count per policy, `host/policy`, the steps in which its gradient was not 0; those that learn
    are counted though nobody asked them.
    """
    moved = dict.fromkeys(learning, 0)
    for step in steps:
        for policy, statistics in step.get("policies", {}).items():
            changed = bool(statistics.get("grad_norm")) and not statistics.get("skipped")
            moved[policy] = moved.get(policy, 0) + changed
    return moved
