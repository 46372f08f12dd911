r"""AMC 2023: forty problems of the American Mathematics Competitions, asked without their choices.

Hub: `math-ai/amc23`, split test, columns `question` and `answer` (a number); file `amc_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import boxed, maths
from comas.answers.maths import verify
from comas.questions.sources import Row, Source, identity
from comas.types import Question, Task

SOURCE = Source("amc", "math-ai/amc23", None, {"test": "test"}, ("question",), ("answer",))


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """The 40 problems in an order drawn by `seed`, at most `limit`; `path`: a file, or a folder
    with the file.
    """
    return SOURCE.questions(_question, split, path, limit, seed)


def _question(row: Row, where: str) -> Question:
    prompt = row["question"].strip()
    answer = str(row["answer"]).strip()
    return Question(id=identity("amc", prompt), prompt=prompt, kind="math", answer=answer)


task = Task(
    name="amc",
    load=load,
    verify=verify,
    extract=maths.extract,
    same=maths.same,
    wording=boxed.WORDING,
    max_tokens=boxed.ROOM,
)
