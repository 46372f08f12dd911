r"""Whether two mathematical answers are the same: math-verify, in processes that can be killed.

Equal means equal as mathematics: `\frac{1}{2}` is `0.5`, `{2, 1}` is `{1, 2}`, `(x+1)^2` its expansion. An answer stands in the
last box of a reply. Leaves out: proofs.
"""

from __future__ import annotations

from functools import lru_cache

from comas.answers.boxed import last_box
from comas.answers.pool import WorkerFailed, Workers
from comas.types import Question, Verdict

LIMIT = 5.0
"""Seconds for one comparison."""
WORKERS = Workers("comas.answers.maths_worker", LIMIT)


@lru_cache(maxsize=65536)
def equal(gold: str, answer: str) -> bool:
    """Whether `answer` is the same as `gold`, which may be stated the more loosely of the two (`x = 5` for 5).

    Raises WorkerFailed where that could not be found out: a time limit, a bug in the checker.
    """
    return gold == answer or bool(WORKERS.ask(["equal", gold, answer]))


@lru_cache(maxsize=65536)
def value(text: str) -> float | None:
    """The finite real number that an expression comes to, or None. Raises WorkerFailed."""
    return WORKERS.ask(["value", text])


def same(a: str, b: str) -> bool:
    """Whether two answers are the same, for votes: where the checker fails, only if they are written the same."""
    if a == b:
        return True
    try:
        return equal(min(a, b), max(a, b))
    except WorkerFailed:
        return False


def extract(question: Question, text: str) -> str | None:
    """What the last box holds, spaces collapsed; None where there is none."""
    inside = last_box(text)
    return " ".join(inside.split()) if inside is not None else None


def verify(question: Question, text: str) -> Verdict:
    """Right if the boxed answer equals the reference; failed where there is no reference, or the checker broke down."""
    found = extract(question, text)
    if question.answer is None:
        return "failed"
    try:
        return "right" if found is not None and equal(question.answer, found) else "wrong"
    except WorkerFailed:
        return "failed"
