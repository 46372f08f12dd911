r"""Multiple choice: the letter in the last box, `\boxed{B}`, `\boxed{\text{(B)}}`, `\boxed{B. Daoism}`.

Leaves out: answers that name a choice by its text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from comas.answers.boxed import last_box
from comas.types import Question, Verdict

LETTERS = string.ascii_uppercase
_LATEX = re.compile(
    r"\\(?:text|math|bold|operatorname|underline)(?:bf|it|rm|sf|tt|symbol|name)?(?![a-z])\s*"
    r"|\\(?:bf|rm|left|right|quad|[,;:! ])|[{}$*~]"
)
_LETTER = re.compile(
    r"(?:(?:the )?(?:option|answer|choice)(?: is)?:? ?)?[(\[]? ?([A-Z])(?: ?[)\].:]+(?: (.*))?|)", re.DOTALL | re.IGNORECASE
)
_HEDGE = re.compile(r"(?<![A-Za-z'’])[B-H](?![A-Za-z'’])")
"""Another letter that stands alone; A is an article, and I a person."""


def asked(question: str, choices: Sequence[str]) -> str:
    """A question followed by its lettered choices."""
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([question.strip(), "", *lines, "", "The answer is the letter of one choice."])


def extract(question: Question, text: str) -> str | None:
    """The boxed letter; None where the last box holds something else. `a`, as an article, is no letter: capitals only."""
    inside = last_box(text)
    found = _LETTER.fullmatch(" ".join(_LATEX.sub(" ", inside).split())) if inside is not None else None
    if found is None or not found[1].isupper() or _HEDGE.search(found[2] or ""):
        return None
    return found[1]


def verify(question: Question, text: str) -> Verdict:
    """Right if the boxed letter is the reference's; failed only where there is no reference."""
    if question.answer is None:
        return "failed"
    return "right" if extract(question, text) == question.answer else "wrong"
