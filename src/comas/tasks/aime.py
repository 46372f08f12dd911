r"""AIME 2024: thirty problems of the American Invitational Mathematics Examination; answers are
integers from 0 to 999.

Hub: `Maxwell-Jia/AIME_2024`, split train, columns `Problem` and `Answer`; file `aime_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import boxed, maths
from comas.questions.sources import Row, Source, identity
from comas.types import Question

SOURCE = Source(
    "aime",
    "Maxwell-Jia/AIME_2024",
    None,
    {"test": "train"},
    ("Problem",),
    ("Answer",),
    files={"test": "aime_test.jsonl"},
)


def _question(row: Row, where: str) -> Question:
    prompt = row["Problem"].strip()
    answer = maths.reference(str(row["Answer"]), where)
    return Question(id=identity("aime", prompt), prompt=prompt, kind="math", answer=answer)


task = boxed.benchmark(
    SOURCE, _question, verify=maths.verify, extract=maths.extract, same=maths.same
)
