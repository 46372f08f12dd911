"""The tokens and rewards of recorded runs, and a recorded report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.golden_runs import FILE, beyond_rounding, play_apart


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    return play_apart()


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_golden_runs(played: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Regenerate with `python -m tests.support.golden` and read the difference."""
    assert beyond_rounding(played) == beyond_rounding(recorded)


def test_golden_runs_bit_by_bit(played: dict[str, Any], recorded: dict[str, Any]) -> None:
    """All turns and weights after learning, whatever newer instructions the processor has."""
    if played["made_by"] != recorded["made_by"]:
        pytest.skip(f"recorded by {recorded['made_by']}, played by {played['made_by']}")
    assert played == recorded


def test_most_of_the_first_step_is_compared_on_every_processor(recorded: dict[str, Any]) -> None:
    for name, questions in (("default", 128), ("adapters", 8)):
        discussions = {turn.split("/")[1] for turn in beyond_rounding(recorded)[name]}
        assert 0.9 * questions <= len(discussions) <= questions
