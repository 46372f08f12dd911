"""A run that begins with itself, which only a hand in its config can bring about, is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from comas.models.sources import source_of
from comas.types import UserMistake


def test_a_run_that_begins_with_itself_is_one_line(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(
            f'method = "comas"\nsteps = 1\n[hosts.home]\nbase = "{tmp_path / other}"\n[agents.a0]\nhost = "home"\n'
        )
    with pytest.raises(UserMistake, match="with itself"):
        source_of(str(tmp_path / "a"))
