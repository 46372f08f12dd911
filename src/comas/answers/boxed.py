r"""Answers that stand in the last `\boxed{...}` of a reply, and the wording that asks for them.

Leaves out: what is inside the box (`numbers`, `maths`, `choice`), and guessing an answer from
prose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from comas.questions.sources import DataSource, Record
from comas.types import Question, Task, Verdict

WORDING = {
    "solution": (
        "Solve this problem:\n{question}\n\n{history}\nReason step by step in your own words, and"
        " check each step. Put the final answer alone in \\boxed{}: a number, an expression, or the"
        " letter of a choice, as the problem asks."
    ),
    "history": (
        "Another student's attempt, which may be wrong:\n{work}\n\nA reviewer's remarks on"
        " it:\n{evaluation}\n"
    ),
    "history_bare": "Another student's attempt, which may be wrong:\n{work}\n",
    "remark": "A reviewer's remarks on it:\n{evaluation}\n",
    "revision": (
        "Solve this problem:\n{question}\n\nYour answer so far:\n{own}\n\n{history}\nUse what is"
        " right in what others wrote, and do not take it on trust. Reason step by step, and put"
        " the final answer alone in \\boxed{}."
    ),
    "evaluation": (
        "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nReview the attempt. Redo every"
        " step yourself, and name each error you find: a misread fact, a wrong operation, a wrong"
        " calculation, a missing step. Do not invent errors; if all of it holds, say so."
    ),
    "proxy": (
        "Problem:\n{question}\n\nAn assistant's answer:\n{work}\n\nCheck it step by step. If it"
        " holds, end your reply with the word TERMINATE; otherwise say what is wrong and what to do"
        " next."
    ),
    "scoring": (
        "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nA reviewer's remarks on"
        " it:\n{evaluation}\n\nDecide how good the attempt is, and do not take the remarks on"
        " trust.\n3: the final answer is right, and the remarks do not shake it.\n2: it is right"
        " but for small flaws.\n1: the final answer is wrong.\nGive a short reason, then end your"
        " reply with the grade: <score>3</score>, <score>2</score> or <score>1</score>."
    ),
    "scoring_bare": (
        "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nDecide how good the attempt"
        " is.\n3: the final answer is right.\n2: it is right but for small flaws.\n1: the final"
        " answer is wrong.\nGive a short reason, then end your reply with the grade:"
        " <score>3</score>, <score>2</score> or <score>1</score>."
    ),
}
"""For instruction-tuned models of any family."""

ROOM = {
    "solution": 1024,
    "revision": 1024,
    "evaluation": 512,
    "proxy": 512,
    "scoring": 256,
}
"""Tokens per reply, by role."""

RECIPE = {"lr": 1e-6, "betas": (0.9, 0.999), "weight_decay": 0.0, "grad_norm": 1.0}
"""CoMAS (arXiv 2510.08529), appendix on settings: full models of a few billion parameters."""

LONGEST = 1000
"""Characters of an answer that are read: what is longer is no final answer."""

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
"""How a box begins."""
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a character that is escaped."""


def benchmark(
    source: DataSource,
    make: Callable[[Record, str], Question],
    *,
    wording: Mapping[str, str] | None = None,
    **facts: Any,
) -> Task:
    """A task that reads `source`, whose rows `make(row, place)` turns into questions, asked with
    the wording and the tokens per reply of boxed answers; `facts` are further fields of `Task`.
    """
    facts.setdefault("load", source.loader(make))
    facts.setdefault("max_tokens", ROOM)
    return Task(name=source.task, wording={**WORDING, **(wording or {})}, **facts)


def compared(answer: str | None, right: str | None) -> Verdict:
    """Right if what was found is the reference; failed where there is none."""
    if right is None:
        return "failed"
    return "right" if answer == right else "wrong"


def last_box(text: str) -> str | None:
    r"""Return what stands in the last `\boxed{...}`; None where nothing is boxed, or the last box
    is empty, never closed or too long.
    """
    boxes = [box.end() for box in BOX.finditer(text)]
    inside = braced(text[boxes[-1] : boxes[-1] + LONGEST + 1]) if boxes else None
    return (inside or "").strip() or None


def answer_in(text: str, otherwise: re.Pattern[str]) -> str | None:
    """Return what stands in the last box; where nothing is boxed, the last match of a pattern."""
    if BOX.search(text):
        return last_box(text)
    matches = otherwise.findall(text)
    return matches[-1] if matches else None


def braced(text: str) -> str | None:
    """Return what stands before the brace that closes; None where none does.

    Escaped braces are characters.
    """
    depth = 1
    for sign in _BRACE.finditer(text):
        depth += (sign[0] == "{") - (sign[0] == "}")
        if depth == 0:
            return text[: sign.start()]
    return None
