"""What the config tables of all kinds of hosts share.

Each kind declares its own beside its `build`, as a class `Table` that derives from this one. Leaves
out: reading them (`config.schema`).
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Key(Enum):
    """What else is true of a key; it stands in the annotation of its field."""

    CHANGES = "may be changed when a run or an evaluation goes on: no text depends on it"
    BOUNDS = "may be changed so as well: what is computed changes by rounding only"
    TRAINING = "says nothing of an evaluation"
    OF_API = "says nothing without `api`"
    OF_WEIGHTS = "says nothing with `api`"
    OF_ADAPTERS = "says nothing where whole models are trained, or none"
    OWN_FILE = "names a file of the user's own where it ends in .py"
    ELSEWHERE = "says nothing where the host lives in this process"


def keys_that(table: type[BaseModel], *facts: Key) -> tuple[str, ...]:
    """The keys of a table of which one of these is true, in their order."""
    fields = table.model_fields.items()
    return tuple(name for name, field in fields if any(fact in field.metadata for fact in facts))


def _as_text(value: Any) -> Any:
    """A path or a name as text; `~` is expanded, since shells leave it in `key=~/x`."""
    if not isinstance(value, str | os.PathLike):
        return value
    text = str(os.fspath(cast("os.PathLike[str]", value)))
    if not text.strip():
        raise ValueError(
            "it is empty: name a folder, a file or what is meant, or leave the key out"
        )
    if "\0" in text:
        raise ValueError("no file or folder can have a NUL character in its name: leave it out")
    return os.path.expanduser(text)


Place = Annotated[str, BeforeValidator(_as_text)]
"""Of a file or folder, or a name that stands for one."""


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


class OwnTable(HostTable):
    """Keys of a host that is an instance of the caller's, `comas.train(hosts={"mine": MyHost()})`:
    nothing is built, and its other keys say nothing.
    """

    own: bool = False
    """Whether it is one; written by `comas.train`, not by hand."""
