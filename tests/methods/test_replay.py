"""A step of a method that remembers is replayed with what it remembered then."""

from __future__ import annotations

from pathlib import Path

import pytest

import comas
from comas.storage.run import Run
from comas.testing import replay
from comas.types import UserMistake


def test_phases_are_replayed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    comas.train(
        method="r_zero",
        steps=2,
        questions=6,
        options__answers=3,
        options__proposing=1,
        options__least=1,
        options__low=0.0,
        options__high=1.0,
        test_questions=0,
        eval_every=0,
        max_tokens=48,
        threads=1,
        out=str(run),
    )
    again = [replay(run, step) for step in range(2)]
    roles = [{turn.role for episode in step for turn in episode.turns} for step in again]
    assert "propose" in roles[0]
    assert roles[1] == {"solution"}, "the second phase"
    for step, episodes in enumerate(again):
        recorded = [turn["reward"] for e in Run.open(run).episodes(step) for turn in e["turns"]]
        assert [turn.reward for e in episodes for turn in e.turns] == recorded
        assert any(reward is not None for reward in recorded)
    with pytest.raises(UserMistake, match="has no step 2: it has 2"):
        replay(run, 2)
    with pytest.raises(UserMistake, match="method ttrl needs 'answer', which the game"):
        replay(run, 0, method="ttrl")
