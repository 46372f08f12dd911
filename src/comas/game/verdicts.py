"""Verdicts on work: what the task's rules say of it, and what a judge says in one word.

Leaves out: scores (`game.scores`), and what a verdict pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from comas.game.agent import Agent
from comas.game.prompts import defuse, words
from comas.game.scores import last_word
from comas.types import Question, Task, Turn

WORDING = {
    "solution": "{question}\n\nSolve it and end with the answer.",
    "evaluation": (
        "Question:\n{question}\n\nA solution:\n{work}\n\nCheck it step by step. End with one word:"
        " right or wrong."
    ),
}
SAYINGS = ("right", "wrong")


def ruled(question: Question, turn: Turn, task: Task) -> str | None:
    """What the rules say of a piece of work; None where it is unreadable."""
    assert task.check is not None, "Method.needs"
    if not turn.finished or task.extract(question, turn.text) is None:
        return None
    return task.check(question, turn.text)


def success(solutions: Sequence[Turn]) -> float | None:
    """The share of ruled solutions that are right, of those that the rules could judge; None where
    they could judge none: nothing is known then of how hard the question is.
    """
    judged = [turn for turn in solutions if turn.info["verdict"] != "failed"]
    if not judged:
        return None
    right = sum(turn.info["verdict"] == "right" for turn in judged)
    return right / len(judged)


async def evaluate(question: Question, work: Turn, critic: Agent, task: Task) -> Turn:
    """Have work judged; `info["said"]` is `right`, `wrong`, or None without a verdict."""
    shown = defuse(task.shown(question, work.text))
    prompt = words(WORDING, task, "evaluation", question=question.prompt, work=shown)
    turn = await critic.ask("evaluation", prompt, about=work)
    turn.info["said"] = last_word(turn, SAYINGS)
    return turn
