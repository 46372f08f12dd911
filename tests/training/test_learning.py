"""What a step of learning notes, and the learning rate over a run, by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from comas.methods.rlvr import method
from comas.testing import Scripted
from comas.training.learning import learn, lr_scale
from comas.types import Episode, Learned, Question, Turn, TurnReward


class Learns(Scripted):
    async def learn(
        self, rewards: Mapping[str, Sequence[TurnReward]], lr_scale: float = 1.0
    ) -> Learned:
        return Learned({}, {each.turn: (0.5, 0.1) for each in rewards["a0"]})


def test_mean_advantage_and_kl_are_noted_on_the_turns_that_were_learnt() -> None:
    turns = [
        Turn(f"t{n}", "a0", "home/a0", "solution", "?", "7", True, 0, reward=reward)
        for n, reward in enumerate([1.0, None])
    ]
    episode = Episode("0/q/0", Question(id="q", prompt="?"), turns)
    team: Any = SimpleNamespace(hosts={"home": Learns({})}, members=[], method=method)
    asyncio.run(learn(team, 1.0, 0, [episode]))
    assert [turn.info for turn in turns] == [{"advantage": 0.5, "kl": 0.1}, {}]


@pytest.mark.parametrize(
    ("schedule", "scales"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5]),
    ],
)
def test_a_rate_rises_and_then_falls_towards_the_step_after_the_last(
    schedule: str, scales: list[float]
) -> None:
    found = [lr_scale(schedule, warmup=2, steps=6, step=step) for step in range(6)]
    assert found == pytest.approx(scales)
