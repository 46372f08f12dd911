"""Parts that games of search share: questions that a proposer makes of what it found, pages that a
reader sees, solvers with tools, whether an answer is the wanted one.

Leaves out: what anybody is rewarded for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from comas.game.agent import Agent, together
from comas.game.dialogue import called, converse
from comas.game.prompts import Quoted, defuse, words
from comas.game.votes import given
from comas.methods.shared.posing import posed_by, solving_prompt
from comas.types import Question, Task, Turn, UserMistake

WORDING = {
    "reading": "Documents:\n{documents}\n\nFrom these alone, answer:\n{question}",
    "document": "{document}\n",
}


def posed_at_end(replies: Sequence[Turn], task: Task) -> Question | None:
    """The question that the last reply of a dialogue poses; None where it poses none, or still
    calls a tool.
    """
    last = replies[-1]
    if "unanswered" in last.info or "unread" in last.info:
        last.info["posed"] = None
        return None
    return posed_by(last, task)


def pages_of(replies: Sequence[Turn]) -> list[Quoted]:
    """Collect what came back in a dialogue, each text once; failed calls brought none."""
    backs = dict.fromkeys(call["back"] for call in called(replies) if call["failed"] is None)
    return [Quoted(back) for back in backs]  # cleaned when it came back


def some_pages(task: Task, seeds: Sequence[str]) -> list[Quoted]:
    """A page for each seed that nobody asked for, from the first tool that has any."""
    sources = [tool.some for tool in task.tools.values() if tool.some is not None]
    if seeds and not sources:
        raise UserMistake(
            f"task {task.name}: none of its tools ({', '.join(task.tools) or 'it has none'}) has"
            " pages that nobody asked for: set options.noise=0, or take a task or tool with `some`"
        )
    return [defuse(sources[0](seed)) for seed in seeds]


def listed(pages: Sequence[str], task: Task) -> str:
    """Pages as a reader sees them."""
    return "\n".join(words(WORDING, task, "document", document=page) for page in pages)


def read(
    question: Question, documents: str, reader: Agent, task: Task, about: Turn
) -> Coroutine[Any, Any, Turn]:
    """Have a question answered from documents alone, such as `listed` pages."""
    facts = {"documents": documents, "question": defuse(question.prompt)}
    prompt = words(WORDING, task, "reading", **facts)
    return reader.ask("reading", prompt, about=about)


async def solve_with_tools(
    question: Question, solvers: Sequence[Agent], task: Task, turns: int, about: Turn | None
) -> list[Turn]:
    """Have a question that an agent posed solved side by side, each in a dialogue of up to `turns`
    replies; the last reply of each.
    """
    prompt = solving_prompt(question, task)
    dialogues = await together(
        converse(solver, "solution", prompt, task, turns=turns, about=about) for solver in solvers
    )
    return [replies[-1] for replies in dialogues]


def gives(question: Question, turn: Turn, answer: str, task: Task) -> bool:
    """Whether a reply gives this answer; `info["answer"]` is what it gives."""
    own_answer = given(question, turn, task)
    turn.info["answer"] = own_answer
    return own_answer is not None and task.same(own_answer, answer)
