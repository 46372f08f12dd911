"""Games that remember, outside a run: played by a team, and as a way of answering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import comas
from comas.config.plugins import load_plugin
from comas.game import memory
from comas.tasks import pick
from comas.testing import golden_script, scripted_context
from comas.types import Memory, Question


@pytest.mark.parametrize("name", ["r_zero", "mae", "eva", "knowrl"])
def test_a_team_discusses_with_the_record_of_before_the_first_step(name: str) -> None:
    with_seeds = comas.team_of(method=name)
    try:
        episode = with_seeds.discuss("10 5 6 9 -> 24", seed=1)
    finally:
        with_seeds.close()
    assert episode.error is None
    assert episode.turns


def test_what_a_method_draws_follows_from_the_seed_and_the_step() -> None:
    def choose(state: Any, questions: Any, count: int, rng: Any, task: Any) -> list[Question]:
        return [rng.choice(questions)]

    method = replace(load_plugin("method", "comas"), memory=Memory(draw=choose))
    questions = [Question(id=f"q{i}", prompt="?") for i in range(50)]

    def drawn(seed: int) -> list[str]:
        context, _ = scripted_context(method, pick.task, golden_script, seed=seed)
        return [memory.draw(context, questions, 1, step)[0].id for step in range(5)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len(set(drawn(0))) > 1
