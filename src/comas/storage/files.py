"""Files that outlive the process: written whole or not at all, forced to the disk, and recognised
where they are damaged.

A folder is sealed by `manifest.json`, written last, with the size and SHA-256 of every other file
in it. Leaves out: what the files mean (`storage.run`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import filelock

from comas.types import UserMistake

MANIFEST = "manifest.json"
STEERING = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal or a reader obeys instead of showing them, and halves of characters,
which no file can hold as they are.
"""


def as_json(
    record: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """JSON that shows letters as they are, but escapes what steers a terminal, reverses a line or
    ends one for some readers.
    """
    text = json.dumps(record, ensure_ascii=False, indent=indent, default=default)
    return STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Name the file in an OSError of writing to it, which names none (a full disk, a limit)."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write(path: Path, text: str) -> None:
    """A new file, on the disk when this returns."""
    with naming(path):
        path.write_text(text, encoding="utf-8")
        sync(path)


def append(path: Path, text: str) -> None:
    """At the end of a file; on the disk for certain only after `sync`."""
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


def truncate(path: Path, size: int) -> None:
    """Drop what lies beyond `size` bytes; a file without such an end keeps its time."""
    if path.exists() and path.stat().st_size == size:
        return
    with path.open("a+b") as file:
        file.truncate(size)
    sync(path)


def replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never a half."""
    fresh = path.with_name(path.name + ".new")
    write(fresh, text)
    rename(fresh, path)


def rename(old: Path, new: Path) -> None:
    """Move in place, and have the folder know it when this returns."""
    os.replace(old, new)
    sync(new.parent)


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    # Windows flushes only what it may write
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_SYNC:
            raise
    finally:
        os.close(handle)


NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
"""Errors of disks that know no fsync of folders, such as shared ones of virtual machines."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of disks that have no locks, such as NFS without a lock daemon."""
LOCK = ".lock"
"""File in a folder by which one process at a time works on it."""


def lock(folder: Path, what: str) -> filelock.FileLock:
    """Keep other processes from working on this folder, a run say, until the lock is released, or
    until this process ends in whatever way.
    """
    held = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        held.acquire()
    except filelock.Timeout:
        raise UserMistake(
            f"{folder}: another process is working on this {what}; wait for it or stop it"
        ) from None
    except (OSError, NotImplementedError) as error:
        if not tells_no_locks(error):
            raise
        logging.getLogger("comas").warning(
            "%s: this disk has no locks; make sure that no other process works on it", folder
        )
    return held


def tells_no_locks(error: Exception) -> bool:
    """Whether an error of a lock says that the disk has none, which older filelocks tell apart."""
    return isinstance(error, NotImplementedError) or (
        isinstance(error, OSError) and error.errno in NO_LOCKS
    )


def digest(path: Path) -> str:
    """SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Force everything in `folder` to the disk, then write its manifest: `facts`, and all files
    with size and digest.
    """
    everything = sorted(folder.rglob("*"))
    share(everything)
    records = {
        path.relative_to(folder).as_posix(): _record(path) for path in everything if path.is_file()
    }
    for path in everything:
        sync(path)
    write(folder / MANIFEST, json.dumps({**facts, "files": records}, indent=1))
    sync(folder)


def share(paths: Iterable[Path]) -> None:
    """Give files and folders the rights that the umask leaves: some libraries write weights for
    their owner alone.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    for path in paths:
        with suppress(OSError):  # a disk without rights
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def _record(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": digest(file)}


def parsed(text: str | bytes) -> Any:
    """The value that JSON writes; a ValueError where it is none, also of nesting without end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error


def object_in(text: str | bytes) -> dict[str, Any]:
    """The object that JSON writes; a ValueError where it is none."""
    value = parsed(text)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return cast("dict[str, Any]", value)


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON file that was written whole, or None."""
    try:
        return object_in(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserMistake(f"{path} is damaged: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a ValueError where it is none, also of nesting without end."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from error


def facts(folder: Path) -> dict[str, Any] | None:
    """The manifest of a sealed folder; None where there is none that can be read."""
    try:
        table = object_in((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return table if isinstance(table.get("files"), dict) else None


def damage(folder: Path, without: str | None = None, unread: int = 0) -> str | None:
    """Say what is wrong with a sealed folder, in a few words; None if every file is as it was
    written.

    Files called `without` are not looked at; of files that were not written after the time `unread`
    (nanoseconds) the size alone is compared.
    """
    manifest = facts(folder)
    if manifest is None:
        return f"{folder.name} has no readable {MANIFEST}"
    for name, record in manifest["files"].items():
        path = folder / name
        file = f"{folder.name}/{name}"
        if path.name == without:
            continue
        if not path.is_file():
            return f"{file} is missing"
        file_stat = path.stat()
        if file_stat.st_size != record["bytes"]:
            return f"{file} has {file_stat.st_size} bytes instead of {record['bytes']}"
        if file_stat.st_mtime_ns > unread and digest(path) != record["sha256"]:
            return f"{file} is not what was written (SHA-256 differs)"
    return None
