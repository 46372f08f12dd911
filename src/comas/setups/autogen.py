"""The two-agent conversation of AutoGen (arXiv 2308.08155): an assistant answers, a user proxy
checks and asks on, until one of them declares the end.

The first agent that takes solutions is the assistant, the first other one that takes the role
`proxy` the proxy; where nobody else does, the assistant checks itself. A reply that ends with the
word TERMINATE, or the task's own word for it (`wording["end"]`), ends the conversation; so do
`turns` answers. The assistant's last answer counts. Leaves out: tools, code execution, group chats.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from typing import Any

from comas.game.agent import Agent, takers
from comas.game.prompts import SOLVING, defuse, solving, words
from comas.types import Count, Question, Role, Setup, Task, Turn

WORDING = {
    **SOLVING,
    "revision": "{question}\n\nYour answer so far:\n{own}\n\n{history}\nGive your answer again.",
    "remark": "A user said:\n{evaluation}\n",
    "proxy": (
        "{question}\n\nAn assistant answered:\n{work}\n\nCheck it step by step. If it holds, end"
        " your reply with the word TERMINATE; otherwise say what is wrong and what to do next."
    ),
    "end": "TERMINATE",
}
Ask = Coroutine[Any, Any, Turn]


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, turns: Count = 4
) -> str | None:
    """Answer with the assistant's last answer; None where it was cut."""
    assistant = takers(agents, "solution")[0]
    others = [a for a in agents if a is not assistant and a.takes("proxy")]
    proxy = others[0] if others else assistant
    answer = await talk(question, [assistant, *[proxy, assistant] * (turns - 1)], task)
    return answer.text if answer.finished else None


async def talk(
    question: Question, speakers: Sequence[Agent], task: Task, always: bool = False
) -> Turn:
    """Have it answered, checked, answered again and so on by these agents in turn: the last answer.
    Nobody can declare the end where it `always` goes on.
    """
    first, *others = speakers
    reply = answer = await solve(first, question, task)
    for at, speaker in enumerate(others, 1):
        if ends(reply, task) and not always:
            break
        if at % 2:
            reply = await check(speaker, question, answer, task)
        else:
            reply = answer = await revise(speaker, question, answer, reply, task, at // 2)
    return answer


def solve(agent: Agent, question: Question, task: Task) -> Ask:
    """Ask for a first answer."""
    return agent.ask("solution", solving(question, task, WORDING))


def check(agent: Agent, question: Question, answer: Turn, task: Task) -> Ask:
    """Ask for a check of an answer."""
    work = defuse(task.shown(question, answer.text))
    shown = words(WORDING, task, "proxy", question=defuse(question.prompt), work=work)
    return agent.ask("proxy", shown, about=answer)


def revise(agent: Agent, question: Question, answer: Turn, reply: Turn, task: Task, at: int) -> Ask:
    """Ask for an answer again, after what was replied to it; in round `at`."""
    work = defuse(task.shown(question, answer.text))
    facts = {"question": question.prompt, "own": work}
    remark = words(WORDING, task, "remark", work=work, evaluation=defuse(reply.text))

    def prompt(history: Sequence[str]) -> str:
        return words(WORDING, task, "revision", history="\n".join(history), **facts)

    return agent.ask("revision", prompt, history=[remark], about=answer, round=at)


def ends(turn: Turn, task: Task) -> bool:
    """Whether its last word declares the end; case and punctuation do not matter."""
    if not turn.finished or not turn.text.split():
        return False
    last_word = turn.text.split()[-1].strip(".!*'\"`()")
    end = words(WORDING, task, "end")
    return last_word.casefold() == end.casefold()


setup = Setup(play, roles={"solution": Role("answer"), "revision": Role("answer"), "proxy": Role()})
