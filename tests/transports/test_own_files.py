"""Files of the user's own at a far end: what is written there, and run, nobody else can change."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest

from comas.team.shipping import SourceFile

TEXT = "x = 1\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this user's file of another machine would be put."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"comas-{DIGEST[:16]}"


def here() -> Path:
    return Path(SourceFile("/nowhere/mine.py", TEXT, DIGEST).here())


def test_a_file_of_another_machine_is_written_once_for_all_far_ends(elsewhere: Path) -> None:
    assert here() == here() == elsewhere / "mine.py"
    assert here().read_text() == TEXT
    assert elsewhere.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize("kind", ["open to all", "a link"])
def test_a_folder_that_others_can_write_to_is_not_taken(
    kind: str, elsewhere: Path, tmp_path: Path
) -> None:
    if kind == "a link":
        (tmp_path / "theirs").mkdir()
        elsewhere.symlink_to(tmp_path / "theirs")
    else:
        elsewhere.mkdir()
        elsewhere.chmod(0o777)
    file = here()
    assert file.parent not in (elsewhere, tmp_path / "theirs")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.read_text() == TEXT
