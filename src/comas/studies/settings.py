"""What the settings of a study are: each resolved as `comas train` would, before anything runs.

Leaves out: claims and measures (`studies.checks`), what a setting costs (`studies.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from comas.config.named_places import anchor
from comas.config.plugins import check_trackers
from comas.config.policies import Resolved
from comas.config.resolve import resolve
from comas.config.schema import Config, read
from comas.config.trainable import check_training
from comas.studies.file import StudyFile
from comas.studies.grid import Described, described, flat, nested
from comas.studies.named_files import declared_config
from comas.types import UserMistake

MANY_STEPS = 10_000
"""Of runs that tokens end."""


@dataclass(frozen=True)
class Setting:
    """One way to train, or not to."""

    name: str
    trained: bool
    keys: dict[str, Any]
    """Of a config, without seed and out."""
    resolved: Resolved
    """With the first seed."""

    def config(self, seed: int, out: Path) -> dict[str, Any]:
        """The config file of one run."""
        return {**self.keys, "seed": seed, "out": str(out)}

    @cached_property
    def essence(self) -> dict[str, Any]:
        """What it is, whatever the seed: plain values."""
        config = self.resolved.config.model_dump(mode="json", exclude={"seed", "out"})
        return {"trained": self.trained, **declared_config(config)}


def settings_of(study: StudyFile, file: Path) -> list[Setting]:
    """All settings, resolved; a mistake is one line that names file, setting and key."""
    try:
        _check_common(study)
        descriptions = described(study)
    except UserMistake as error:
        raise UserMistake(f"{file}: {error}") from error
    found = [_setting(study, file, description) for description in descriptions]
    _check_different(found, file)
    return found


def _check_common(study: StudyFile) -> None:
    """An unknown key, or a value of a wrong kind, in the keys of all settings."""
    try:
        read(None, nested(flat(study.config)))
    except UserMistake as error:
        raise UserMistake(f"config: {error}") from error


def _setting(study: StudyFile, file: Path, description: Described) -> Setting:
    try:
        keys = nested(description.keys)
        anchor(keys, file.parent)
        keys |= _budget(study, description.trained)
        resolved = _resolved({**keys, "seed": study.seeds[0]})
        if keys.get("threads") is None and _is_small(resolved):
            keys["threads"] = 1
            resolved = _resolved({**keys, "seed": study.seeds[0]})
    except UserMistake as error:
        raise UserMistake(f"{file}: setting {description.name}: {error}") from error
    return Setting(description.name, description.trained, keys, resolved)


def _budget(study: StudyFile, trained: bool) -> dict[str, int]:
    if not trained:
        return {"steps": 0}
    budget = {"steps": study.steps or MANY_STEPS}
    return budget if study.tokens is None else {**budget, "tokens": study.tokens}


def _resolved(keys: dict[str, Any]) -> Resolved:
    config: Config = read(None, keys)
    resolved = resolve(config)
    check_training(resolved)
    check_trackers(resolved.config.track)
    return resolved


def _is_small(resolved: Resolved) -> bool:
    """Whether one thread is right: seed models, of which many are trained side by side."""
    return all(plan.source.seeded for plan in resolved.policies)


def _check_different(settings: Sequence[Setting], file: Path) -> None:
    """An error for two settings that are one: a difference between them would be noise."""
    seen: list[tuple[str, dict[str, Any]]] = []
    for setting in settings:
        essence = setting.essence
        for other, known in seen:
            if essence == known:
                raise UserMistake(
                    f"{file}: settings {other} and {setting.name} are alike, once presets and"
                    " defaults are written out: remove one"
                )
        seen.append((setting.name, essence))
