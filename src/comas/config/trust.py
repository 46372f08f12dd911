"""What a team's file from elsewhere may not ask for by itself: discussions or a secret to be sent,
foreign code, programs without walls.

Such a file says where requests go and which environment variable goes with them, so a stranger's
`team.toml` could have any variable posted to any address. Leaves out: a method or task that is a
file, which runs when a team is loaded (docs/export.md).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from comas.models.sources import TEAM
from comas.types import UserMistake

HERE = ("localhost", "127.0.0.1", "::1")
"""Names of this machine."""


def is_shared(path: str | Path) -> bool:
    """Whether this is what people share, rather than a config of one's own: a folder, or a file
    called `team.toml`.
    """
    return Path(path).is_dir() or Path(path).name == TEAM


def check_trust(data: Mapping[str, Any], path: str | Path, asked_for: Sequence[str]) -> None:
    """An error that names what the file at `path` wants and nobody asked for; `asked_for` are the
    keys of the command line.
    """
    for key, value, why in _wishes(data):
        parts = key.split(".")
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        if not prefixes & set(asked_for):
            raise UserMistake(
                f"{path}: {key} = {value} {why}; if you want that, say so on the command line:"
                f" {key}={value}"
            )


def _is_here(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return urlsplit(address).hostname in HERE
    except ValueError:  # which is told where the config is read
        return True


def _wishes(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, value and meaning of everything in a config that needs its reader's consent."""
    hosts: Any = data.get("hosts")
    for name, table in cast(
        "Mapping[str, Any]", hosts if isinstance(hosts, Mapping) else {}
    ).items():
        host = cast("Mapping[str, Any]", table if isinstance(table, Mapping) else {})
        if (variable := host.get("key_env")) is not None:
            place = host.get("api", "an address of its choice")
            yield (
                f"hosts.{name}.key_env",
                variable,
                f"would send what that environment variable holds to {place}",
            )
        elif isinstance(address := host.get("api"), str) and not _is_here(address):
            yield f"hosts.{name}.api", address, "would send every discussion there"
        for key in ("kind", "engine", "where"):
            place = host.get(key)
            if isinstance(place, str) and place.endswith(".py"):
                yield f"hosts.{name}.{key}", place, "would run the code in that file"
        if (address := host.get("address")) is not None:
            yield f"hosts.{name}.address", address, "would send every discussion there"
        # 1 and "yes" are read as true as well
        if host.get("trust_remote_code", False) is not False:
            yield (
                f"hosts.{name}.trust_remote_code",
                "true",
                f"would run code that comes with {host.get('base', 'its base')}",
            )
    for key in ("track", "monitors", "tools", "metrics"):
        names = cast("list[Any]", data[key] if isinstance(data.get(key), list) else [])
        if any(isinstance(name, str) and name.endswith(".py") for name in names):
            yield key, shlex.quote(json.dumps(names)), "would run the code in that file"
    if data.get("sandbox", "auto") != "auto":
        yield "sandbox", "none", "would run programs that models write without walls"
