"""Meaning of the name of something to be asked: a run at a step, a team's file, a base model.

Leaves out: building it (`team.build`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.plan import Plan, plan
from comas.config.plugins import load_plugin, names_file
from comas.config.schema import ONLY_ADAPTERS, Config, hosts_named_in, read, settings_of
from comas.models.gguf import is_gguf
from comas.models.sources import (
    TEAM,
    exported,
    is_packaged,
    is_place,
    is_shipped,
    meant,
    run_at,
    team_file,
)
from comas.program import command
from comas.storage import files
from comas.storage.run import Run
from comas.types import Task, UserMistake

Overrides = Sequence[str] | Mapping[str, Any]
"""`key=value` pairs, or dotted key -> value."""
UNTRAINED = 1e-6
"""A learning rate: a base without a recipe can be asked as well."""


def found_at(path: str | Path, step: int | None = None, overrides: Overrides = ()) -> Plan:
    """Plan what `load` loads; of a run from its checkpoint."""
    if isinstance(overrides, str):
        raise UserMistake(f"overrides={overrides!r}: a list of pairs is wanted: [{overrides!r}]")
    path = os.path.expanduser(path)
    if (file := team_file(path)) is not None:
        if step is not None:
            raise UserMistake(
                f"{path} is a team, not a run: it has no checkpoint of step {step} or any other;"
                " leave step out"
            )
        return plan(_untrained(file, overrides), learn=False)
    run, named = opened(path)
    step = named if step is None else step
    return _plan_of_run(run, overrides, run.intact(step))


def opened(name: str | Path) -> tuple[Run, int | None]:
    """The run that `RUN`, `RUN@40` or `RUN@best` names, and the step; None is the last."""
    return run_at(str(name)) or (Run.open(name), None)


def is_run(name: str) -> bool:
    """Whether this names a run, at whatever step."""
    return run_at(name) is not None


def is_model(name: str) -> bool:
    """Whether this can only be a model: one that is shipped or packaged, or a GGUF file."""
    return is_gguf(name) or is_packaged(name) or is_shipped(name)


def hosts_of(name: str) -> set[str] | None:
    """Names of the hosts of a run; None where it is no run."""
    run_and_step = run_at(name)
    return run_and_step and set(run_and_step[0].config()["hosts"])


def fixed_place(name: str) -> str:
    """Make the name of a system absolute; a run gets the step that it has now, which training on
    does not change.
    """
    if (run_and_step := run_at(name)) is not None:
        run, step = run_and_step
        return f"{run.path.resolve()}@{run.intact(step).name.removeprefix('step-')}"
    if (file := team_file(name)) is not None:
        return str(file.resolve())
    if Path(name).is_dir() or (is_gguf(name) and Path(name).is_file()):
        return str(Path(name).resolve())
    if name.endswith(".toml"):
        raise UserMistake(f"{name}: there is no such file here")
    folder = Path(name).parent
    inside = folder != Path() and folder.is_dir()
    if not is_shipped(name) and (is_place(name) or inside):
        raise UserMistake(f"{name}: there is no such run or folder here{meant(name)}")
    return name


def independent(location: str) -> str:
    """Name what counts as one among several runs of a system: a run's folder, whatever its
    checkpoint.
    """
    run_and_step = run_at(location)
    return str(run_and_step[0].path) if run_and_step is not None else location


def training_of(name: str) -> tuple[Config, Task, list[str]] | None:
    """Find the config by which a run or an export was trained, its task, and its bases; None for
    what was not trained here.
    """
    if (run_and_step := run_at(name)) is not None:
        training = plan(read(run_and_step[0].path / "config.toml"))
        return training.config, training.task, training.base_names()
    if (folder := exported(name)) is None:
        return None
    if earlier := (files.facts(folder) or {})["earlier"]:
        raise UserMistake(
            f"{folder}: its run started from {', '.join(earlier)}, whose questions are not known"
            " here"
        )
    file = folder / TEAM
    config = read(file, shared=False)  # nobody is asked
    # weights in it are data: where they were named, code beside them is not run
    if names_file(config.task) and Path(name).resolve() not in (folder, file):
        raise UserMistake(
            f"{file}: its task is code, which weights in its folder do not run: its questions are"
            " not known here"
        )
    return config, load_plugin("task", config.task), []


def _plan_of_run(run: Run, overrides: Overrides, checkpoint: Path | None) -> Plan:
    if "method" in settings_of(overrides):
        raise UserMistake(
            f"{run.path}: method= is for training; to have a run play another game: {command()}"
            " eval --setups METHOD"
        )
    config = read(run.path / "config.toml", overrides)
    for host, table in run.config()["hosts"].items():
        if config.hosts[host].built_by == "api" and not table.get("api"):
            raise UserMistake(
                f"{run.path}: hosts.{host}.api would have others answer in the place of what was"
                " trained: leave it out"
            )
    return plan(config, learn=False, checkpoint=checkpoint)


def system_plan(
    name: str, overrides: Overrides = (), table: Mapping[str, Any] | None = None
) -> Plan:
    """Plan the team that a name on the command line means: a run (`RUN`, `RUN@best`, `RUN@40`), the
    team that `table` describes, or copies of one base, four unless `agents` says otherwise.
    """
    if table is not None:
        keys = copy.deepcopy(dict(table)) | settings_of(overrides)
        return plan(read(None, keys), learn=False)
    if run_and_step := run_at(name):
        run, step = run_and_step
        return _plan_of_run(run, overrides, run.intact(step))
    settings = settings_of(overrides)
    count = settings.pop("agents", 4)
    if not any(key.startswith("agents.") for key in settings):
        if type(count) is not int or count < 1:
            raise UserMistake(f"agents={count!r}: a number of copies, at least 1")
        settings["agents"] = {f"a{i}": {"policy": "a0"} for i in range(count)}
    rate = {} if "lr" in settings else {"lr": UNTRAINED}
    return plan(read(None, {"hosts.home.base": name, **rate, **settings}), learn=False)


def table_of(file: str, overrides: Overrides = ()) -> dict[str, Any]:
    """The team that a config file describes, untrained, for `system_plan`. Agents that start from
    the same base at the same host are copies of one model, which is not asked once for each.
    """
    # its own code is not run before it is trusted
    settings = of_hosts(settings_of(overrides), hosts_named_in(file))
    return with_copies(plan(_untrained(file, settings), learn=False)).model_dump()


def of_hosts(settings: Mapping[str, Any], hosts: Container[str]) -> dict[str, Any]:
    """Keep the settings of these hosts, and all that are of none."""
    return {
        key: value
        for key, value in settings.items()
        if not key.startswith("hosts.") or key.split(".")[1] in hosts
    }


def _untrained(file: str | Path, overrides: Overrides) -> Config:
    """Read the config of a team that is asked as it is; the file may be somebody else's."""
    config = read(file, overrides, shared=True)
    if config.lr:
        return config
    return read(file, {**settings_of(overrides), "lr": UNTRAINED}, shared=True)


def with_copies(plan: Plan) -> Config:
    """The config in which agents that start from the same base at the same host share a policy;
    the policies of a run differ, and one that earlier selves lag behind stays by itself.
    """
    agents = dict(plan.config.agents)
    followed = {agent.policy for agent in agents.values() if agent.lag is not None}
    first: dict[tuple[str, str], str] = {}
    for start in plan.policies:
        unshared = [name for name in start.agents if agents[name].policy is None]
        if start.source.kind == "run" or not unshared:
            continue
        if start.name in followed:
            policy = start.name
        else:
            policy = first.setdefault((start.host, start.source.name), unshared[0])
        # what of a policy is trained, and how fast, is the same for all who speak with it
        learner = agents[policy].model_dump(include={"lr", *ONLY_ADAPTERS})
        copied = {**learner, "policy": policy}
        agents |= {name: agents[name].model_copy(update=copied) for name in unshared}
    return plan.config.model_copy(update={"agents": agents})
