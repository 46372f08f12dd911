"""The models that are shipped with comas. Leaves out: loading them."""

from __future__ import annotations

from pathlib import Path

from comas.types import UserMistake


def is_seed(base: str) -> bool:
    """Whether this is a shipped model, for which the embedded recipe was made."""
    shipped = seed_models()
    if base not in shipped and base.startswith("seed") and "/" not in base and not Path(base).is_dir():
        raise UserMistake(f"base {base!r} cannot be loaded: no such folder, and the shipped models are {', '.join(shipped)}")
    return base in shipped


def seed_models() -> dict[str, Path]:
    """Name -> folder of the models that are shipped with comas."""
    return {p.parent.name: p.parent for p in sorted((Path(__file__).parent / "seed" / "models").glob("*/config.json"))}
