"""Runs that learn nothing say so, with the cause and a remedy, and once: one run for each cause, of one
method whose options make it; and runs that learn say nothing.

Leaves out: each sign by hand (`test_learning_signal`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

import comas
from comas.config.policies import learning_in
from comas.hooks import Hook
from comas.storage.records import moved_in
from comas.types import UserMistake

METHOD = '''"""Every agent answers twice; an answer is rewarded by its length."""

from comas.game.prompts import solving
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method, Role


def nothing(logprobs_BT, batch):
    return 0.0 * logprobs_BT


async def play(question, agents, rng, task, *, asked: int = 2):
    for agent in agents[:asked]:
        for _ in range(2):
            await agent.ask("solution", solving(question, task))
    return None


def settle(episodes, task, *, grouped: str = "question", rewarded: str = "length"):
    for episode in episodes:
        for place, turn in enumerate(episode.turns):
            turn.group = {
                "question": episode.question.id,
                "reply": turn.id,
                "place": f"{episode.question.id}/{place % 2}",
            }[grouped]
            turn.reward = float(len(turn.text) % 5)
            if rewarded == "equal":
                turn.reward = 0.5
            if rewarded == "none" or (rewarded == "first" and place > 1):
                turn.reward = None


method = Method(play, settle, grpo, LOSS, roles={"solution": Role("answer", reward="length")})
'''
SMALL = {"steps": 4, "questions": 8, "test_questions": 0, "eval_every": 0, "seed": 1}
SIGNS = ("learns nothing", "learn from these rewards", "is rewarded, so", "cannot be read", "cut")


class Heard(Hook):
    """What a run says of learning."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        if any(sign in text for sign in SIGNS):
            self.notes.append(text)


def notes_of(folder: Path, loss: str = "clipped", **keys: object) -> list[str]:
    """What a run of the method says of learning."""
    method = folder / "lengths.py"
    method.write_text(METHOD.replace("LOSS", loss))
    heard = Heard()
    keys = {**SMALL, "agents": 2, "monitors": [], "method": str(method), **keys}
    comas.train(hooks=[heard], out=str(folder / "run"), **keys)  # type: ignore[arg-type]
    return heard.notes


CAUSES = {
    "groups of one": (
        {"options__grouped": "reply"},
        [
            "step 1: home/a0 learns nothing of its 16 rewarded replies: each group of solution has"
            " one reply, so that there is nothing to compare; set samples=4",
            "step 1: home/a1 learns nothing of its 16",
        ],
    ),
    "groups that are split by policy": (
        {"options__grouped": "place"},
        [
            "step 1: home/a0 learns nothing of its 16 rewarded replies: each group of solution has"
            " one reply of this policy, and replies of other policies are not compared",
            "step 1: home/a1 learns nothing of its 16",
        ],
    ),
    "few equal rewards": (
        {"options__rewarded": "equal", "questions": 2},
        [
            "step 3: home/a0 learns nothing of its 4 rewarded replies: in its last 3 steps all"
            " rewards that are compared are equal; what helps is judges",
            "step 3: home/a1 learns nothing of its 4",
        ],
    ),
    "equal rewards": (
        {"options__rewarded": "equal", "questions": 16},
        ["step 1: nobody can learn from these rewards: in every group all are equal; what helps"],
    ),
    "no reward": (
        {"options__rewarded": "none"},
        ["step 1: none of 32 replies as solution is rewarded, so that role learns nothing"],
    ),
    "a loss of zero": (
        {"loss": "nothing"},
        [
            "step 3: home/a0 learns nothing of its 16 rewarded replies: in its last 3 steps its"
            " rewards differ, and its gradient is 0: look at the method's credit and loss",
            "step 3: home/a1 learns nothing of its 16",
        ],
    ),
    "a policy that nobody asks": (
        {"options__asked": 1},
        [
            "step 3: home/a1 learns nothing: nobody asked it in 24 discussions of 3 steps; let its"
            " agents take more roles (agents.<name>.roles), or set agents.a1.frozen=true",
        ],
    ),
    "a policy whose replies are never rewarded": (
        {"options__rewarded": "first"},
        [
            "step 3: home/a1 learns nothing: none of its 48 replies in 3 steps was rewarded; give"
            " its agents roles that ",
        ],
    ),
    "replies that are cut": (
        {"room__solution": 2},
        ["step 1: 32 of 32 replies as solution are cut, such as"],
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_run_that_learns_nothing_says_why_and_once(cause: str, tmp_path: Path) -> None:
    keys, told = CAUSES[cause]
    notes = notes_of(tmp_path, **keys)
    assert len(notes) == len(told), notes
    for note, beginning in zip(notes, told, strict=True):
        assert note.startswith(beginning)


def test_a_run_that_learns_says_nothing(tmp_path: Path) -> None:
    assert notes_of(tmp_path) == []


def test_the_default_run_says_nothing(tmp_path: Path) -> None:
    heard = Heard()
    comas.train(hooks=[heard], out=str(tmp_path / "run"), **SMALL)
    assert heard.notes == []


def test_a_team_that_is_frozen_as_a_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="frozen"):
        notes_of(tmp_path, agents__a0__frozen=True, agents__a1__frozen=True)


def test_a_policy_that_nobody_asked_moved_in_no_step() -> None:
    steps = [{"policies": {"home/a0": {"grad_norm": norm}}} for norm in (0.1, 0.0, 0.2)]
    agents = {"a0": {"host": "home"}, "a1": {"host": "home"}, "judge": {"frozen": True}}
    assert moved_in(steps, learning_in(agents)) == {"home/a0": 2, "home/a1": 0}
