"""Keys that configs had once: read over where they say what is done anyway, as saved configs do;
otherwise an error says what to do instead. Monitors and options of commands that there were once.

Leaves out: keys that never were (`config.mistakes`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple, cast


class Former(NamedTuple):
    """A key that is gone."""

    off: Any
    """Its value that meant what is done now."""
    instead: str
    """What to do about any other value."""


FORMER = {
    "ahead": Former(
        0,
        "steps are no longer played while the one before is learnt: leave it out (two hosts with"
        " where=process keep two cores busy)",
    ),
    "tensor_parallel": Former(
        1,
        "a model is sampled from on one GPU: leave it out, and give each GPU a host of its own"
        " (where=process, device=cuda:N)",
    ),
    "compile": Former(
        False,
        "models are sampled from without torch.compile, which was slower on a CPU: leave it out",
    ),
}
"""Key of a run or a host -> what was meant by it."""
MONITORS = ("distinct", "flips", "geometry", "role_shares", "verdict_entropy")
"""Monitors that saw no collapse in time, or alarmed on healthy runs: no run begins or goes on with
one; what was trained with one can be asked and looked at.
"""
OPTIONS: Mapping[str, str] = dict.fromkeys(
    ("certificate", "certificate-key"), "comas serve speaks HTTP: put a proxy with TLS before it"
)
"""Option of a command -> what to do instead."""


def without_former(table: Any, known: Container[str]) -> Any:
    """A table without the former keys that change nothing; `known` are the keys that it has now."""
    if not isinstance(table, Mapping):
        return table
    keys = cast("Mapping[str, Any]", table)
    return {
        key: value
        for key, value in keys.items()
        if key in known or key not in FORMER or value != FORMER[key].off
    }
