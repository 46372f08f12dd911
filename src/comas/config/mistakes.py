"""What is said of a mistake in a config, in one line.

Leaves out: finding them (`config.schema`, `config.schema`, `config.resolve`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from comas.config.former import FORMER

ELSEWHERE = {
    "model": "base",
    "model_name": "base",
    "model_name_or_path": "base",
    "learning_rate": "lr",
    "batch_size": "questions",
    "num_agents": "agents",
    "n_agents": "agents",
    "lora_rank": "rank",
    "lora_r": "rank",
    "lora_alpha": "alpha",
    "gpu": "device",
    "max_steps": "steps",
    "dataset": "task",
    "output_dir": "out",
    "num_generations": "samples",
    "max_new_tokens": "max_tokens",
}
"""What keys are called in other libraries -> what they are called here."""
SECRETIVE = {
    "key_env": (
        "the name of an environment variable is wanted, never the key itself (letters, digits"
        " and _)"
    ),
    "api": (
        "wanted is http(s)://host[:port]/path without a user, a password, ? or #: a key belongs"
        " into the variable of key_env"
    ),
}
"""Keys whose value may be a secret in the wrong place: what is said of a mistake does not repeat
it.
"""


Path = tuple[str | int, ...]
"""Of a key: its parts."""


def explain(
    error: ValidationError, keys_beside: Callable[[Path], Iterable[str]], table: Path = ()
) -> str:
    """Say the first of the errors in a table, all of the config by default; `keys_beside` gives the
    known keys of the table that a key stands in.
    """
    first = error.errors()[0]
    path = (*table, *first["loc"])
    key = ".".join(str(part) for part in path)
    if first["type"] == "extra_forbidden" and path[-1] in FORMER:
        return f"{key}: {FORMER[str(path[-1])].instead}"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}: {_meant(str(path[-1]), keys_beside(path))}"
    if path and path[-1] in SECRETIVE:
        return f"{key}: {SECRETIVE[str(path[-1])]}"
    message = first["msg"].removeprefix("Value error, ")
    value = first["input"]
    if first["type"] == "list_type" and isinstance(value, str):
        message = f"a list is wanted: {json.dumps(value.split(','))}"
    return f"{key} = {value!r}: {message}" if key else message


def _meant(name: str, known: Iterable[str]) -> str:
    """What an unknown key is called here, in words."""
    if name in ELSEWHERE:
        return f"did you mean {ELSEWHERE[name]}?"
    return nearest(name, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is not known, in words."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"one of {', '.join(known) or '(none)'}"
