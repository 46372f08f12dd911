"""Alarms of a run: `alarms.jsonl`, an object per alarm.

Leaves out: what alarms mean (`training.watching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.storage import files
from comas.storage.records import line, lines

LOG = "alarms.jsonl"


def append_alarms(run: Path, alarms: Sequence[Mapping[str, Any]]) -> None:
    """Write down the alarms of a step, on the disk when this returns; they are rare."""
    if alarms:
        files.append(run / LOG, "".join(line(alarm) for alarm in alarms))
        files.sync(run / LOG)


def read_alarms(run: Path) -> list[dict[str, Any]]:
    """The alarms of a run, in their order; none where there is no such file."""
    return list(lines(run / LOG)) if (run / LOG).is_file() else []


def drop_alarms(run: Path, after: int) -> None:
    """Remove those of steps after the first `after` ones."""
    if (run / LOG).is_file():
        earlier = [alarm for alarm in read_alarms(run) if alarm["step"] < after]
        files.replace(run / LOG, "".join(line(alarm) for alarm in earlier))
