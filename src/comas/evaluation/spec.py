"""Specification of an evaluation: systems, tasks, setups by name, and where they are found.

Leaves out: what setups mean (`evaluation.setups`), the questions (`evaluation.questions`),
asking (`evaluation.runner`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.plan import Plan
from comas.config.plugins import names_file
from comas.config.schema import from_here, settings_of, with_host_keys
from comas.config.systems import (
    fixed_place,
    hosts_of,
    independent,
    is_run,
    of_hosts,
    system_plan,
    table_of,
)
from comas.evaluation.setups import parts_of
from comas.models.sources import team_file
from comas.storage import files as disk
from comas.team import spending
from comas.team.build import Team
from comas.types import UserMistake

LIMIT = 500
"""Questions per task, where it has more: the first ones of an order drawn by the seed."""

CROSS = "cross"
"""The setup in which every run plays against every other (`evaluation.teams`)."""
AGENTS_HOST = re.compile(r"agents\..+\.host$")
INSTEAD = {
    "base": "a system, named by itself",
    "out": "--out",
    "seed": "--seed",
    "data": "--data",
    "task": "--tasks",
    "temperature": "eval_temperature",
    "questions": "--limit",
    "eval_questions": "--limit",
    "samples": "--setups vote:votes=N",
}


@dataclass(frozen=True)
class EvaluationPlan:
    """Plan of an evaluation: what is asked of whom."""

    systems: Sequence[str]
    """Runs (`RUN`, `RUN@best`, `RUN@40`), base models, teams (`TEAM.toml`, or a folder with
    `team.toml`), or several runs of one system divided by commas.
    """
    tasks: Sequence[str] = ()
    """Empty: the task of the first run or team, `pick` where there are base models alone."""
    setups: Sequence[str] = ("single",)
    """Setups or methods by name or file, `game` for the run's own, with options: `vote:votes=16`.
    """
    limit: int | None = LIMIT
    """Questions per task; None is all."""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the config -> values, for all systems."""
    data: str | None = None
    """A file or folder of questions, for tasks that read one."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Run or model as named -> where it is found from anywhere, at the step that was meant when the
    evaluation began.
    """
    teams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config file as named -> the team that it described when the evaluation began."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Changes since, in order: `when`, and `settings` of keys in `spending.CHANGEABLE`."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """`questions of TASK`, `weights of RUN`, `contents of FILE` -> what they were when they were
    first asked (`evaluation.questions`).
    """
    files: Mapping[str, str] = field(default_factory=dict)
    """File of a setup or a task as named -> where it is found from anywhere."""

    @property
    def crosses(self) -> bool:
        """Whether every run plays against every other."""
        return CROSS in self.setups

    @property
    def setups_per_system(self) -> list[str]:
        """The setups in which a system answers by itself."""
        return [setup for setup in self.setups if setup != CROSS]

    def runs(self) -> list[tuple[str, str]]:
        """List (system, run) of all runs and models."""
        return [(system, run) for system in self.systems for run in system.split(",")]

    def of(self, run: str) -> Plan:
        """The plan of what stands under this name; of a run from its checkpoint."""
        name = self.places.get(run, run)
        table = self.teams.get(run)
        hosts = hosts_of(name) if table is None else set(table["hosts"])
        if hosts is None:
            agents = {k: v for k, v in self.settings.items() if AGENTS_HOST.match(k)}
            hosts = {"home", *map(str, agents.values())}
        # without those for hosts that other systems have and this one has not
        settings = of_hosts(self.settings, hosts)
        plan = system_plan(name, settings, table)
        changes = {k: v for change in self.changes for k, v in change["settings"].items()}
        concerning = spending.concerning(changes, plan.config)
        return system_plan(name, settings | concerning, table) if concerning else plan


def upgraded(written: bytes) -> bytes:
    """An `evaluation.json` with its settings as a table, where they were `key=value` pairs."""
    try:
        data = disk.parsed(written)
        for table in (data, *data["changes"]):
            if "pairs" in table:
                table["settings"] = settings_of(table.pop("pairs"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return written  # reading it says what is wrong
    return json.dumps(data).encode()


def with_a_task(plan: EvaluationPlan, names: Iterable[str]) -> str:
    """The run or team whose task is asked where none is named, and by whose settings all are asked:
    the first that is no base model, where there is one.
    """
    first, *_ = names = list(names)
    for name in names:
        place = plan.places.get(name, name)
        if name in plan.teams or is_run(place) or team_file(place) is not None:
            return name
    return first


def contents(plan: EvaluationPlan, teams: Mapping[str, Team]) -> dict[str, str]:
    """`contents of FILE` -> digest of the files whose code answers or judges: those that were
    named, and the systems' own.
    """
    own_files_named: list[str] = []
    task = teams[with_a_task(plan, teams)].config.task
    if not plan.tasks or task in plan.tasks:
        own_files_named.append(task)
    if any(parts_of(setup)[0] == "game" for setup in plan.setups):
        own_files_named += [team.config.method for team in teams.values()]
    own_files_named += [tool for team in teams.values() for tool in team.config.tools]
    own_files = {name: name for name in own_files_named if names_file(name)}
    return {
        f"contents of {name}": disk.digest(Path(place))
        for name, place in {**plan.files, **own_files}.items()
        if Path(place).is_file()
    }


def changed(plan: EvaluationPlan, changes: Mapping[str, Any]) -> EvaluationPlan:
    """The plan with changes that are of use to one of its systems."""
    configs = [plan.of(run).config for _, run in plan.runs()]
    hosts = dict.fromkeys(host for config in configs for host in config.hosts)
    settings = with_host_keys(changes, list(hosts))
    spending.check_changes(settings, configs)
    change = {"when": time.strftime("%Y-%m-%d %H:%M:%S"), "settings": settings}
    plan = replace(plan, changes=[*plan.changes, change])
    for _, run in plan.runs():  # a wrong value is an error before anything is written
        plan.of(run)
    return plan


def limit_of(limit: int | None, settings: Mapping[str, Any]) -> int | None:
    """Questions per task, None for all of them: `limit`, or without one what `test_questions`
    says.
    """
    key = "limit"
    if limit is None:
        key = "test_questions"
        limit = settings.get(key, LIMIT)
    elif "test_questions" in settings:
        raise UserMistake(
            f"{key}={limit} and test_questions={settings['test_questions']} say the same: give one"
            " of them"
        )
    if type(limit) is not int or limit < 0:
        raise UserMistake(f"{key}={limit!r}: a number of questions per task; 0 is all")
    return limit or None


def check_hosts(settings: Mapping[str, Any], teams: Sequence[Team]) -> None:
    """An error where `hosts.<name>.key=value` is about a host at which nobody is."""
    host_names = {agent.host for team in teams for agent in team.config.agents.values()}
    for key, value in settings.items():
        table, _, rest = key.partition(".")
        if rest.endswith(".base"):
            raise UserMistake(
                f"{key}={value}: leave it out, and give {value} as a system: a run, a model or a"
                " team"
            )
        name = rest.partition(".")[0]
        if table == "hosts" and name not in host_names:
            raise UserMistake(
                f"{key}={value}: no agent of these systems is at a host {name!r}:"
                f" {nearest(name, host_names)}"
            )


def placed(plan: EvaluationPlan) -> EvaluationPlan:
    """The plan with all that it names found from anywhere: a run at the step that it has now, which
    training on does not change, and the teams that config files describe now.
    """
    places: dict[str, str] = {}
    for system in plan.systems:
        names = system.split(",")
        if "" in names:
            raise UserMistake(f"{system!r}: nothing stands beside one of its commas")
        places |= {name: fixed_place(name) for name in names}
        if twice := _twice([independent(places[name]) for name in names]):
            raise UserMistake(
                f"{twice} stands twice in {system}: several runs of a system have to be"
                " different ones, and two checkpoints of one run are one"
            )
    if twice := _twice([places[run] for _, run in plan.runs()]):
        raise UserMistake(f"{twice} is named twice: what is compared has to differ")
    plugins = [parts_of(name)[0] for name in (*plan.setups, *plan.tasks)]
    return replace(
        plan,
        places=places,
        teams={
            name: table_of(place, plan.settings)
            for name, place in places.items()
            if place.endswith(".toml") and Path(place).is_file()
        },
        settings={key: from_here(key, value) for key, value in plan.settings.items()},
        data=str(Path(plan.data).resolve()) if plan.data else None,
        files={name: str(Path(name).resolve()) for name in plugins if names_file(name)},
    )


def _twice(names: Sequence[str]) -> str | None:
    """The first name that stands twice among these."""
    return next((name for name in names if names.count(name) > 1), None)
