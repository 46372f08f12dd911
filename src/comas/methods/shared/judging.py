"""Judging work: by the task's rules, by a score in tags or a word that ends a judge's reply, or by
what the judge expects the score to be, which is always there.

Leaves out: what a verdict or a score is worth (settlements).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from comas.game.agent import Agent
from comas.game.judgements import SAYINGS
from comas.game.prompts import common_of, defuse, fill, template_of, words
from comas.game.votes import given
from comas.game.weighing import expected
from comas.types import Question, Task, Turn

Score = Literal["text", "expected", "p_true"]
"""How a score is had: read off what the judge says; or by the judge's probabilities of given words
(`Agent.weigh`), as the expected value over the three marks, or over yes and no.
"""
Weighed = Literal["expected", "p_true"]
MARKS: Mapping[Weighed, tuple[int, ...]] = {"expected": (1, 2, 3), "p_true": (1, 3)}
"""The scale as far as it is weighed: 1 is fatally wrong, 2 right with minor flaws, 3 right."""
_WORK = "Question: {question}\nProposed solution: {work}\n"
_CRITICISED = _WORK + "Criticism of it: {evaluation}\n"
_SCALE = (
    "How good is the proposed solution? 3: right; 2: right, with minor flaws; 1: fatally wrong."
    " Answer with one digit."
)
_CORRECT = "Is the proposed solution correct? Answer yes or no."
WEIGHING = {
    "expected": _CRITICISED + _SCALE,
    "expected_bare": _WORK + _SCALE,
    "judging_expected": _WORK + _SCALE,
    "mark": "{mark}",
    "p_true": _CRITICISED + _CORRECT,
    "p_true_bare": _WORK + _CORRECT,
    "judging_p_true": _WORK + _CORRECT,
    "yes": "Yes",
    "no": "No",
}
"""Prompts of a judge whose words are weighed: of work with criticism and without (`bare`), in the
role `judging`; and the words themselves.
"""

JUDGING = (
    "Question:\n{question}\n\nA solution:\n{work}\n\nCheck it step by step, then end with"
    " <score>N</score>: 3 right, 2 right with minor flaws, 1 wrong."
)
"""The check is written before the score: judges that score at once are at chance on hidden work."""
WORDING = {
    "evaluation": (
        "Question:\n{question}\n\nA solution:\n{work}\n\nCheck it step by step. End with one word:"
        " right or wrong."
    ),
}
"""For judges who say one word."""
_SCORE = re.compile(r"<\s*score\s*>\s*([123])\s*<\s*/\s*score\s*>\s*\Z")
_TAG = re.compile(r"<\s*/?\s*score\b", re.IGNORECASE)


def read_score(turn: Turn) -> int | None:
    """Read 1, 2 or 3 if the reply is finished and its one score element ends it, else None."""
    match = _SCORE.search(turn.text)
    if match is None or not turn.finished or len(_TAG.findall(turn.text)) != 2:
        return None
    return int(match[1])


def share(turn: Turn) -> float | None:
    """The score as a share of the scale, from 0 to 1."""
    score = read_score(turn)
    return None if score is None else (score - 1) / 2


async def weigh_score(
    judge: Agent,
    role: str,
    prompt: str,
    score: Weighed,
    task: Task,
    wording: Mapping[str, str],
    about: Turn,
    common: int = 0,
) -> Turn:
    """Have a judge weigh marks, or yes and no: `info["score"]` is the expected mark, from 1 to 3,
    `info["belief"]` its share of the scale, `info["marks"]` what the choices stand for, and
    `info["mark"]` the one that the turn says. `common` is that of `Ask`.
    """
    marks = MARKS[score]
    template = {**WEIGHING, **wording}
    if score == "expected":
        choices = [words(template, task, "mark", mark=str(mark)) for mark in marks]
    else:
        choices = [words(template, task, word) for word in ("no", "yes")]
    turn = await judge.weigh(role, prompt, choices, about=about, common=common)
    turn.info["score"] = expected(turn, marks)
    turn.info["belief"] = expected(turn, [(mark - 1) / 2 for mark in marks])
    turn.info["marks"] = list(marks)
    turn.info["mark"] = marks[choices.index(turn.text)]
    return turn


def last_word(turn: Turn, sayings: Collection[str]) -> str | None:
    """The word that ends a finished reply, if it is one of these, else None."""
    spoken = turn.text.split() if turn.finished else []
    word = spoken[-1] if spoken else None
    return word if word in sayings else None


async def judge(
    judge: Agent,
    question: Question,
    work: Turn,
    task: Task,
    wording: Mapping[str, str],
    score: Score = "text",
) -> Turn:
    """Have an agent judge a piece of work in the role `judging`; `info["score"]` is its share of
    the scale, or None.
    """
    shown = defuse(task.shown(question, work.text))
    facts = {"question": defuse(question.prompt), "work": shown}
    if score != "text":
        template = template_of({**WEIGHING, **wording}, task, f"judging_{score}")
        prompt = fill(template, facts)
        common = common_of(template, "work", facts)
        judging = await weigh_score(judge, "judging", prompt, score, task, wording, work, common)
        judging.info["score"] = judging.info["belief"]
        return judging
    prompt = words(wording, task, "judging", **facts)
    judging = await judge.ask("judging", prompt, about=work)
    judging.info["score"] = share(judging)
    return judging


def ruled(question: Question, turn: Turn, task: Task) -> str | None:
    """Ask what the rules say of a piece of work; None where it is unreadable."""
    assert task.check is not None, "Method.needs"
    return None if given(question, turn, task) is None else task.check(question, turn.text)


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
    """Have work judged; `info["verdict"]` is `right`, `wrong`, or None without a verdict."""
    shown = defuse(task.shown(question, work.text))
    prompt = words(WORDING, task, "evaluation", question=defuse(question.prompt), work=shown)
    turn = await critic.ask("evaluation", prompt, about=work)
    turn.info["verdict"] = last_word(turn, SAYINGS)
    return turn
