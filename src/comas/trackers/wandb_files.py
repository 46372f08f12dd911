"""The files that W&B writes where it is offline: which steps they hold.

A file is a log of records as LevelDB writes it: blocks of 32 KiB, in each of which a record, or a
part of one, stands behind 4 bytes of checksum, 2 of length and 1 of kind. Leaves out: writing them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAGIC = b":W&B"
OPENING = 7
"""Bytes before the first record."""
HEADER = struct.Struct("<IHB")
BLOCK = 2**15
NOTHING = 0
WHOLE = 1
END = 4
"""Kinds of parts: space that nobody wrote, a record in one part, the last part of several."""


def last_step(folder: Path) -> int | None:
    """The newest step in the files below a folder, -1 where there is none; None where one of them
    is of a format that is not known here.
    """
    newest = -1
    for path in sorted(folder.glob("**/*.wandb")):
        data = path.read_bytes()
        if data and not data.startswith(MAGIC):
            return None
        newest = max([newest, *(step for step, _ in history(data))])
    return newest


def history(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """The steps in the bytes of a file, each with its figures as JSON."""
    from wandb.proto.wandb_internal_pb2 import Record

    for part in _records(data):
        record: Any = Record.FromString(part)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield record.history.step.num, {i.key or i.nested_key[0]: i.value_json for i in items}


def _records(data: bytes) -> Iterator[bytes]:
    """Records that were written to their ends."""
    place = OPENING
    parts: list[bytes] = []
    while place + HEADER.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:  # the rest of a block that has no room for a header
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        if kind == NOTHING or place + length > len(data):
            return
        parts.append(data[place : place + length])
        place += length
        if kind in (WHOLE, END):
            yield b"".join(parts)
            parts = []
