r"""AMC 2023: forty problems of the American Mathematics Competitions, asked without their choices.

Hub: `math-ai/amc23`, split test, columns `question` and `answer` (a number); file `amc_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import maths
from comas.questions.sources import Source

SOURCE = Source("amc", "math-ai/amc23", None, {"test": "test"}, ("question",), ("answer",))
task = maths.benchmark(SOURCE, "question", "answer")
