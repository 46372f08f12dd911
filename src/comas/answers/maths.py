r"""Whether two mathematical answers are the same: their parts, and values in processes that can be
killed.

Equal means equal as mathematics: `\frac{1}{2}` is `0.5`, `{2, 1}` is `{1, 2}`, `(x+1)^2` its
expansion. An answer stands in the last box of a reply. What names, forms and decimal numbers decide
is decided here (`names`, `parts`), the rest by sympy (`maths_worker`). What came to an end, or
never can, is kept; what another try might mend is not, so that no verdict depends on what was asked
before it. Leaves out: proofs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from comas.answers import boxed, parts
from comas.answers.boxed import last_box
from comas.answers.maths_worker import CLOSE, ROUNDED
from comas.answers.names import same_names
from comas.answers.notation import without_label
from comas.answers.pool import WorkerFailed, Workers
from comas.questions.sources import DataSource, Record, identity
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
    if not gold.strip():
        raise WorkerFailed("an empty reference cannot be read", lasting=True)
    by_writing = decided(gold, answer)
    if by_writing is not None:
        return by_writing
    return bool(_found("equal", parts.parse(gold), parts.parse(answer)))


def decided(gold: str, answer: str) -> bool | None:
    """Whether two answers are the same, as far as names, forms and decimal numbers tell; None where
    only mathematics can.
    """
    if gold == answer:
        return True
    gold, answer = without_label(gold), without_label(answer)
    by_name = same_names(gold, answer)
    if by_name is not None:
        return by_name
    try:
        return parts.same(parts.parse(gold), parts.parse(answer), _by_digits)
    except _Undecided:
        return None


class _Undecided(Exception):
    """Only mathematics can say."""


def _by_digits(kind: str, gold: parts.Node, answer: parts.Node) -> bool:
    """Compare two values without mathematics: decimal numbers, and what has no value."""
    if kind != "value":
        raise _Undecided
    if gold[1] is None or answer[1] is None:
        return False
    digits = parts.decimals(gold, answer)
    if digits is None:
        raise _Undecided
    one, other = map(Decimal, digits)
    if one == other or not any("." in text for text in digits):
        return one == other
    apart = float(abs(one - other))
    return apart <= ROUNDED and apart <= CLOSE * float(max(abs(one), abs(other)))


def value(text: str) -> float | None:
    """The finite real number that an expression comes to, or None. Raises WorkerFailed."""
    return _found("value", parts.parse(text))


def digests(text: str) -> bool:
    """Whether the checker comes to an end with this text."""
    try:
        return bool(_found("digests", parts.parse(text)))
    except WorkerFailed:
        return False


def can_be_reference(text: str) -> bool:
    """Whether a reply that boxes this text is right, and is not asked for sentences: six words or
    more, besides commands and what they write as text.
    """
    is_prose = len(_WORD.findall(_COMMAND.sub(" ", text))) >= 6 or _is_said_number(text)
    is_prose = is_prose or parts.trails_off(text)
    question = Question(id="reference", prompt="", kind="math", answer=text)
    return bool(text) and not is_prose and verify(question, rf"\boxed{{{text}}}") == "right"


_NUMBER = re.compile(r"(?<![\w.,:/-])[-+$]*[0-9][0-9.,]*(?![\w:/-])")


def _is_said_number(text: str) -> bool:
    """Whether a reference is one number among words that are no unit of it: `42 (exact)`, `Result:
    42`.
    """
    is_words = same_names(text, "") is not None or "(" in text or ":" in text
    node = parts.parse(text)
    return (
        "\\" not in text
        and is_words
        and (node[0] == "words" or node[:2] == ["value", None] or same_names(text, "") is not None)
        and len(_NUMBER.findall(text)) == 1
        and _WORD.search(text) is not None
    )


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
    source = DataSource(task, hub, (question,), (answer,), splits=splits or {"test": "test"})

    def make(row: Record, where: str) -> Question:
        prompt = row[question].strip()
        right = reference(str(row[answer]), where)
        return Question(id=identity(task, prompt), prompt=prompt, kind="math", answer=right)

    return boxed.benchmark(source, make, verify=verify, extract=extract, same=same)


def works() -> bool:
    """Whether the checker answers at all: a failure is the text's then, and not the machine's."""
    try:
        return bool(WORKERS.ask(["digests", ["value", "1", "1"]]))
    except WorkerFailed:
        return False


def _found(name: str, *nodes: parts.Node) -> Any:
    outcome = ask_child(name, *map(json.dumps, nodes))
    if isinstance(outcome, WorkerFailed):
        raise WorkerFailed(str(outcome), lasting=True, begun=outcome.begun)
    return outcome


@lru_cache(maxsize=65536)
def ask_child(*request: str) -> Any:
    """Ask the checker, and remember failures that every repetition would meet.

    Raises a WorkerFailed that another try may not meet.
    """
    try:
        name, *nodes = request
        return WORKERS.ask([name, *map(json.loads, nodes)])
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
    a, b = sorted((a, b))  # what is the reference of `equal` must not depend on who asks
    by_writing = decided(a, b)
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
    """Return what the last box holds, spaces collapsed; None where there is none."""
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
