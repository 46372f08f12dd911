"""What a config has that is not as in the complete default, in lines.

Leaves out: what a key means (docs/config.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

from comas.config.resolve import resolve
from comas.config.schema import Config, read


def differences(config: Config) -> Iterator[str]:
    """`key = value` of what is not as in the complete default (docs/config.md)."""
    default = resolve(read(None)).config
    usual = _flat(default.model_dump())
    usual_host = _below(usual, "hosts.home.")
    usual_agent = _below(usual, "agents.a0.")
    for key, value in _flat(config.model_dump()).items():
        known = usual.get(key)
        if key.startswith("hosts."):
            known = usual_host.get(key.split(".", 2)[2])
        elif key.startswith("agents."):
            known = usual_agent.get(key.split(".", 2)[2])
        if value is not None and value != known:
            yield _toml_line(key, value)
    if config.agents.keys() != default.agents.keys():
        yield f"agents: {', '.join(config.agents)}"


def _below(table: Mapping[str, Any], above: str) -> dict[str, Any]:
    """The dotted keys below one, without it."""
    return {key.removeprefix(above): table[key] for key in table if key.startswith(above)}


def _toml_line(key: str, value: Any) -> str:
    # of numbers or texts: JSON is TOML there, and one line
    if isinstance(value, list | tuple):
        return f"{key} = {json.dumps(value)}"
    return tomli_w.dumps({"x": value}).replace("x", key, 1).strip()


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Dotted keys; an empty table has none."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found
