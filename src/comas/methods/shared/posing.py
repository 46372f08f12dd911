"""Questions that agents pose: a proposal is written, or another question rewritten, read by the
task, and solved.

Until it is written a proposal is a question of the kind `propose`, whose prompt is the example that
its author sees ("" for none). Leaves out: which are accepted, and their rewards.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from comas.game.agent import Agent, choose, together
from comas.game.prompts import SOLVING, clean, defuse, words
from comas.types import Question, Task, Turn

WORDING = {
    "propose": (
        "{history}\nWrite one new, harder question that can be solved from its own text. Write only"
        " the question."
    ),
    "reference": "An accepted question:\n{question}",
    **SOLVING,
}


def unwritten(examples: Iterable[str]) -> list[Question]:
    """A proposal for each example, still to be written."""
    return [
        Question(id=f"proposal-{index}", prompt=example, kind="propose")
        for index, example in enumerate(examples)
    ]


async def written(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> tuple[Turn | None, Question | None]:
    """Have a question written where it is still to be: the proposal, and the question that it
    poses, None where it poses none. Any other question is there already, without a proposal.
    """
    if question.kind != "propose":
        return None, question
    example = defuse(question.prompt)
    history = words(WORDING, task, "reference", question=example) if example else ""
    author = choose(agents, rng, "propose")
    proposal = await author.ask("propose", words(WORDING, task, "propose", history=history))
    return proposal, posed_by(proposal, task)


async def rewritten(
    question: Question,
    author: Agent,
    role: str,
    task: Task,
    wording: Mapping[str, str],
    template: str | None = None,
) -> tuple[Turn, Question | None]:
    """Have a question rewritten: the turn, and the question that it poses, None where it poses
    none. `template` is the wording's name where that is not the role.
    """
    prompt = words(wording, task, template or role, question=defuse(question.prompt))
    turn = await author.ask(role, prompt)
    return turn, posed_by(turn, task)


def posed_by(turn: Turn, task: Task) -> Question | None:
    """The question that a reply poses; `info["posed"]` is its text, None where it poses none."""
    assert task.pose is not None, "Method.needs"
    posed = task.pose(turn.text) if turn.finished else None
    turn.info["posed"] = None if posed is None else posed.prompt
    return posed


def posed_again(prompts: Iterable[str], task: Task, own: Sequence[Question] = ()) -> list[Question]:
    """The questions that the texts of a pool pose; the task's `own` as they are, since what is read
    from a text need not have their form.
    """
    assert task.pose is not None, "Method.needs"
    by_prompt = {question.prompt: question for question in own}
    posed = [by_prompt.get(prompt) or task.pose(prompt) for prompt in prompts]
    return [question for question in posed if question is not None]


def with_newest(pool: Sequence[str], more: Iterable[str], most: int) -> list[str]:
    """A pool with more texts, each once; the oldest leave it where there are too many."""
    distinct = dict.fromkeys([*pool, *more])
    return list(distinct)[-most:]


def solve(
    question: Question, solver: Agent, task: Task, about: Turn | None
) -> Coroutine[Any, Any, Turn]:
    """Ask for one solution of a question that an agent posed."""
    return solver.ask("solution", solving_prompt(question, task), about=about)


def solving_prompt(question: Question, task: Task) -> str:
    """Write the prompt of who solves a question that an agent posed."""
    return words(WORDING, task, "solution", question=clean(question.prompt), history="")


async def proposed_and_solved(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, answers: int
) -> tuple[Question | None, list[Turn]]:
    """Have a question proposed where it is a proposal, then solved `answers` times side by side;
    no solutions where it poses none.
    """
    proposal, posed = await written(question, agents, rng, task)
    if posed is None:
        return None, []
    solvers = [choose(agents, rng, "solution") for _ in range(answers)]
    return posed, await together(solve(posed, solver, task, proposal) for solver in solvers)
