r"""AMC 2023: forty problems of the American Mathematics Competitions, asked without their choices.

Hub: `math-ai/amc23`, split test, columns `question` and `answer` (a number); file `amc_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import boxed, maths
from comas.questions.sources import Row, Source, identity
from comas.types import Question

SOURCE = Source("amc", "math-ai/amc23", None, {"test": "test"}, ("question",), ("answer",))


def _question(row: Row, where: str) -> Question:
    prompt = row["question"].strip()
    answer = maths.reference(str(row["answer"]), where)
    return Question(id=identity("amc", prompt), prompt=prompt, kind="math", answer=answer)


task = boxed.benchmark(
    SOURCE, _question, verify=maths.verify, extract=maths.extract, same=maths.same
)
