"""Pieces of a run's folder, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comas.storage.run import Run
from comas.tasks import pick
from comas.types import Episode, Turn

CONFIG = {
    "method": "comas",
    "steps": 9,
    "out": None,
    "options": {"rounds": 2, "odd": None},
    "betas": (0.9, 0.95),
    "text": 'ü "x"\n',
    "hosts": {"home": {}},
}


Q = pick.make_question((1, 2, 4, 5), 7, "three")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(CONFIG, str(tmp_path / "r"))


def step(run: Run, number: int, text: str = "hi", **figures: Any) -> None:
    episode = Episode(
        f"{number}/q/0",
        Q,
        [Turn("t", "a", "h/a", "solution", "p", text, True, 0, reward=1.0)],
        text,
    )
    run.write_step({"step": number, "tokens": number, "text": text, **figures}, [episode])


def checkpoint(run: Run, number: int, best: int | None = None) -> None:
    folder = run.checkpoint() / "a0"
    folder.mkdir()
    (folder / "weights").write_text(str(number))
    run.commit(number, best)
