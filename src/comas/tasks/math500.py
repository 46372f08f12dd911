r"""MATH-500 (arXiv 2305.20050; problems of MATH, arXiv 2103.03874): competition problems with
mathematical objects as answers.

Hub: `HuggingFaceH4/MATH-500`, split test, columns `problem` and `answer` (LaTeX); file
`math500_test.jsonl`. For evaluation only. Leaves out: the worked solutions.
"""

from __future__ import annotations

from comas.answers import boxed, maths
from comas.questions.sources import Row, Source, identity
from comas.types import Question

SOURCE = Source("math500", "HuggingFaceH4/MATH-500", None, {"test": "test"}, ("problem", "answer"))


def _question(row: Row, where: str) -> Question:
    prompt = row["problem"].strip()
    answer = maths.reference(str(row["answer"]), where)
    return Question(id=identity("math500", prompt), prompt=prompt, kind="math", answer=answer)


task = boxed.benchmark(
    SOURCE, _question, verify=maths.verify, extract=maths.extract, same=maths.same
)
