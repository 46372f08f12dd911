"""Digests of large files are read once, and never kept of what was changed since."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from comas.models import kept
from comas.storage import files


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose digest is kept, in a cache of one test."""
    monkeypatch.setattr(kept, "cache", lambda kind: tmp_path / "cache" / kind)
    monkeypatch.setattr(kept, "LARGE", 4)
    file = tmp_path / "weights"
    file.write_bytes(b"numbers")
    return file


def in_another_process(file: Path) -> str:
    kept._digest.cache_clear()
    return kept.digest(file)


def test_a_large_file_is_read_once(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = hashlib.sha256(b"numbers").hexdigest()
    assert kept.digest(large) == right

    def read(_: Path) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(files, "digest", read)
    assert in_another_process(large) == right


def test_a_file_of_the_same_size_and_date_is_read_again(large: Path) -> None:
    kept.digest(large)
    date = large.stat().st_mtime_ns
    large.write_bytes(b"letters")
    os.utime(large, ns=(date, date))
    assert in_another_process(large) == hashlib.sha256(b"letters").hexdigest()


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"bytes": 7}'])
def test_a_record_that_says_nothing_is_written_anew(large: Path, record: str) -> None:
    right = kept.digest(large)
    (place,) = (large.parent / "cache" / "digests").iterdir()
    place.write_text(record)
    assert in_another_process(large) == right
    assert right in place.read_text()


def test_a_record_without_its_digest_is_written_anew(large: Path) -> None:
    right = kept.digest(large)
    (place,) = (large.parent / "cache" / "digests").iterdir()
    record = json.loads(place.read_text())
    del record["sha256"]
    place.write_text(json.dumps(record))
    assert in_another_process(large) == right


def test_a_cache_that_cannot_be_written_is_no_error(large: Path) -> None:
    (large.parent / "cache").write_text("a file, where a folder should be")
    assert kept.digest(large) == hashlib.sha256(b"numbers").hexdigest()
