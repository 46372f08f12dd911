"""Files and folders that a config names, and where they are looked for.

Leaves out: what lies there (`models.sources`, `config.resolve`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from comas.models.sources import run_at, seed_models


def anchor(data: dict[str, Any], folder: Path) -> None:
    """Have what a config file in `folder` names by a path from there be found from anywhere.

    Bases, method, task and data that lie beside the file are meant before those that the same words
    name from where the command runs; hub names and what is not there are left as they are.
    """
    if folder.resolve() != Path.cwd():
        _anchor(data, folder)


def from_here(key: str, value: Any) -> Any:
    """The value of a dotted key, with the files and folders that it names from here found from
    anywhere.
    """
    data: dict[str, Any] = {}
    table = data
    *path, last = key.split(".")
    for part in path:
        table = table.setdefault(part, {})
    table[last] = list(value) if isinstance(value, list) else value
    _anchor(data, Path.cwd())
    return table[last]


def _anchor(data: dict[str, Any], folder: Path) -> None:
    hosts = _tables(data, "hosts")
    elsewhere = {name for name, host in hosts.items() if _is_elsewhere(host)}
    agents = _tables(data, "agents").values()
    with_bases = [host for name, host in hosts.items() if name not in elsewhere]
    with_bases += [agent for agent in agents if agent.get("host", "home") not in elsewhere]
    for table in with_bases:
        base = table.get("base")
        if isinstance(base, str) and base not in seed_models():
            table["base"] = beside(base, folder)
    for host in hosts.values():
        _anchor_files(host, ("engine", "kind", "where"), folder)
    _anchor_files(data, ("method", "task"), folder)
    if isinstance(questions := data.get("data"), str):
        data["data"] = beside(questions, folder)
    for options in _tables(data, "tool_options").values():
        if isinstance(texts := options.get("folder"), str):
            options["folder"] = beside(texts, folder)
    for key in ("metrics", "monitors", "tools", "track"):
        listed = data.get(key)
        if isinstance(listed, list):
            names = cast("list[Any]", listed)
            data[key] = [beside(n, folder) if _is_file(n) else n for n in names]


def _tables(data: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The tables below a key, by name; what is none is left out, and told when it is checked."""
    below = data.get(key)
    if not isinstance(below, dict):
        return {}
    named = cast("dict[str, Any]", below)
    return {name: table for name, table in named.items() if isinstance(table, dict)}


def _is_elsewhere(host: Mapping[str, Any]) -> bool:
    """Whether a base is a name only there."""
    return "api" in host or host.get("kind", "local") != "local"


def _is_file(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(".py")


def _anchor_files(table: dict[str, Any], keys: Sequence[str], folder: Path) -> None:
    """Anchor those of these keys that name a file of the user's own."""
    for key in keys:
        if _is_file(table.get(key)):
            table[key] = beside(table[key], folder)


def beside(name: str, folder: Path) -> str:
    """Where a path from `folder` leads, as an absolute one; as it is where nothing lies there."""
    there = str((folder / name).resolve())
    if name and (Path(there).exists() or run_at(there) is not None):
        return there
    lost = name.startswith(("./", "../")) and not Path(name).exists() and run_at(name) is None
    # what is said of a path that leads nowhere names the place that was looked at
    return there if lost else name
