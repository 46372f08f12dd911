"""Teams to be asked, not trained: of a run, of a config, of copies of a base model.

Leaves out: what names mean (`config.systems`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comas.config.plan import Plan, plan
from comas.config.schema import read, settings_of
from comas.config.systems import Overrides, found_at, is_run, system_plan
from comas.memory import bounds, with_dtypes
from comas.models.sources import team_file
from comas.team.build import Note, Team, assemble, build_team
from comas.types import Host, Sampling


def load(
    path: str | Path,
    step: int | None = None,
    overrides: Overrides = (),
) -> Team:
    """The team of a run as it was at its last checkpoint (or after `step` steps), without
    optimizer; or of a `team.toml`.

    `path` may also name the step: `RUN@40`, `RUN@best` (on the validation split); or a config file,
    or a folder with `team.toml` such as `comas export` writes. `overrides` are `key=value` pairs,
    as on the command line.
    """
    return asked(found_at(path, step, overrides))


def asked(planned: Plan, hosts: Mapping[str, Host] | None = None) -> Team:
    """A team that will not be trained, with as many rows at once as memory allows; `hosts` are
    those that somebody has made already.
    """
    return build_team(bounds(planned), hosts=hosts)


async def greeted(planned: Plan, note: Note, sampling: Sampling | None = None) -> Team:
    """Build a team whose hosts behind an API have answered first, with the numbers in which large
    models are fastest on this processor, as training takes them. `sampling` is how all agents are
    going to be asked, where that is not as the config says.
    """
    return await assemble(bounds(with_dtypes(planned, note)), note, sampling=sampling)


def named(name: str, overrides: Overrides = (), of_a_base: Mapping[str, Any] | None = None) -> Plan:
    """Plan the team of a run or an export, of a config file, or of copies of a base model, which
    has settings of its own.
    """
    if is_run(name) or team_file(name) is not None:
        return found_at(name, overrides=overrides)
    if name.endswith(".toml"):
        return plan(read(name, overrides), learn=False)
    return system_plan(name, {**(of_a_base or {}), **settings_of(overrides)})


def system_team(name: str, overrides: Overrides = ()) -> Team:
    """The team of that name, ready to be asked."""
    return asked(named(name, overrides))


def team_of(config: str | Path | None = None, **overrides: Any) -> Team:
    """An untrained team from a config: `team_of(method="ttrl")`."""
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    path = os.path.expanduser(config) if config is not None else None
    return asked(plan(read(path, settings), learn=False))
