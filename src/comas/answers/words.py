r"""Answers in words: the last box, compared without case, spaces and LaTeX's text boxes. Leaves out: synonyms."""

from __future__ import annotations

import re

from comas.answers.boxed import last_box
from comas.types import Question, Verdict

_LATEX = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|mbox)\s*|[{}$]")


def extract(question: Question, text: str) -> str | None:
    """The words of the last box, in lower case; None where there are none."""
    inside = last_box(text)
    return _plain(inside) or None if inside is not None else None


def verify(question: Question, text: str) -> Verdict:
    """Right if the words are those of the reference; failed where there is none."""
    if question.answer is None:
        return "failed"
    return "right" if extract(question, text) == _plain(question.answer) else "wrong"


def _plain(text: str) -> str:
    return " ".join(_LATEX.sub("", text).casefold().split()).rstrip(".")
