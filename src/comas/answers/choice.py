r"""Multiple choice: the letter in the last box, `\boxed{B}`, `\boxed{\text{(B)}}`, `\boxed{B.
Daoism}`.

What follows the letter is compared with the choices that the question shows. Leaves out: answers
that name a choice by its text alone.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from comas.answers import boxed
from comas.answers.boxed import last_box
from comas.answers.notation import narrow
from comas.questions.sources import DataSource, Record
from comas.types import Question, Task, Verdict

LETTERS = string.ascii_uppercase
UNKNOWN = LETTERS[:8]
"""The letters that may be choices where the question does not list them."""
CLOSING = "The answer is the letter of one choice."
_LATEX = re.compile(
    r"\\(?:text|math|bold|operatorname|underline|emph|mbox)(?:bf|it|rm|sf|tt|symbol|name)?(?![a-z])\s*"
    r"|\\(?:bf|rm|left|right|quad|[lL]arge|LARGE|[hH]uge|normalsize|displaystyle|checkmark)"
    r"(?![a-zA-Z])|\\[,;:! ]|[{}$*~✓✔✅\"“”‘’]"
)
_LETTER = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|answer|choice)(?: is)?:? ?)?(?P<open>[(\[]?"
    r" ?)(?P<letter>[A-Z])(?P<close> ?[)\].:]+|)"
    r"(?P<rest>(?![^\W_]).*)",
    re.DOTALL | re.IGNORECASE,
)
_PRAISE = re.compile(
    r"\(?(?:is )?(?:the )?(?:correct|right)(?: answer| choice| option)?\)?\.?", re.IGNORECASE
)
_OTHER = re.compile(
    r"(?:(?P<start>\A\W*)|(?P<joined>\b(?:and|or|nor|but|not|then|maybe|perhaps|possibly|vs\.?)\s+|[,;/&|+]\s*)|(?P<label>(?<=\s)))"
    r"(?:(?:option|choice|answer)\s+)?[(\[]?(?P<letter>[A-Z])(?P<close>[)\].:]*)(?=(?P<after>\s+[^\W_]+|)|\W)(?![\w'’^=-])",
)
_SIGNS = re.compile(r"[^\w<>=+\-−.,/^%]+|_")


def asked(question: str, choices: Sequence[str]) -> str:
    """A question followed by its lettered choices."""
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([question.strip(), "", *lines, "", CLOSING])


@lru_cache(maxsize=4096)
def listed(prompt: str) -> Mapping[str, str]:
    """The choices that a question lists, by capital letter: the last lines that begin with `A.`,
    `B)`, `(C)` and so on, in order; where there are none, with `a.`, `b)`, `(c)`.

    Empty where there are not two of them.
    """
    return _listed(prompt, "A-Z") or _listed(prompt, "a-z")


def _listed(prompt: str, letters: str) -> Mapping[str, str]:
    shown = prompt.removesuffix(CLOSING)
    labels = list(re.finditer(rf"^[ \t]*\(?([{letters}])[).:](?=\s)[ \t]*", shown, re.MULTILINE))
    runs = [_run(labels[i:]) for i, label in enumerate(labels) if label[1] in "Aa"]
    longest = max(reversed(runs), key=len, default=[])
    if len(longest) < 2:
        return {}
    ends = [*(label.start() for label in longest[1:]), len(shown)]
    return {
        label[1].upper(): shown[label.end() : end].strip()
        for label, end in zip(longest, ends, strict=True)
    }


def _run(labels: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """Find the labels that follow each other in the alphabet, from A on."""
    run: list[re.Match[str]] = []
    for label in labels:
        if len(run) < len(LETTERS) and label[1].upper() == LETTERS[len(run)]:
            run.append(label)
    return run


def extract(question: Question, text: str) -> str | None:
    """The boxed letter; None where the last box holds something else.

    A small letter counts alone, or with the text of its choice: `a` may be an article.
    """
    inside = last_box(text)
    return _chosen(inside, listed(question.prompt)) if inside is not None else None


def _chosen(text: str, choices: Mapping[str, str]) -> str | None:
    match = _LETTER.fullmatch(_words(text))
    if match is None or (choices and match["letter"].upper() not in choices):
        return None
    letter = match["letter"].upper()
    rest = match["rest"].strip()
    if not rest or _PRAISE.fullmatch(rest):
        return letter
    said_of = _named_by(rest, choices)
    if letter in said_of:
        return letter
    if match["letter"].islower():
        return None
    if not match["close"].strip() or said_of or _hedges(letter, rest, choices):
        return None
    return letter


def _words(text: str) -> str:
    plain = " ".join(_LATEX.sub(" ", narrow(text)).split())
    return plain[1:-1].strip() if re.fullmatch("'[^']*'", plain) else plain


def _named_by(rest: str, choices: Mapping[str, str]) -> list[str]:
    """The choices that a text repeats, whatever its spaces, boxes, case and the dash or comma
    before it.
    """
    keys = {letter: _key(choice) for letter, choice in choices.items()}
    rest_key = _key(rest)
    behind_a_dash = _key(re.sub(r"\A(?:[-–—,;]|--+) +", "", rest))
    return [letter for letter, key in keys.items() if key and key in (rest_key, behind_a_dash)]


def _key(text: str) -> str:
    return _SIGNS.sub("", _words(text)).casefold().strip(".,")


def _hedges(letter: str, rest: str, choices: Mapping[str, str]) -> bool:
    """Whether another choice's letter stands behind a chosen one as one more answer: joined by a
    word or a comma, first, or as a label. `A` before another word in small letters is an article.
    """
    letters = "".join(choices) or UNKNOWN
    for other in _OTHER.finditer(rest):
        after = (other["after"] or "").strip()
        small = after[:1].islower()
        if other["letter"] == letter or other["letter"] not in letters:
            continue
        if other["joined"] is not None and not (
            small and other["letter"] == "A" and not other["close"]
        ):
            return True
        alone = re.match(r"\s*(?:\Z|[,;/&|+]|(?:and|or)\b)", rest[other.end() :]) is not None
        if other["start"] is not None and (alone or (other["close"] and after and not small)):
            return True
        if other["label"] is not None and other["close"] and after and not small:
            return True
    return False


def reference(text: str, prompt: str) -> str | None:
    """The letter that a reference means: `B`, `b`, `(B)`, `B.

    Daoism`, or one choice's own text; None where that is not clear.
    """
    choices = listed(prompt)
    plain = _words(text)
    if re.fullmatch(r"[(\[]?[a-z][)\].:]*", plain):
        plain = plain.upper()
    letter = _chosen(plain, choices)
    if letter is not None:
        return letter
    letters = _named_by(plain, choices)
    return letters[0] if len(letters) == 1 else None


def verify(question: Question, text: str) -> Verdict:
    """Right if the boxed letter is the reference's; failed only where there is no reference."""
    return boxed.compared(extract(question, text), question.answer)


def benchmark(source: DataSource, make: Callable[[Record, str], Question]) -> Task:
    """A task whose answers are letters (`boxed.benchmark`)."""
    return boxed.benchmark(source, make, verify=verify, extract=extract, quick=True)
