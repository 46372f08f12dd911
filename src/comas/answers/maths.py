r"""Whether two mathematical answers are the same: math-verify, in processes that can be killed.

Equal means equal as mathematics: `\frac{1}{2}` is `0.5`, `{2, 1}` is `{1, 2}`, `(x+1)^2` its expansion. An answer stands in the
last box of a reply. Leaves out: proofs.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from comas.answers.boxed import last_box
from comas.answers.pool import WorkerFailed, Workers
from comas.types import Question, Verdict

LIMIT = 5.0
"""Seconds for one comparison."""
WORKERS = Workers("comas.answers.maths_worker", LIMIT)


_broken: dict[tuple[str, str], str] = {}
"""Pairs that could not be compared, and why: nobody waits for them twice."""
_hopeless: Counter[str] = Counter()
"""Answers, and in how many of those pairs they stand."""


def equal(gold: str, answer: str) -> bool:
    """Whether `answer` is the same as `gold`, which may be stated the more loosely of the two (`x = 5` for 5).

    Raises WorkerFailed where that could not be found out: a time limit, a bug in the checker.
    """
    if gold == answer:
        return True
    if (gold, answer) in _broken:
        raise WorkerFailed(_broken[gold, answer])
    try:
        return _compared(gold, answer)
    except WorkerFailed as error:
        _broken[gold, answer] = str(error)
        _hopeless.update((gold, answer))
        raise


@lru_cache(maxsize=65536)
def _compared(gold: str, answer: str) -> bool:
    return bool(WORKERS.ask(["equal", gold, answer]))


@lru_cache(maxsize=65536)
def value(text: str) -> float | None:
    """The finite real number that an expression comes to, or None. Raises WorkerFailed."""
    return WORKERS.ask(["value", text])


def same(a: str, b: str) -> bool:
    """Whether two answers are the same, for votes: where the checker fails, only if they are written the same.

    An answer that was part of two failures is compared by its writing from then on: a vote does not wait for it again and again.
    """
    if a == b or max(_hopeless[a], _hopeless[b]) > 1:
        return a == b
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
