r"""AIME 2024: thirty problems of the American Invitational Mathematics Examination; answers are
integers from 0 to 999.

Hub: `Maxwell-Jia/AIME_2024`, split train, columns `Problem` and `Answer`; file `aime_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import boxed, maths
from comas.answers.maths import verify
from comas.questions.sources import Row, Source, identity
from comas.types import Question, Task

SOURCE = Source(
    "aime",
    "Maxwell-Jia/AIME_2024",
    None,
    {"test": "train"},
    ("Problem",),
    ("Answer",),
    files={"test": "aime_test.jsonl"},
)


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """The 30 problems in an order drawn by `seed`, at most `limit`; `path`: a file, or a folder
    with the file.
    """
    return SOURCE.questions(_question, split, path, limit, seed)


def _question(row: Row, where: str) -> Question:
    prompt = row["Problem"].strip()
    answer = str(row["Answer"]).strip()
    return Question(id=identity("aime", prompt), prompt=prompt, kind="math", answer=answer)


task = Task(
    name="aime",
    load=load,
    verify=verify,
    extract=maths.extract,
    same=maths.same,
    wording=boxed.WORDING,
    max_tokens=boxed.ROOM,
)
