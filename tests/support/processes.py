"""Processes of this machine, as Linux lists them."""

from __future__ import annotations

import re
from pathlib import Path


def running(pattern: str) -> list[int]:
    """Numbers of the processes whose command line has this pattern."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if re.search(pattern, line):
            found.append(int(folder.name))
    return found
