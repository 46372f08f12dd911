"""Files that comas keeps of models beside the hub's cache: the folder for them, and the digests of
large files, whose reading takes seconds of every start.

Leaves out: copies of GGUF files (`gguf`), which trials a model has passed (`engines.hf.trial`).
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from comas.storage import files

LARGE = 16_000_000
"""Bytes from which on the digest of a file is kept."""


def cache(kind: str) -> Path:
    """Return the folder of one kind of what comas makes of models, beside the hub's cache, so that
    HF_HOME moves both.
    """
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "comas" / kind


def digest(file: Path) -> str:
    """SHA-256 of a file; of a large one it is read once, until its size or one of its times
    changes.
    """
    file_stat = file.stat()
    return _digest(
        str(file.resolve()), file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns
    )


@lru_cache
def _digest(path: str, size: int, written: int, changed: int) -> str:
    """The SHA-256 of a file of this size, with these times (nanoseconds)."""
    if size < LARGE:
        return files.digest(Path(path))
    record = cache("digests") / f"{hashlib.sha256(path.encode()).hexdigest()}.json"
    state = {"bytes": size, "written": written, "changed": changed}
    remembered = None
    with suppress(OSError, ValueError):
        remembered = json.loads(record.read_text(encoding="utf-8"))
    if (
        isinstance(remembered, dict)
        and state.items() <= remembered.items()
        and "sha256" in remembered
    ):
        return str(remembered["sha256"])
    sha256 = files.digest(Path(path))
    with suppress(OSError):  # a cache that cannot be written costs time, not the answer
        record.parent.mkdir(parents=True, exist_ok=True)
        files.replace(record, json.dumps({**state, "sha256": sha256}))
    return sha256
