"""Games that remember, outside a run: played by a team, and as a way of answering."""

from __future__ import annotations

import pytest

import comas


@pytest.mark.parametrize("name", ["r_zero", "mae", "eva", "knowrl"])
def test_a_team_discusses_with_the_record_of_before_the_first_step(name: str) -> None:
    with_seeds = comas.team_of(method=name)
    try:
        episode = with_seeds.discuss("10 5 6 9 -> 24", seed=1)
    finally:
        with_seeds.close()
    assert episode.error is None
    assert episode.turns
