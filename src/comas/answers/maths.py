r"""Whether two mathematical answers are the same: math-verify, in processes that can be killed.

Equal means equal as mathematics: `\frac{1}{2}` is `0.5`, `{2, 1}` is `{1, 2}`, `(x+1)^2` its
expansion. An answer stands in the last box of a reply. What the writing alone decides is decided
here (`notation`). What came to an end, or never can, is kept; what another try might mend is not,
so that no verdict depends on what was asked before it. Leaves out: proofs.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from comas.answers import boxed, forms, notation
from comas.answers.boxed import last_box
from comas.answers.pool import WorkerFailed, Workers
from comas.questions.sources import Row, Source, identity
from comas.types import HostFailure, Question, Task, UserMistake, Verdict

PATIENCE = 30.0
"""Seconds on the clock for one comparison.

The process itself ends after five seconds of computing, however busy the machine is.
"""
_COMMAND = re.compile(r"\\(?:text|mbox|mathrm)[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
LOG = logging.getLogger("comas")
BROKEN: Counter[tuple[str, bool]] = Counter()
"""How often the checker broke in this process, by the error's name and whether it was the answer's
doing (else the reference's).
"""
WORKERS = Workers("comas.answers.maths_worker", PATIENCE)


def equal(gold: str, answer: str) -> bool:
    """Whether `answer` is the same as `gold`, which may be stated the more loosely of the two (`x =
    5` for 5).

    Raises WorkerFailed where that could not be found out: a time limit, a bug in the checker.
    """
    if gold == answer:
        return True
    by_writing = notation.decided(gold, answer)
    if by_writing is not None:
        return by_writing
    if ("=" in gold) != ("=" in answer):  # `x =` only names
        gold, answer = (forms.value_of(notation.plain(text)) or text for text in (gold, answer))
    left, right = (notation.readable(forms.without_unit(text)) for text in (gold, answer))
    if left is None or right is None:
        return False
    if "," in left and not re.search(r"[<>=≤≥]|\\[lgn](?:eq?|t)(?![a-zA-Z])", left):
        right = notation.as_interval(right)
    return bool(_found("equal", left, right))


def value(text: str) -> float | None:
    """The finite real number that an expression comes to, or None. Raises WorkerFailed."""
    readable = notation.readable(text)
    return _found("value", readable) if readable is not None else None


def digests(text: str) -> bool:
    """Whether the checker comes to an end with this text, compared with something plain."""
    readable = notation.readable(text)
    try:
        return readable is None or bool(_found("digests", readable))
    except WorkerFailed:
        return False


def can_be_reference(text: str) -> bool:
    """Whether a reply that boxes this text is right, and is not asked for sentences: six words or
    more, besides commands and what they write as text.
    """
    is_prose = len(_WORD.findall(_COMMAND.sub(" ", text))) >= 6
    question = Question(id="reference", prompt="", kind="math", answer=text)
    return bool(text) and not is_prose and verify(question, rf"\boxed{{{text}}}") == "right"


def reference(text: str, where: str) -> str:
    """A reference answer as it is. Raises UserMistake where no reply can match it."""
    text = text.strip()
    if not can_be_reference(text):
        raise UserMistake(
            f"{where}: no reply can match the answer {text[:60]!r}: write it as it may stand within"
            " \\boxed{...}, with every brace closed and without sentences"
        )
    return text


def benchmark(
    task: str, hub: str, question: str, answer: str, splits: Mapping[str, str] | None = None
) -> Task:
    """A task whose questions and reference answers stand in two columns of a data set, for
    evaluation only.
    """
    source = Source(task, hub, (question,), (answer,), splits=splits or {"test": "test"})

    def make(row: Row, where: str) -> Question:
        prompt = row[question].strip()
        right = reference(str(row[answer]), where)
        return Question(id=identity(task, prompt), prompt=prompt, kind="math", answer=right)

    return boxed.benchmark(source, make, verify=verify, extract=extract, same=same)


def works() -> bool:
    """Whether the checker answers at all: a failure is the text's then, and not the machine's."""
    try:
        return bool(WORKERS.ask(["digests", "1"]))
    except WorkerFailed:
        return False


def _found(*request: str) -> Any:
    outcome = told(*request)
    if isinstance(outcome, WorkerFailed):
        raise WorkerFailed(str(outcome), lasting=True, begun=outcome.begun)
    return outcome


@lru_cache(maxsize=65536)
def told(*request: str) -> Any:
    """Ask the checker, and remember failures that every repetition would meet.

    Raises a WorkerFailed that another try may not meet.
    """
    try:
        return WORKERS.ask(list(request))
    except WorkerFailed as error:
        if error.lasting:
            return error
        raise


def same(a: str, b: str) -> bool:
    """Whether two answers are the same, for votes.

    Answers that the checker cannot digest are the same only if they are spelt alike. Whether it can
    is asked once per answer, so that a vote does not wait for it again, and no other answer is
    blamed. Raises HostFailure where the checker does not work at all.
    """
    if a == b:
        return True
    a, b = sorted((a, b))  # what is the reference of `equal` must not depend on who asks
    by_writing = notation.decided(a, b)
    if by_writing is not None:
        return by_writing
    with contextlib.suppress(WorkerFailed):
        if digests(a) and digests(b):
            return equal(a, b)
    check_works()
    return False


def check_works() -> None:
    """Raise HostFailure where the checker does not answer at all."""
    if not works():
        raise HostFailure(
            "the checker of mathematics broke down; `python -m comas.answers.maths_worker`"
            " shows why"
        )


def extract(question: Question, text: str) -> str | None:
    """What the last box holds, spaces collapsed; None where there is none."""
    inside = last_box(text)
    return " ".join(inside.split()) if inside is not None else None


def verify(question: Question, text: str) -> Verdict:
    """Right if the boxed answer equals the reference, wrong also where the checker breaks on the
    answer, or takes too long for it.

    Failed where there is no reference, where the checker breaks on it, or does not work at all.
    """
    answer = extract(question, text)
    if question.answer is None:
        return "failed"
    if answer is None:
        return "wrong"
    try:
        return "right" if equal(question.answer, answer) else "wrong"
    except WorkerFailed as error:
        if not error.lasting and not works():
            return "failed"
        note_broken(error, question.answer, answer)
        return "wrong" if error.begun else "failed"


def note_broken(error: WorkerFailed, gold: str, answer: str) -> None:
    """Count what broke the checker, and show the first of each kind and each tenfold count."""
    name = str(error).partition(":")[0]
    on_answer = error.begun
    BROKEN[name, on_answer] += 1
    count = BROKEN[name, on_answer]
    if str(count).strip("0") == "1":
        text, verdict = (answer, "wrong") if on_answer else (gold, "no verdict")
        part = "an answer" if on_answer else "a reference"
        LOG.warning(
            "the checker of mathematics broke on %s, %.60r (%s): %s; %d of the kind",
            *(part, text, error, verdict, count),
        )
