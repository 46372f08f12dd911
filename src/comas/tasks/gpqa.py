r"""GPQA (arXiv 2311.12022): graduate-level multiple choice in biology, physics and chemistry.

Hub: `Idavidrein/gpqa` (gated: accept its terms and log in), config `gpqa_main`, split train,
columns `Question`, `Correct Answer`, `Incorrect Answer 1` to `3`; file `gpqa_test.jsonl`. The four
answers are shuffled, each question in an order of its own that never changes. For evaluation only.
Its authors ask that questions not be published in plain text: keep transcripts private.
"""

from __future__ import annotations

import random

from comas.answers import boxed, choice
from comas.questions.sources import Row, Source, identity
from comas.types import Question

ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
SOURCE = Source(
    "gpqa",
    "Idavidrein/gpqa",
    "gpqa_main",
    {"test": "train"},
    ("Question", *ANSWERS),
    files={"test": "gpqa_test.jsonl"},
)


def _question(row: Row, where: str) -> Question:
    name = identity("gpqa", row["Question"])
    rng = random.Random(name)
    columns = rng.sample(ANSWERS, len(ANSWERS))
    prompt = choice.asked(row["Question"], [row[column].strip() for column in columns])
    right = columns.index("Correct Answer")
    kind = row.get("Subdomain") or "choice"
    return Question(id=name, prompt=prompt, kind=kind, answer=choice.LETTERS[right])


task = boxed.benchmark(SOURCE, _question, verify=choice.verify, extract=choice.extract, quick=True)
