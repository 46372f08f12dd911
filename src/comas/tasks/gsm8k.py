r"""GSM8K (arXiv 2110.14168): grade-school word problems with one number as the answer.

Hub: `openai/gsm8k`, config `main`, splits train and test, columns `question` and `answer` (worked
solution, the number follows `####`); files `gsm8k_train.jsonl`, `gsm8k_test.jsonl`. A reply answers
by its last `\boxed{...}`, or by `#### n` where nothing is boxed; numbers are compared exactly.
Leaves out: guessing an answer from prose.
"""

from __future__ import annotations

import re
from functools import partial

from comas.answers import boxed
from comas.answers.boxed import last_box
from comas.answers.numbers import canonical, number
from comas.answers.pool import verdicts
from comas.questions.sources import Row, Source, cut, identity
from comas.types import Question, Task, Verdict

SPLITS = {"train": "train", "validation": "train", "test": "test"}
SOURCE = Source("gsm8k", "openai/gsm8k", "main", SPLITS, ("question", "answer"))
SHARES = (("validation", 0.1), ("train", 0.9))
"""Of the train file, cut by a hash of the question."""
WORDING = {
    **boxed.WORDING,
    "solution": (
        boxed.WORDING["solution"].replace(
            "final answer alone in \\boxed{}: a number, an expression, or the letter of a choice,"
            " as the problem asks",
            "final answer, a single number, in \\boxed{}",
        )
    ),
}

_MARK = re.compile(r"####[ \t]*([^\n]*)")


def extract(question: Question, text: str) -> str | None:
    r"""The number in the last `\boxed{...}`, or after the last `####` where nothing is boxed; None
    if it is not one number.
    """
    marks = _MARK.findall(text)
    inside = last_box(text) if boxed.BOX.search(text) else marks[-1] if marks else None
    value = number(inside) if inside is not None else None
    return canonical(value) if value is not None else None


def same(a: str, b: str) -> bool:
    """Whether two answers are the same number."""
    left = number(a)
    right = number(b)
    return left is not None and left == right


def verify(question: Question, text: str) -> Verdict:
    """Right if the reply's answer equals the reference; failed only where the reference itself is
    not a number.
    """
    if question.answer is None or number(question.answer) is None:
        return "failed"
    found = extract(question, text)
    return "right" if found is not None and same(found, question.answer) else "wrong"


verify_many = partial(verdicts, verify)


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """The questions of a split in an order drawn by `seed`, at most `limit`.

    `path` is a folder with the two files, or one file that serves whatever split is asked for.
    `train` and `validation` are disjoint parts of the train file.
    """
    keep = cut("gsm8k", split, SHARES) if split in ("train", "validation") else lambda q: True
    return SOURCE.questions(_question, split, path, limit, seed, keep)


def _question(row: Row, where: str) -> Question:
    prompt = row["question"].strip()
    worked = row["answer"].strip()
    solution, mark, last = worked.rpartition("####")
    value = number(last)
    answer = None if not mark else canonical(value) if value is not None else last.strip()
    return Question(
        id=identity("gsm8k", prompt),
        prompt=prompt,
        kind="math",
        answer=answer,
        meta={"solution": solution.strip() if mark else worked},
    )


task = Task(
    name="gsm8k",
    load=load,
    verify=verify,
    extract=extract,
    same=same,
    wording=WORDING,
    max_tokens={**boxed.ROOM, "solution": 512, "revision": 512},
    recipe=boxed.RECIPE,
)
