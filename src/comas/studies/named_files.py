"""Files that a study names: measures find theirs beside the study file, as settings do, and what
they say is part of what is declared.

Leaves out: where those of settings are looked for, as any config's are (`config.named_places`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comas.config.named_places import beside
from comas.evaluation.ways import parts_of
from comas.storage import files
from comas.studies.file import Measure, StudyFile
from comas.types import UserMistake


def located(study: StudyFile, folder: Path) -> StudyFile:
    """The study with the files that its measures name by a path from its folder found from
    anywhere; an error for data that are not there.
    """
    measures: dict[str, Measure] = {}
    for name, measure in study.measures.items():
        try:
            measures[name] = _located(measure, folder)
        except UserMistake as error:
            raise UserMistake(f"measures.{name}: {error}") from error
    return study.model_copy(update={"measures": measures})


def _located(measure: Measure, folder: Path) -> Measure:
    found: dict[str, str] = {}

    def place_of(plugin: str) -> str:
        return beside(plugin, folder) if plugin.endswith(".py") else plugin

    if measure.setup is not None:
        found["setup"] = _with_plugin(measure.setup, place_of)
    if measure.task is not None:
        found["task"] = place_of(measure.task)
    if measure.data is not None:
        found["data"] = beside(measure.data, folder)
        if not Path(found["data"]).exists():
            raise UserMistake(
                f"data = {measure.data!r}: there is no such file or folder, beside the study file"
                " or from here"
            )
    return measure.model_copy(update=found)


def setup_told(setup: str) -> str:
    """A setup as a report names it: of a file its name."""
    return _with_plugin(setup, lambda plugin: Path(plugin).name)


def _with_plugin(setup: str, said: Callable[[str], str]) -> str:
    """A setup with its name or file said in another way, and its options."""
    plugin, *options = parts_of(setup)
    return ":".join((said(plugin), *options))


def declared_measure(measure: Measure) -> dict[str, Any]:
    """What a measure is, wherever its files lie."""
    facts = measure.model_dump(exclude={"says", "settings"})
    if measure.setup is not None:
        facts["setup"] = _with_plugin(measure.setup, content_of)
    if measure.task is not None:
        facts["task"] = content_of(measure.task)
    if measure.data is not None:
        facts["data"] = digested(Path(measure.data))
    return facts


def declared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A setting's config, plain values, wherever the files lie that it names."""
    facts = dict(config)
    for key in ("method", "task"):
        facts[key] = content_of(config[key])
    for key in ("metrics", "monitors", "tools", "track"):
        facts[key] = [content_of(name) for name in config[key]]
    data = config["data"]
    if data is not None and Path(data).exists():  # where it does not, a run says so
        facts["data"] = digested(Path(data))
    facts["hosts"] = {name: _declared_host(host) for name, host in config["hosts"].items()}
    return facts


def _declared_host(host: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: host[key] for key in ("kind", "engine", "where") if host[key] is not None}
    return {**host, **{key: content_of(plugin) for key, plugin in named.items()}}


def content_of(plugin: str) -> str:
    """The name of something that is shipped; of a file its name and digest, wherever it lies."""
    return digested(Path(plugin)) if plugin.endswith(".py") else plugin


def digested(path: Path) -> str:
    """The name of a file or of a folder, and the SHA-256 of what is in it."""
    digest = _digest_of_folder(path) if path.is_dir() else files.digest(path)
    return f"{path.name} {digest}"


def _digest_of_folder(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = file.relative_to(folder).as_posix()
        found.update(f"{place} {files.digest(file)}\n".encode())
    return found.hexdigest()
