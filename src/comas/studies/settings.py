"""What the settings of a study are, each resolved as `comas train` would, and whether measures and
claims name what there is: everything is told before anything runs.

Files that settings and measures name are found beside the study file, and what is in them is part
of what is declared. Leaves out: what is left to run (`studies.cells`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from comas.config.plugins import check_trackers, load_plugin, with_tools
from comas.config.resolve import Resolved, check_training, resolve
from comas.config.schema import anchor, beside, read
from comas.evaluation import ways
from comas.storage import files
from comas.studies.file import (
    HELD_OUT,
    OF_AGENTS,
    OWN,
    Claim,
    Described,
    Measure,
    StudyFile,
    check_named,
    described,
    flat,
    nested,
    slug,
)
from comas.team.build import Team, members_of
from comas.types import UserMistake

MANY_STEPS = 10_000
"""Of runs that tokens end."""
WRITTEN = (
    *("step", "step_tokens", "policies", "tokens", "monitor_tokens"),
    *("seconds", "spent", "peak_bytes"),
    *("validation", "validation_by_agent"),
)
"""What a line of metrics.jsonl has besides the metrics that the config names."""


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
        return {"trained": self.trained, **pinned(config)}


def settings_of(study: StudyFile, file: Path) -> list[Setting]:
    """All settings, resolved; a mistake is one line that names file, setting and key."""
    try:
        try:
            read(None, nested(flat(study.config)))
        except UserMistake as error:
            raise UserMistake(f"config: {error}") from error
        descriptions = described(study)
    except UserMistake as error:
        raise UserMistake(f"{file}: {error}") from error
    found: list[Setting] = []
    for description in descriptions:
        setting = _setting(study, file, description)
        for other in found:  # a difference between them would be noise
            if other.essence == setting.essence:
                raise UserMistake(
                    f"{file}: settings {other.name} and {setting.name} are alike, once presets and"
                    " defaults are written out: remove one"
                )
        found.append(setting)
    return found


def _setting(study: StudyFile, file: Path, description: Described) -> Setting:
    budget = {"steps": 0}
    if description.trained:
        budget = {"steps": study.steps or MANY_STEPS}
        budget |= {} if study.tokens is None else {"tokens": study.tokens}
    try:
        keys = nested(description.keys)
        anchor(keys, file.parent)
        keys |= budget
        resolved = resolve(read(None, {**keys, "seed": study.seeds[0]}))
        check_training(resolved)
        check_trackers(resolved.config.track)
        # seed models are small: many are trained side by side, on one thread each
        if keys.get("threads") is None and all(plan.source.seeded for plan in resolved.policies):
            keys["threads"] = 1
            resolved = resolved.with_config(resolved.config.model_copy(update={"threads": 1}))
    except UserMistake as error:
        raise UserMistake(f"{file}: setting {description.name}: {error}") from error
    return Setting(description.name, description.trained, keys, resolved)


# --- measures and claims


def check_measures(study: StudyFile, settings: Sequence[Setting], file: Path) -> None:
    """An error for a measure that a setting cannot have."""
    names = [setting.name for setting in settings]
    folders: dict[str, str] = {}
    for name, measure in study.measures.items():
        other = folders.setdefault(slug(name), name)
        if other != name:
            raise UserMistake(f"{file}: measures {other!r} and {name!r} would have one folder")
        place = f"{file}: measures.{name}"
        for wanted in measure.settings or ():
            check_named(f"{place}: settings", wanted, names)
        for setting in taken_of(measure, settings):
            try:
                _check_taken(measure, setting)
            except UserMistake as error:
                raise UserMistake(f"{place}: setting {setting.name}: {error}") from error


def taken_of(measure: Measure, settings: Sequence[Setting]) -> list[Setting]:
    """The settings that a measure is taken of; those without steps have no metrics."""
    if measure.settings is not None:
        return [setting for setting in settings if setting.name in measure.settings]
    return [setting for setting in settings if setting.trained or measure.metric is None]


def _check_taken(measure: Measure, setting: Setting) -> None:
    resolved = setting.resolved
    if measure.metric is not None:
        if not setting.trained:
            raise UserMistake(f"metric = {measure.metric!r}: it is not trained, and has no steps")
        if "" in measure.metric.split("."):
            raise UserMistake(f"metric = {measure.metric!r}: nothing stands beside one of its dots")
        metrics = [Path(name).stem for name in resolved.config.metrics or ()]
        known = [*WRITTEN, *metrics]
        check_named(f"metric = {measure.metric!r}", measure.metric.partition(".")[0], known)
        return
    if measure.task is not None:
        config = resolved.config
        task = with_tools(load_plugin("task", measure.task), config.tools, config.tool_options)
        resolved = replace(resolved, task=task)
    hosts: Any = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
    team = Team(resolved, {}, members_of(resolved, hosts))
    way = ways.way(str(measure.setup), team)
    ways.check_playable(way, team.task)
    ways.check_roles_taken(way, team.task, team.members)


def check_claims(study: StudyFile, settings: Sequence[Setting], file: Path) -> None:
    """An error for a claim about a setting or a measure that there is not."""
    said: list[dict[str, Any]] = []
    for number, claim in enumerate(study.claims, 1):
        place = f"{file}: claim {number} ({claim.says})"
        _check_claim(claim, study, {setting.name: setting for setting in settings}, place)
        facts = claim.model_dump(exclude={"says"})
        if facts in said:
            raise UserMistake(f"{place}: claim {said.index(facts) + 1} says the same: remove one")
        said.append(facts)


def _check_claim(
    claim: Claim, study: StudyFile, settings: Mapping[str, Setting], place: str
) -> None:
    check_named(f"{place}: left", claim.left, settings)
    if isinstance(claim.right, str):
        check_named(f"{place}: right", claim.right, settings)
    elif claim.right_measure is not None:
        raise UserMistake(f"{place}: right is a number, and has no right_measure")
    if len(set(claim.sides)) < len(claim.sides):
        raise UserMistake(f"{place}: {claim.left} is compared with itself")
    for name, measure in claim.sides:
        setting = settings[name]
        of_agents = [
            f"{own}.{agent}" for own in OF_AGENTS for agent in setting.resolved.config.agents
        ]
        check_named(f"{place}: measure", measure, [*OWN, *study.measures, *of_agents])
        if measure in study.measures:
            if setting not in taken_of(study.measures[measure], list(settings.values())):
                raise UserMistake(
                    f"{place}: {measure} is not taken of {name}: see measures.{measure}"
                )
            continue
        config = setting.resolved.config
        if measure in (*HELD_OUT, *of_agents) and not config.test_questions:
            raise UserMistake(f"{place}: {name} has no {measure}: its test_questions is 0")
        if measure == "best" and not (setting.trained and config.eval_every):
            raise UserMistake(f"{place}: {name} has no best: nothing is measured on the way")


# --- files that are named


def located(study: StudyFile, folder: Path) -> StudyFile:
    """The study with the files that its measures name by a path from its folder found from
    anywhere; an error for data that are not there.
    """

    def place_of(plugin: str) -> str:
        return beside(plugin, folder) if plugin.endswith(".py") else plugin

    measures: dict[str, Measure] = {}
    for name, measure in study.measures.items():
        found: dict[str, str] = {}
        if measure.setup is not None:
            found["setup"] = with_plugin(measure.setup, place_of)
        if measure.task is not None:
            found["task"] = place_of(measure.task)
        if measure.data is not None:
            found["data"] = beside(measure.data, folder)
            if not Path(found["data"]).exists():
                raise UserMistake(
                    f"measures.{name}: data = {measure.data!r}: there is no such file or folder,"
                    " beside the study file or from here"
                )
        measures[name] = measure.model_copy(update=found)
    return study.model_copy(update={"measures": measures})


def with_plugin(setup: str, said: Callable[[str], str]) -> str:
    """A setup with its name or file said in another way, and its options."""
    plugin, *options = ways.parts_of(setup)
    return ":".join((said(plugin), *options))


def pinned(value: Any, key: str = "") -> Any:
    """The same plain value, with the name and digest of each file of the user's own in the place of
    its path, wherever that lies.
    """
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {name: pinned(below, name) for name, below in table.items()}
    if isinstance(value, list):
        return [pinned(each) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    if key == "setup":
        return with_plugin(value, pinned)
    if value.endswith(".py") or (key == "data" and Path(value).exists()):
        return digested(Path(value))
    return value


def digested(path: Path) -> str:
    """The name of a file or of a folder, and the SHA-256 of what is in it."""
    if not path.is_dir():
        return f"{path.name} {files.digest(path)}"
    found = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        place = file.relative_to(path).as_posix()
        found.update(f"{place} {files.digest(file)}\n".encode())
    return f"{path.name} {found.hexdigest()}"
