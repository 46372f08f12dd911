"""How a config names a file or a folder, or what a name stands for, as text; and where comas keeps
what it made of models.

Leaves out: what lies there (`models.sources`, `models.gguf`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator


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


def cache(kind: str) -> Path:
    """The folder of one kind of these: beside the hub's models, so that HF_HOME moves both."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "comas" / kind
