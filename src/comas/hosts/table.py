"""What the config tables of all kinds of hosts share.

Each kind declares its own beside its `build`, as a class `Table` that derives from this one. Leaves
out: reading them (`config.schema`).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from comas.models.places import Place


class HostTable(BaseModel):
    """Keys of `[hosts.<name>]` that every kind has."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    base: Place = "seed"
    """Of its policies: a shipped seed model, a folder, or a hub name; with `api` the model's name
    there.
    """


def none_as_text(value: Any) -> Any:
    """`none` as a value: for what is to be left out again when something goes on."""
    return None if value == "none" else value
