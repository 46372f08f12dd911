r"""Own questions: a JSON Lines file with `question` and, where there is one, `answer` and `kind`.

`kind` says how an answer is checked: `math` (the default: equal as mathematics), `science` (a
number within 5 %), `choice` (a letter), `text` (the same words). Without answers a team can learn,
and nothing can be measured; an answer that no reply can match is refused. `data` names one file,
which is cut by a hash of each question into train, validation and test (with `whole`, all of it is
test), or a folder with `train.jsonl`, `validation.jsonl` and `test.jsonl`. Leaves out: other
formats.
"""

from __future__ import annotations

import math
import operator
import os
import re
from dataclasses import replace
from pathlib import Path

from comas.answers import boxed, choice, maths, numbers, words
from comas.questions.sources import DataSource, Record, identity
from comas.types import Question, UserMistake, Verdict

SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
DEFAULT = "math"
"""Kind of a question that names none, also of those that clients ask."""
KINDS = {"math": maths, "science": numbers, "choice": choice, "text": words}
SAME = {"math": maths.same, "science": numbers.same}
SOURCE = DataSource(
    *("jsonl", None, ("question",)),
    splits={split: split for split in SHARES},
    files={split: f"{split}.jsonl" for split in SHARES},
    shares=SHARES,
)


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    whole: bool = False,
) -> list[Question]:
    """The questions of a split in an order drawn by `seed`, at most `limit`; `path`: a file, or a
    folder with three.

    `whole`: a file is for evaluation only, and all of it is the test split.
    """
    place = path or os.environ.get("COMAS_DATA")
    file_per_split = bool(place and Path(place).is_dir())
    source = SOURCE
    if file_per_split or (whole and split == "test"):
        source = replace(SOURCE, shares={})
    return source.questions(_question, split, path, limit, seed, same=_same_reference)


def _question(row: Record, where: str) -> Question:
    kind = row.get("kind", DEFAULT)
    answer = row.get("answer")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserMistake(f"{where}: `kind` is {kind!r}: one of {', '.join(KINDS)}")
    prompt = row["question"].strip()
    if not prompt:
        raise UserMistake(f"{where}: `question` is empty: write one, or leave the line out")
    if answer is not None:
        answer = _reference(answer, kind, prompt, where)
    return Question(id=identity("jsonl", prompt), prompt=prompt, kind=kind, answer=answer)


MARK = "####"
"""Mark before the answer where a solution has been worked out, as in GSM8K."""
REMEDIES = {
    "math": "write it as it may stand within \\boxed{...}, with every brace closed and without"
    " sentences (or set `kind` to text)",
    "science": "write one number, or set `kind` to math or text",
    "choice": "write the letter of one choice, such as B",
    "text": "write the words of the answer",
}
"""Remedy for a reference that no reply can match, by kind."""
_BOX = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)


def _reference(answer: object, kind: str, prompt: str, where: str) -> str:
    """Return a reference answer in the form that the verifier of its kind reads.

    Raises UserMistake where it has a wrong type, or is one that no reply can match.
    """
    if (
        isinstance(answer, bool)
        or not isinstance(answer, str | int | float)
        or (isinstance(answer, float) and not math.isfinite(answer))
    ):
        raise UserMistake(f"{where}: `answer` is {answer!r}: a text or a number, or leave it out")
    text = numbers.written(answer)
    if kind in ("math", "science") and MARK in text:
        text = text.rpartition(MARK)[2].strip()
    box = _BOX.fullmatch(text.strip("$"))
    if box is not None:
        text = box[1].strip()
    reference = choice.reference(text, prompt) if kind == "choice" else text
    if not reference or not _can_be_matched(reference, kind, prompt):
        shown = repr(str(answer)[:60])
        remedy = REMEDIES[kind]
        if kind == "choice" and (letters := choice.listed(prompt)):
            remedy += f" (this question lists {', '.join(letters)})"
        raise UserMistake(
            f"{where}: no reply can match `answer` {shown} of kind {kind}: {remedy}, or leave it"
            " out"
        )
    return reference


def _same_reference(kind: str, one: str, other: str) -> bool:
    """Whether two references of one question are the same in the sense of their kind."""
    question = Question(id="reference", prompt="", kind=kind, answer=one)
    return KINDS[kind].verify(question, rf"\boxed{{{other}}}") == "right"


def _can_be_matched(reference: str, kind: str, prompt: str) -> bool:
    """Whether a reply that boxes the reference itself would be right."""
    if kind == "math":
        return maths.can_be_reference(reference)
    question = Question(id="reference", prompt=prompt, kind=kind, answer=reference)
    return KINDS[kind].verify(question, rf"\boxed{{{reference}}}") == "right"


def verify(question: Question, text: str) -> Verdict:
    """Judge by the verifier of the question's kind; `failed` where there is no answer."""
    return KINDS[question.kind or DEFAULT].verify(question, text)


def extract(question: Question, text: str) -> str | None:
    """By the reader of the question's kind, which stands in front of what it read."""
    kind = question.kind or DEFAULT
    answer = KINDS[kind].extract(question, text)
    return f"{kind}: {answer}" if answer is not None else None


def same(a: str, b: str) -> bool:
    """Whether two answers are the same, in the sense of their kind."""
    kind, _, one = a.partition(": ")
    _, _, other = b.partition(": ")
    compare = SAME.get(kind, operator.eq)
    return compare(one, other)


task = boxed.benchmark(
    SOURCE,
    _question,
    load=load,
    verify=verify,
    extract=extract,
    same=same,
    recipe=boxed.RECIPE,
)
