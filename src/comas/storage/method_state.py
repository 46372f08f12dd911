"""What a method remembers between steps, in a checkpoint: `state.json`, sealed with the rest.

Leaves out: what it means (`game.memory`).
"""

from __future__ import annotations

import json
from pathlib import Path

from comas.types import State, UserMistake

NAME = "state.json"


def write_state(checkpoint: Path, state: State) -> None:
    """Write the record into an open checkpoint."""
    (checkpoint / NAME).write_text(json.dumps(state), encoding="utf-8")


def read_state(run: Path, step: int) -> State:
    """The record of a run's method after `step` steps."""
    path = run / "checkpoints" / f"step-{step}" / NAME
    if not path.is_file():
        raise UserMistake(
            f"{path} is missing: the run was made by a method without a state; begin anew with this"
            " one"
        )
    return json.loads(path.read_text(encoding="utf-8"))
