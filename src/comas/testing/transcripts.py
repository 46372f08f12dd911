"""Golden transcripts: what the shipped methods say and pay under a fixed script.

Leaves out: the recorded transcripts (tests/golden).
"""

from __future__ import annotations

from comas.config.resolve import load_plugin
from comas.tasks import pick
from comas.testing.scripted import cut, discuss, records
from comas.types import Reply

GOLDEN = {"comas": {"rounds": 2, "evaluations": 2}, "ttrl": {"votes": 5}, "rlvr": {"votes": 3}}
"""Methods that have a golden transcript, and its options."""


def golden_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Replies for the golden transcripts: right, wrong, cut and unreadable ones,
    drawn by the seed.
    """
    if role == "solution":
        texts: list[str | Reply] = [
            "1 + 2 = 3 + 4 = 7",
            "2 + 4 = 6 + 5 = 11",
            "<score> 3 </score>",
            cut("1 + 2 = 3 +"),
        ]
        return texts[seed % 4]
    if role == "evaluation":
        return ["1 in + 2 in = 3 + 4 in = 7 right", "2 in + 4 in = 6 wrong"][seed % 2]
    return ["<score> 3 </score>", "<score> 1 </score>", "2", "<score> 2 </score>"][seed % 4]


def golden(name: str) -> str:
    """The transcript of a method under `golden_script`, as JSON."""
    questions = [
        pick.make_question((1, 2, 4, 5), 7, "three"),
        pick.make_question((5, 2, 4, 1), 11, "three"),
    ]
    found = discuss(
        load_plugin("method", name),
        pick.task,
        golden_script,
        questions,
        samples=2,
        options=GOLDEN[name],
    )
    return "[" + ",\n".join(records(found)) + "]\n"
