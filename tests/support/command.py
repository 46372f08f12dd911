"""The command line as a test calls it."""

from __future__ import annotations

import sys

import pytest

from comas.cli import main


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["comas", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    return int(end.value.code or 0)
