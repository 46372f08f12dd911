r"""GSM8K (arXiv 2110.14168): grade-school word problems with one number as the answer.

Hub: `openai/gsm8k`, config `main`, splits train and test, columns `question` and `answer` (worked
solution, the number follows `####`); files `gsm8k_train.jsonl`, `gsm8k_test.jsonl`. A reply answers
by its last `\boxed{...}`, or by `#### n` where nothing is boxed; numbers are compared exactly.
Leaves out: guessing an answer from prose.
"""

from __future__ import annotations

import re

from comas.answers import boxed
from comas.answers.numbers import as_canonical, number
from comas.questions.sources import DataSource, Record, identity
from comas.types import Question, UserMistake, Verdict

SPLITS = {"train": "train", "validation": "train", "test": "test"}
SHARES = {"validation": 0.1, "train": 0.9}
"""Shares of the train file, cut by a hash of the question."""
SOURCE = DataSource(
    *("gsm8k", "openai/gsm8k", ("question", "answer"), (), "main"), splits=SPLITS, shares=SHARES
)
WORDING = {
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
    return as_canonical(boxed.answer_in(text, _MARK))


def same(a: str, b: str) -> bool:
    """Whether two answers are the same number."""
    left = number(a)
    right = number(b)
    return left is not None and left == right


def verify(question: Question, text: str) -> Verdict:
    """Right if the reply's answer equals the reference; failed only where the reference itself is
    not a number.
    """
    return boxed.compared(extract(question, text), as_canonical(question.answer))


def _question(row: Record, where: str) -> Question:
    prompt = row["question"].strip()
    worked = row["answer"].strip()
    solution, mark, last = worked.rpartition("####")
    meta = {"solution": solution.strip() if mark else worked}
    answer = as_canonical(last) if mark else None
    if mark and answer is None:
        raise UserMistake(
            f"{where}: expected one number behind the last `####`, got {last.strip()[:60]!r}"
        )
    name = identity("gsm8k", prompt)
    return Question(id=name, prompt=prompt, kind="math", answer=answer, meta=meta)


task = boxed.benchmark(
    SOURCE,
    _question,
    wording=WORDING,
    verify=verify,
    extract=extract,
    same=same,
    max_tokens={**boxed.ROOM, "solution": 512, "revision": 512},
    recipe=boxed.RECIPE,
)
