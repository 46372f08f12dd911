"""Whether measures and claims name what there is: everything is told before anything runs.

Leaves out: the settings themselves (`studies.settings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comas.config.plugins import load_plugin
from comas.config.tools import with_tools
from comas.evaluation import ways
from comas.studies.file import OWN, Claim, Measure, StudyFile, check_named
from comas.studies.grid import slug
from comas.studies.settings import Setting
from comas.team.build import Team, members_of
from comas.types import UserMistake

WRITTEN = (
    *("step", "step_tokens", "policies", "tokens", "seconds", "spent", "peak_bytes"),
    *("validation", "validation_by_agent"),
)
"""What a line of metrics.jsonl has besides the metrics that the config names."""
HELD_OUT = ("accuracy", "before", "gain", "lowest")
"""Measures on `test_questions`."""


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
    listed = measure.settings
    chosen = [s for s in settings if listed is None or s.name in listed]
    return [s for s in chosen if s.trained or measure.metric is None or listed is not None]


def _check_taken(measure: Measure, setting: Setting) -> None:
    if measure.metric is not None:
        _check_metric(measure.metric, setting)
        return
    assert measure.setup is not None
    team = team_outline(setting, measure)
    way = ways.way(measure.setup, team)
    ways.check_playable(way, team.task)
    ways.check_roles_taken(way, team.task, team.members)


def team_outline(setting: Setting, measure: Measure) -> Team:
    """Who answers in an evaluation, without models."""
    resolved = setting.resolved
    if measure.task is not None:
        task = with_tools(load_plugin("task", measure.task), resolved.config)
        resolved = resolved._replace(task=task)
    hosts: Any = {name: _Named(name) for name in resolved.config.hosts}
    return Team(resolved, {}, members_of(resolved.config, hosts))


class _Named:
    """A host of which only the name is asked."""

    def __init__(self, name: str) -> None:
        self.name = name


def _check_metric(path: str, setting: Setting) -> None:
    if not setting.trained:
        raise UserMistake(f"metric = {path!r}: it is not trained, and has no steps")
    metrics = [Path(name).stem for name in setting.resolved.config.metrics or ()]
    check_named(f"metric = {path!r}", path.partition(".")[0], [*WRITTEN, *metrics])


def check_claims(study: StudyFile, settings: Sequence[Setting], file: Path) -> None:
    """An error for a claim about a setting or a measure that there is not."""
    said: list[dict[str, Any]] = []
    for number, claim in enumerate(study.claims, 1):
        place = f"{file}: claim {number} ({claim.says})"
        _check_claim(claim, study, settings, place)
        facts = claim.model_dump(exclude={"says"})
        if facts in said:
            raise UserMistake(f"{place}: claim {said.index(facts) + 1} says the same: remove one")
        said.append(facts)


def _check_claim(claim: Claim, study: StudyFile, settings: Sequence[Setting], place: str) -> None:
    names = [setting.name for setting in settings]
    check_named(f"{place}: left", claim.left, names)
    if isinstance(claim.right, str):
        check_named(f"{place}: right", claim.right, names)
    elif claim.right_measure is not None:
        raise UserMistake(f"{place}: right is a number, and has no right_measure")
    if len(set(claim.sides)) < len(claim.sides):
        raise UserMistake(f"{place}: {claim.left} is compared with itself")
    for name, measure in claim.sides:
        check_named(f"{place}: measure", measure, [*OWN, *study.measures])
        table = study.measures.get(measure)
        if table is None:
            (setting,) = [setting for setting in settings if setting.name == name]
            _check_own(measure, setting, place)
            continue
        if name not in [setting.name for setting in taken_of(table, settings)]:
            raise UserMistake(f"{place}: {measure} is not taken of {name}: see measures.{measure}")


def _check_own(measure: str, setting: Setting, place: str) -> None:
    """An error for a measure that every run has, and this one leaves out."""
    config = setting.resolved.config
    if measure in HELD_OUT and not config.test_questions:
        raise UserMistake(f"{place}: {setting.name} has no {measure}: its test_questions is 0")
    if measure == "best" and not (setting.trained and config.eval_every):
        raise UserMistake(f"{place}: {setting.name} has no best: nothing is measured on the way")
