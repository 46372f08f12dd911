"""KodCode (arXiv 2503.02951): programming tasks with unit tests, made by models and checked by
running them; for training.

Hub: `KodCode/KodCode-V1`, split train, columns `question` and `test`; file `kodcode_train.jsonl`.
Train, validation and test are cut from it by a hash of each question. Leaves out: questions whose
tests need more than functions and literal values.
"""

from __future__ import annotations

from comas.answers import boxed, code
from comas.questions.sources import Row, Source
from comas.types import Question

SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
SOURCE = Source(
    "kodcode",
    "KodCode/KodCode-V1",
    None,
    dict.fromkeys(SHARES, "train"),
    ("question", "test"),
    shares=SHARES,
)


def _question(row: Row, where: str) -> Question:
    prompt = row["question"].strip()
    return code.question("kodcode", prompt, row["test"])


task = code.benchmark(
    SOURCE,
    _question,
    recipe=boxed.RECIPE,
)
