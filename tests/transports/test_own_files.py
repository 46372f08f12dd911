"""Files of the user's own at a far end: what is written there, and run, nobody else can change."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from comas.team.elsewhere import SourceFile

TEXT = "x = 1\n"


def test_a_file_of_this_machine_is_used_from_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEXT)
    assert SourceFile.of(str(tmp_path / "mine.py")).here() == str(tmp_path / "mine.py")


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize("changed", [False, True], ids=["not there", "changed"])
def test_a_file_of_another_machine_is_written_where_nobody_else_can(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if changed:
        (tmp_path / "mine.py").write_text("y = 2\n")
    file = Path(SourceFile(str(tmp_path / "mine.py"), TEXT).here())
    assert file.parent.parent == tmp_path
    assert file.name == "mine.py"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.read_text() == TEXT
