"""Verdicts of judges: a score in tags or a word that ends the reply, or none at all; or what the
judge expects the score to be, which is always there.

Leaves out: what a score pays (settlements).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from comas.game.agent import Agent
from comas.game.prompts import defuse, words
from comas.game.weighing import expected
from comas.types import Question, Task, Turn

Score = Literal["said", "expected"]
"""How a score is had: read off what the judge says, or the expected value over the marks by the
judge's probabilities of them (`Agent.weigh`).
"""
MARKS = (1, 2, 3)
"""The scale: fatally wrong, right with minor flaws, right."""
SCALE = "3: right; 2: right, with minor flaws; 1: fatally wrong. Answer with one digit."
_WORK = "Question:\n{question}\n\nA proposed solution:\n{work}\n\n"
_ASKED = "How good is the proposed solution? " + SCALE
MARKING = {
    "mark": "{mark}",
    "marking": _WORK + "Criticism of it:\n{evaluation}\n\n" + _ASKED,
    "marking_bare": _WORK + _ASKED,
    "judging_marked": _WORK + _ASKED,
}
"""What a judge is asked whose score is expected: the question, with criticism and without, and the
reply that gives a mark.
"""

JUDGING = (
    "Question:\n{question}\n\nA solution:\n{work}\n\nCheck it step by step, then end with"
    " <score>N</score>: 3 right, 2 right with minor flaws, 1 wrong."
)
"""The check is written before the score: judges that score at once are at chance on hidden work."""
_SCORE = re.compile(r"<\s*score\s*>\s*([1-9][0-9]?)\s*<\s*/\s*score\s*>\s*\Z")
_TAG = re.compile(r"<\s*/?\s*score\b", re.IGNORECASE)


def read_score(turn: Turn, top: int = 3) -> int | None:
    """Read 1 to `top` if the reply is finished and its one score element ends it, else None."""
    match = _SCORE.search(turn.text)
    if match is None or not turn.finished or len(_TAG.findall(turn.text)) != 2:
        return None
    score = int(match[1])
    return score if 1 <= score <= top else None


def share(turn: Turn, top: int = 3) -> float | None:
    """The same as a share of the scale, from 0 to 1."""
    score = read_score(turn, top)
    return None if score is None else (score - 1) / (top - 1)


async def mark(
    judge: Agent, role: str, prompt: str, task: Task, wording: Mapping[str, str], about: Turn
) -> Turn:
    """Have a judge weigh the three marks: `info["score"]` is the expected one, from 1 to 3,
    `info["belief"]` its share of the scale, and `info["mark"]` the one that the turn says.
    """
    choices = [words({**MARKING, **wording}, task, "mark", mark=str(each)) for each in MARKS]
    turn = await judge.weigh(role, prompt, choices, about=about)
    turn.info["score"] = expected(turn, MARKS)
    turn.info["belief"] = expected(turn, [(each - 1) / 2 for each in MARKS])
    turn.info["mark"] = MARKS[choices.index(turn.text)]
    return turn


def last_word(turn: Turn, sayings: Collection[str]) -> str | None:
    """The word that ends a finished reply, if it is one of these, else None."""
    said = turn.text.split() if turn.finished else []
    word = said[-1] if said else None
    return word if word in sayings else None


async def judge(
    judge: Agent,
    question: Question,
    work: Turn,
    task: Task,
    wording: Mapping[str, str],
    score: Score = "said",
) -> Turn:
    """Have an agent judge a piece of work in the role `judging`; `info["score"]` is its share of
    the scale, or None.
    """
    shown = defuse(task.shown(question, work.text))
    if score == "expected":
        facts = {"question": defuse(question.prompt), "work": shown}
        prompt = words({**MARKING, **wording}, task, "judging_marked", **facts)
        judging = await mark(judge, "judging", prompt, task, wording, work)
        judging.info["score"] = judging.info["belief"]
        return judging
    prompt = words(wording, task, "judging", question=defuse(question.prompt), work=shown)
    judging = await judge.ask("judging", prompt, about=work)
    judging.info["score"] = share(judging)
    return judging
