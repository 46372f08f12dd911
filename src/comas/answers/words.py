r"""Answers in words: the last box, compared without case, spaces, LaTeX's text boxes and quotation
marks around it.

Leaves out: synonyms.
"""

from __future__ import annotations

import re
import unicodedata

from comas.answers.boxed import compared, last_box
from comas.answers.notation import narrow
from comas.types import Question, Verdict

_LATEX = re.compile(
    r"\\(?:text|math)(?:bf|it|rm|sf|tt|normal)?(?![a-z])\s*|\\(?:mbox|emph|underline)\s*|[{}$]"
)
_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])")
_ESCAPED = re.compile(r"\\([&%#_{}])")
_AROUND = "*\"'“”„‘’‹›«»「」『』`.,!? "
"""Signs that may stand around an answer and are none of it."""


def extract(question: Question, text: str) -> str | None:
    """The words of the last box, in lower case; None where there are none."""
    inside = last_box(text)
    return _plain(inside) or None if inside is not None else None


def verify(question: Question, text: str) -> Verdict:
    """Right if the words are those of the reference; failed where there is none."""
    right = _plain(question.answer) if question.answer is not None else None
    return compared(extract(question, text), right)


def _plain(text: str) -> str:
    bare = _LATEX.sub("", _SPACES.sub(" ", _ESCAPED.sub(r"\1", text)))
    return " ".join(unicodedata.normalize("NFC", narrow(bare)).casefold().split()).strip(_AROUND)
