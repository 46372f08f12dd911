"""Files of a checkpoint between machines that share no disk: which are missing there, and carrying
them in pieces.

Leaves out: who carries them (`hosts.remote`, `hosts.far_end`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PIECE = 32 * 2**20
"""Bytes of a file that travel at once."""


class Piece(NamedTuple):
    """A part of a file."""

    name: str
    """Of the file, below the folder."""
    start: int
    content: bytes


def records(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Name -> size and SHA-256 of these files of a folder, and of those in folders called so."""
    found: dict[str, tuple[int, str]] = {}
    for name in names:
        place = folder / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file():
                found[file.relative_to(folder).as_posix()] = _record(file)
    return found


def missing(folder: Path, files: Mapping[str, tuple[int, str]]) -> str | None:
    """The first of these files that is not in the folder as it should be; None where all are."""
    for name, (size, digest) in files.items():
        file = folder / name
        try:
            same = file.stat().st_size == size and _record(file)[1] == digest
        except OSError:
            return name
        if not same:
            return name
    return None


def pieces_of(folder: Path, name: str, number: int) -> Piece | None:
    """Piece `number` of a file, counted from 0; None behind the last. An empty file has one."""
    start = number * PIECE
    with (folder / name).open("rb") as file:
        file.seek(start)
        content = file.read(PIECE)
    return Piece(name, start, content) if content or number == 0 else None


def put(folder: Path, piece: Piece) -> None:
    """Write a piece to its place."""
    file = folder / piece.name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if piece.start else "wb") as opened:
        opened.seek(piece.start)
        opened.write(piece.content)


def _record(file: Path) -> tuple[int, str]:
    with file.open("rb") as opened:
        return file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest()
