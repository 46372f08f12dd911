"""What a base may be: a model that is shipped with comas, an adapter, or any other. Leaves out: loading them."""

from __future__ import annotations

import json
from pathlib import Path

from comas.types import UserMistake

ADAPTER = "adapter_config.json"


def is_seed(base: str) -> bool:
    """Whether this is a shipped model, for which the embedded recipe was made."""
    shipped = seed_models()
    if base not in shipped and base.startswith("seed") and "/" not in base and not Path(base).is_dir():
        raise UserMistake(f"base {base!r} cannot be loaded: no such folder, and the shipped models are {', '.join(shipped)}")
    return base in shipped


def seed_models() -> dict[str, Path]:
    """Name -> folder of the models that are shipped with comas."""
    return {p.parent.name: p.parent for p in sorted((Path(__file__).parent / "seed" / "models").glob("*/config.json"))}


def is_adapter(base: str | Path) -> bool:
    """Whether this is a folder with an adapter, in the format of peft."""
    return (Path(base) / ADAPTER).is_file()


def adapter_base(folder: str | Path) -> str:
    """The model that the adapter in this folder was made for."""
    path = Path(folder) / ADAPTER
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UserMistake(f"{path} cannot be read: {error}") from error
    if not isinstance(found, str) or not found:
        raise UserMistake(f"{path} names no base: set base_model_name_or_path there")
    return found
