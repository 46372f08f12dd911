r"""AIME 2024: thirty problems of the American Invitational Mathematics Examination; answers are
integers from 0 to 999.

Hub: `Maxwell-Jia/AIME_2024`, split train, columns `Problem` and `Answer`; file `aime_test.jsonl`.
For evaluation only. Leaves out: other years.
"""

from __future__ import annotations

from comas.answers import maths
from comas.questions.sources import Source

SOURCE = Source(
    "aime",
    "Maxwell-Jia/AIME_2024",
    None,
    {"test": "train"},
    ("Problem",),
    ("Answer",),
    files={"test": "aime_test.jsonl"},
)
task = maths.benchmark(SOURCE, "Problem", "Answer")
