"""Measure models that vote: single answers, their own majority, and that of several models."""

from __future__ import annotations

from collections.abc import Sequence

from comas.game.agent import TeamMember
from comas.game.votes import majority
from comas.stats import Interval, accuracy_interval, pass_at
from comas.tasks import pick
from comas.types import Question, Turn
from tools.tiny.exercises import ask_all
from tools.tiny.posed_roles import Rows, share
from tools.tiny.wording import prompt_of

VOTES = 32
"""Answers of a model to each puzzle."""
TRIES = 16
"""k of pass@k."""
Answers = list[list[str | None]]
"""Per puzzle the canonical answers of one model."""


async def voting(members: Sequence[TeamMember], count: int) -> Rows:
    """The first member alone, then all of them together."""
    puzzles = pick.load("test", limit=count, seed=10)
    prompts = [prompt_of("solution", question=q.prompt, history="") for q in puzzles]
    every = []
    for i, member in enumerate(members):
        asked = await ask_all(member, "solution", prompts, VOTES, seed=i)
        every.append(_answers(puzzles, asked))
    own = every[0]
    counts = [sum(is_right(q, a) for a in answers) for q, answers in zip(puzzles, own, strict=True)]
    rows = {
        "single answers, T 1.0": accuracy_interval([c / VOTES for c in counts]),
        f"majority of {VOTES} of its own answers": _majorities(puzzles, [own]),
        f"pass@{TRIES}": accuracy_interval([pass_at(VOTES, c, TRIES) for c in counts]),
    }
    if len(members) > 1:
        each = VOTES // len(members)
        few = [[answers[:each] for answers in model] for model in every]
        together = f"majority of {len(members)} models together"
        rows[f"{together}, {each} answers each"] = _majorities(puzzles, few)
        rows[f"{together}, {VOTES} answers each"] = _majorities(puzzles, every)
    return rows


def is_right(question: Question, answer: str | None) -> bool:
    """Whether a canonical answer is right."""
    text = " + ".join((answer or "").split())
    return pick.check(question, text) == "right"


def _answers(puzzles: Sequence[Question], asked: Sequence[Sequence[Turn]]) -> Answers:
    answers = []
    for puzzle, turns in zip(puzzles, asked, strict=True):
        read = [pick.extract(puzzle, t.text) if t.finished else None for t in turns]
        answers.append(read)
    return answers


def _majorities(puzzles: Sequence[Question], models: Sequence[Answers]) -> Interval:
    """Share of puzzles of which the majority of all models' answers is right."""
    right = []
    for i, puzzle in enumerate(puzzles):
        answers = [answer for model in models for answer in model[i]]
        right.append(is_right(puzzle, majority(answers, pick.task)))
    return share(right)
