"""Held-out exercises for tiny models, and how a model is asked to do them.

Work to judge is half right, half spread over the fault classes; puzzles to judge can be solved half
of the time; work to spoil is right. Everything is sampled at temperature 1. Leaves out: what the
replies are worth (`measure`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from comas.game.agent import Agent, TeamMember
from comas.game.play import GameContext, play_all
from comas.tasks import pick
from comas.types import Method, Question, Task, Turn
from tools.tiny.posing import unreachable, write_puzzle
from tools.tiny.work import FAULTS, faulty, is_right, write_try


def work_to_judge(form: str, count: int) -> list[Question]:
    """Held-out puzzles with a piece of work in `meta`: half right, half faulty in turn."""
    exercises = []
    puzzles = pick.load("test", form=form, limit=count, seed=7)
    for i, q in enumerate(puzzles):
        rng = random.Random(q.id)
        if i % 2 == 0:
            fault = "none"
            chosen = [int(n) for n in (q.answer or "").split()]
            rng.shuffle(chosen)
        else:
            fault = FAULTS[(i // 2) % len(FAULTS)]
            chosen = faulty(rng, q, fault)
        text = write_try(rng, chosen, 0.0) if form == "two" else " ".join(map(str, chosen))
        facts = {"work": f"# {text}", "right": is_right(q, chosen), "fault": fault}
        exercises.append(Question(id=q.id, prompt=q.prompt, kind=q.kind, meta={**q.meta, **facts}))
    return exercises


def puzzles_to_judge(count: int) -> list[tuple[str, bool]]:
    """Puzzles of held-out numbers, each with whether it can be solved: every other one can."""
    puzzles = []
    for i, q in enumerate(pick.load("test", limit=count, seed=8)):
        numbers = q.meta["numbers"]
        target = q.meta["target"]
        solvable = i % 2 == 0
        if not solvable:
            rng = random.Random(q.id)
            target = unreachable(rng, numbers, near=target)
        puzzles.append((write_puzzle(numbers, target), solvable))
    return puzzles


def work_to_spoil(count: int) -> list[tuple[Question, str]]:
    """Held-out puzzles with right work of one try."""
    pairs = []
    for q in pick.load("test", limit=count, seed=9):
        chosen = [int(n) for n in (q.answer or "").split()]
        rng = random.Random(q.id)
        rng.shuffle(chosen)
        pairs.append((q, write_try(rng, chosen, 0.0)))
    return pairs


async def ask_all(
    member: TeamMember, role: str, prompts: Sequence[str], samples: int = 1, seed: int = 0
) -> list[list[Turn]]:
    """Ask a member every prompt `samples` times; per prompt its turns."""

    async def play(
        question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
    ) -> None:
        await agents[0].ask(role, question.prompt)

    asked = Method(play, nothing, nothing, nothing)
    questions = [Question(id=f"{role}-{i}", prompt=text) for i, text in enumerate(prompts)]
    episodes = await play_all(
        GameContext(asked, pick.task, [member], seed), questions, "card", samples
    )
    turns = [e.turns[0] for e in episodes]
    return [turns[i : i + samples] for i in range(0, len(turns), samples)]


async def ask_each(member: TeamMember, role: str, prompts: Sequence[str]) -> list[Turn]:
    """Ask a member every prompt once."""
    return [turns[0] for turns in await ask_all(member, role, prompts)]


def nothing(*_: Any) -> Any:
    """Nobody is paid and nobody learns."""
