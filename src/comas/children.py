"""Environment of the processes that comas starts.

Leaves out: how they are started and spoken with (`hosts.ray`, `answers.pool`), and programs that
nobody trusts (`sandbox`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

KEYS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
"""How names of variables end that hold keys."""
HUB = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""Variables that hold tokens of the model hub."""


def python_path() -> str:
    """PYTHONPATH of a child that is to import the comas that runs here, before all else."""
    source = str(Path(__file__).parents[1])
    existing = os.environ.get("PYTHONPATH")
    return source + (os.pathsep + existing if existing else "")


def without_keys(environment: Mapping[str, str], named: frozenset[str]) -> dict[str, str]:
    """The environment of a child: all variables but those that hold keys it has no use for.

    These are the ones named, and whatever is called like one: `..._API_KEY`, `..._TOKEN`. Tokens of
    the model hub stay unless they are named: weights may be fetched there.
    """
    passed_on: dict[str, str] = {}
    for name, value in environment.items():
        like_a_key = name.endswith(KEYS) and name not in HUB
        if name not in named and not like_a_key:
            passed_on[name] = value
    return passed_on
