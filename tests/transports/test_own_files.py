"""Files of the user's own at a far end: what is written there, and run, nobody else can change."""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path

import pytest

from comas.config.plugins import import_file
from comas.team.elsewhere import SourceFile

TEXT = "x = 1\n"


def test_a_file_of_this_machine_is_used_from_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEXT)
    with SourceFile.of(str(tmp_path / "mine.py")).here() as place:
        assert place == str(tmp_path / "mine.py")
    assert (tmp_path / "mine.py").exists()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize("changed", [False, True], ids=["not there", "changed"])
def test_a_file_of_another_machine_is_written_where_nobody_else_can(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if changed:
        (tmp_path / "mine.py").write_text("y = 2\n")
    with SourceFile(str(tmp_path / "mine.py"), TEXT).here() as place:
        file = Path(place)
        assert file.parent.parent == tmp_path
        assert file.name == "mine.py"
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert file.read_text() == TEXT


def test_a_file_of_another_machine_leaves_no_folder_and_keeps_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = "def broken():\n    return 1 / 0  # here\n"
    with SourceFile(str(tmp_path / "mine.py"), text).here() as place:
        module = import_file(place, "method")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError) as caught:
        module.broken()
    assert "# here" in "".join(traceback.format_exception(caught.value))
