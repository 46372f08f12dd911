"""Parts of the file system that a Python needs to run, and no others: the system's libraries and
commands, its own interpreter, standard library and the libraries that these are linked with.

A Python may be installed anywhere, also with a home as its prefix, so that its prefix as a whole is
never shown. Leaves out: packages that are installed beside the standard library, which programs do
without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

SYSTEM = (
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
)
PACKAGES = ("site-packages", "dist-packages")
NO_DEV = 4
NO_EXEC = 8
NAMES = 200
"""Bytes at most of the name of a library."""


def python() -> str:
    """Find the interpreter behind a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@lru_cache
def system_folders() -> list[str]:
    """Folders, files and links that are shown, each once, those that lie within
    another left out.
    """
    folders = [path for path in SYSTEM if os.path.lexists(path)]
    for path in [python(), *_standard_library(), *map(str, _libraries())]:
        folders += _with_target(path)
    return [
        path
        for path in dict.fromkeys(folders)
        if not any(path.startswith(other + "/") for other in folders)
    ]


@lru_cache
def shown() -> list[tuple[str, str, Any]]:
    """Describe needed folders and files as steps that build the new root, parents first.

    A step is a `way` (a folder on the path to others), a `link` with its target, or a `folder` or
    `file` with the mount flags that are kept.
    """
    steps: dict[str, tuple[str, str, Any]] = {}
    flags = os.ST_NOSUID | NO_DEV | NO_EXEC
    for path in system_folders():
        for above in reversed(Path(path).parents[:-1]):
            steps.setdefault(str(above), (str(above), "way", 0))
        if os.path.islink(path):
            steps[path] = (path, "link", os.readlink(path))
        else:
            kind = "folder" if os.path.isdir(path) else "file"
            steps[path] = (path, kind, os.statvfs(path).f_flag & flags)
    return list(steps.values())


@lru_cache
def hidden_folders() -> list[str]:
    """Folders within what is shown that are empty inside."""
    beside = [Path(folder, name) for folder in _standard_library() for name in PACKAGES]
    return [str(path.resolve()) for path in beside if path.is_dir()]


def _standard_library() -> list[str]:
    """Folders and archives, as this Python finds them: real paths."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    folders = [os.path.dirname(os.__file__)]
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        libraries = Path(prefix, sys.platlibdir)
        folders += [str(libraries / version), str(libraries / archive)]
    return list(dict.fromkeys(os.path.realpath(path) for path in folders if os.path.exists(path)))


def _libraries() -> Iterator[Path]:
    """List the shared libraries below the prefix that the interpreter needs, directly or not."""
    prefixes = dict.fromkeys(os.path.realpath(p) for p in (sys.base_prefix, sys.base_exec_prefix))
    folders = [Path(p, name) for p in prefixes for name in dict.fromkeys(("lib", sys.platlibdir))]
    by_name = {path.name: path for folder in folders for path in folder.glob("*.so*")}
    unread = [Path(python())]
    for folder in _standard_library():
        unread += Path(folder, "lib-dynload").glob("*.so")
    while unread and by_name:
        for name in _so_names(unread.pop().read_bytes()):
            if path := by_name.pop(name, None):
                unread.append(path)
                yield path


def _so_names(binary: bytes) -> Iterator[str]:
    """Names of shared libraries in a binary: more than it is linked with, and none less."""
    at = binary.find(b".so")
    while at >= 0:
        start = binary.rfind(b"\0", max(0, at - NAMES), at) + 1
        end = binary.find(b"\0", at, at + NAMES)
        if start and end > 0:
            yield binary[start:end].decode("ascii", errors="replace")
        at = binary.find(b".so", at + 3)


def _with_target(path: str) -> list[str]:
    """A path, and where it is a link what it leads to, over all its steps."""
    chain = [path]
    while os.path.islink(chain[-1]) and len(chain) < 10:
        target = os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))
        chain.append(os.path.normpath(target))
    return chain
