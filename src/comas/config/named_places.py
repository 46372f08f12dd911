"""Files and folders that a config names, and where they are looked for.

Leaves out: what lies there (`models.sources`, `config.resolve`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from comas.models.sources import run_at, seed_models


def anchor(data: dict[str, Any], folder: Path) -> None:
    """Have what a config file in `folder` names by a path from there be found from anywhere.

    Bases, method, task and data that lie beside the file are meant before those that the same words
    name from where the command runs; hub names and what is not there are left as they are.
    """
    if folder.resolve() == Path.cwd():
        return
    hosts, agents = (
        cast("dict[str, Any]", t) if isinstance(t := data.get(k), dict) else {}
        for k in ("hosts", "agents")
    )
    # a base there is a name only
    away = {
        name
        for name, host in hosts.items()
        if isinstance(host, Mapping) and ("api" in host or host.get("kind", "local") != "local")
    }
    tables: list[Any] = [host for name, host in hosts.items() if name not in away]
    tables += list(agents.values())
    for table in tables:
        given = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
        if given.get("host", "home") in away:
            continue
        if isinstance(base := given.get("base"), str) and base not in seed_models():
            given["base"] = _beside(base, folder)
    for table in hosts.values():
        given = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
        for key in ("engine", "kind"):
            if isinstance(file := given.get(key), str) and file.endswith(".py"):
                given[key] = _beside(file, folder)
    metrics = data.get("metrics")
    if isinstance(metrics, list):
        data["metrics"] = [
            _beside(name, folder) if isinstance(name, str) and name.endswith(".py") else name
            for name in cast("list[Any]", metrics)
        ]
    for key in ("method", "task", "data"):
        if isinstance(name := data.get(key), str) and (key == "data" or name.endswith(".py")):
            data[key] = _beside(name, folder)


def _beside(name: str, folder: Path) -> str:
    there = str((folder / name).resolve())
    if name and (Path(there).exists() or run_at(there) is not None):
        return there
    lost = name.startswith(("./", "../")) and not Path(name).exists() and run_at(name) is None
    # what is said of a path that leads nowhere names the place that was looked at
    return there if lost else name
