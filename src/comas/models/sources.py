"""What a base may be: a shipped model, an adapter, or another; where it is, and whether it is to be
had. Leaves out: loading it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from comas.storage import files
from comas.types import UserMistake

ADAPTER = "adapter_config.json"
TEAM = "team.toml"
UNSAID = 2048
"""Positions of a model whose config names none."""
LONG_ROPES = ("longrope", "su")
"""What Hugging Face calls it, and what Microsoft did."""


def is_seed(base: str) -> bool:
    """Whether this is a shipped model, for which the embedded recipe was made."""
    shipped = seed_models()
    if (
        base not in shipped
        and base.startswith("seed")
        and "/" not in base
        and not Path(base).is_dir()
    ):
        raise UserMistake(
            f"base {base!r} cannot be loaded: no such folder, and the shipped models are"
            f" {', '.join(shipped)}"
        )
    return base in shipped


def seed_models() -> dict[str, Path]:
    """Name -> folder of the models that are shipped with comas."""
    return {
        p.parent.name: p.parent
        for p in sorted((Path(__file__).parents[1] / "seed" / "models").glob("*/config.json"))
    }


def is_adapter(base: str | Path) -> bool:
    """Whether this is a folder with an adapter, in the format of peft."""
    return (Path(base) / ADAPTER).is_file()


def adapter_base(folder: str | Path) -> str:
    """The model that the adapter in this folder was made for."""
    path = Path(folder) / ADAPTER
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UserMistake(f"{path} cannot be read: {error}") from error
    if not isinstance(found, str) or not found:
        raise UserMistake(f"{path} names no base: set base_model_name_or_path there")
    return found


def meant(name: str) -> str:
    """`; did you mean runs/a?` where a shipped model, or a run or model in this folder or in
    `runs`, has nearly this name.
    """
    here = [
        p
        for folder in (Path(), Path("runs"), Path(name).parent)
        if folder.is_dir()
        for p in sorted(folder.iterdir())
    ]
    known = {n: n for n in seed_models()}
    for path in here:
        if any((path / name).is_file() for name in ("config.toml", "config.json", TEAM)):
            known |= {path.name: str(path), str(path): str(path)}
    close = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(
        Path(name).name, known, 1
    )
    return f"; did you mean {known[close[0]]}?" if close and known[close[0]] != name else ""


def positions_of(config: Any) -> int:
    """Tokens that a row of a model with this Hugging Face config may have."""
    text = config.get_text_config()
    named = [getattr(text, key, None) for key in ("max_position_embeddings", "max_seq_len")]
    return next((n for n in named if n), UNSAID)


def apart_up_to(config: Any) -> int | None:
    """Tokens up to which such a model turns each row by itself; None where it always does.

    With LongRoPE (Phi-3 and its successors), Hugging Face takes other angles for all rows of a
    batch as soon as one of them has more tokens than the model was first trained with.
    """
    text = config.get_text_config()
    table = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    per_kind = [part for part in table.values() if isinstance(part, Mapping)] or [table]
    found: list[int] = []
    for part in per_kind:
        if (part.get("rope_type") or part.get("type")) in LONG_ROPES:
            first = part.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            found.append(int(first or positions_of(config)))
    return min(found, default=None)


@lru_cache
def at_hand(base: str) -> str:
    """What to load for a base that is no run: itself, or its folder in the hub's cache where the
    hub cannot be reached.

    The hub is asked once, briefly, whether it has a model of that name: its libraries try for a
    minute.
    """
    if Path(base).is_dir() and not (Path(base) / "config.json").is_file() and not is_adapter(base):
        missing = f"config.toml (a run), config.json (a model) and {ADAPTER}"
        raise UserMistake(f"base {base!r} is a folder without {missing}{meant(base)}")
    if is_seed(base) or Path(base).is_dir() or base.startswith((".", "/", "~")):
        return base
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        kept = snapshot(base)
    except HFValidationError as error:
        raise UserMistake(
            f"base {base!r}: no such folder, and no name that a model on the hub can"
            f" have{meant(base)}"
        ) from error
    if kept is None and "/" not in base and (near := meant(base)):
        raise UserMistake(f"base {base!r}: no such folder{near}")
    try:
        HfApi().model_info(base, timeout=10)
        return base
    except RepositoryNotFoundError as error:
        reason: Any = error
        said = "the hub has no model of this name, or a private one (hf auth login)"
    except Exception as error:  # noqa: BLE001 - offline, in the words of whatever HTTP library it uses
        reason = error
        said = (
            "it is not in the hub's cache on this disk, and the hub cannot be reached"
            f" ({type(error).__name__}): go online"
        )
    if kept is None:
        raise UserMistake(
            f"base {base!r}: no such folder, and {said}; or name a folder{meant(base)}"
        ) from reason
    return str(kept)


def snapshot(base: str) -> Path | None:
    """The folder of a hub name in the hub's cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(base, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def config_folder(base: str) -> str | None:
    """The folder with a model's config.json: itself, or that of a hub name in the hub's cache; None
    where there is none.

    Of a hub name that is not in the cache the config alone is downloaded, a few kilobytes.
    """
    if (Path(base) / "config.json").is_file():
        return base
    if not base or Path(base).is_dir() or base.startswith((".", "/", "~")):
        return None
    return _config_on_hub(base)


@lru_cache
def _config_on_hub(name: str) -> str | None:
    from huggingface_hub import hf_hub_download

    try:
        kept = snapshot(name)
        return (
            str(kept)
            if kept
            else str(Path(hf_hub_download(name, "config.json", etag_timeout=10)).parent)
        )
    except Exception:  # noqa: BLE001 - offline, private, gone or no name at all, in the words of whatever HTTP library it uses
        return None


def team_file(name: str | Path) -> Path | None:
    """The config of a team that this names: a TOML file, or a folder with `team.toml` that is no
    run; None where it is neither.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    return path / TEAM if (path / TEAM).is_file() and not (path / "config.toml").is_file() else None


def exported(name: str | Path) -> Path | None:
    """The folder of `comas export` that this is: itself, its team.toml, or a
    policy's folder in it.
    """
    above = Path(name).resolve()
    return next(
        (
            p
            for p in (above, *above.parents[:2])
            if (p / TEAM).is_file() and "earlier" in (files.facts(p) or {})
        ),
        None,
    )
