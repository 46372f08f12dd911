r"""MATH-500 (arXiv 2305.20050; problems of MATH, arXiv 2103.03874): competition problems with
mathematical objects as answers.

Hub: `HuggingFaceH4/MATH-500`, split test, columns `problem` and `answer` (LaTeX); file
`math500_test.jsonl`. For evaluation only. Leaves out: the worked solutions.
"""

from __future__ import annotations

from comas.answers import maths
from comas.questions.sources import Source

SOURCE = Source("math500", "HuggingFaceH4/MATH-500", None, {"test": "test"}, ("problem", "answer"))
task = maths.benchmark(SOURCE, "problem", "answer")
