r"""MMLU (arXiv 2009.03300): multiple choice over 57 subjects.

Hub: `cais/mmlu`, config `all`, splits validation and test, columns `question`, `choices` (four
texts), `answer` (the index of the right one); files `mmlu_validation.jsonl`, `mmlu_test.jsonl`. A
reply answers by the letter in its last box. Leaves out: examples in the prompt, training.
"""

from __future__ import annotations

from comas.answers import boxed, choice
from comas.questions.sources import Row, Source, identity
from comas.types import Question, UserMistake

SPLITS = {"validation": "validation", "test": "test"}
SOURCE = Source("mmlu", "cais/mmlu", "all", SPLITS, ("question",), ("answer",))


def _question(row: Row, where: str) -> Question:
    choices = row.get("choices")
    right = row["answer"]
    if (
        not isinstance(choices, list | tuple)
        or type(right) is not int
        or not 0 <= right < min(len(choices), 26)
    ):
        raise UserMistake(
            f"{where}: expected texts `choices`, and `answer`, an index into them, got {right!r} of"
            f" {choices!r}"
        )
    prompt = choice.asked(row["question"], choices)
    kind = row.get("subject") or "choice"
    letter = choice.LETTERS[right]
    return Question(id=identity("mmlu", prompt), prompt=prompt, kind=kind, answer=letter)


task = boxed.benchmark(SOURCE, _question, verify=choice.verify, extract=choice.extract, quick=True)
