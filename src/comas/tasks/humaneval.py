"""HumanEval (arXiv 2107.03374): functions to be written from their signature and docstring.

Hub: `openai/openai_humaneval`, split test, columns `prompt`, `test`, `entry_point`; file
`humaneval_test.jsonl`. A program gets what stands before the function in its prompt (imports,
helpers), and is called from another process. For evaluation only.
"""

from __future__ import annotations

from comas.answers import code
from comas.questions.sources import Row, Source, identity
from comas.types import Question, UserMistake

SOURCE = Source(
    "humaneval",
    "openai/openai_humaneval",
    None,
    {"test": "test"},
    ("prompt", "test", "entry_point"),
)
LEAD = "Complete this function:\n"


def _question(row: Row, where: str) -> Question:
    prompt = row["prompt"]
    function = row["entry_point"]
    if missing := code.not_in_the_sandbox(row["test"]):
        raise UserMistake(
            f"{where}: its tests import {missing}, and the sandbox has the standard library only:"
            " take the tests of HumanEval itself (openai/openai_humaneval)"
        )
    meta = {
        "tests": row["test"],
        "names": [function],
        "check": function,
        "setup": prompt + "\n    pass\n",
        "before": _before(prompt),
    }
    name = identity("humaneval", prompt)
    asked = LEAD + prompt.strip()
    return Question(id=name, prompt=asked, kind="coding", answer="tests", meta=meta)


def _before(prompt: str) -> str:
    """What stands before the function that is asked for: the last one."""
    start = prompt.rfind("\ndef ") + 1  # 0 where there is none
    return prompt[:start] + "\n"


def ballot(question: Question, answer: str) -> str | None:
    """As of any program, which gets what stands before the function here as well."""
    prompt = question.prompt.removeprefix(LEAD)
    return code.ballot(question, answer, _before(prompt))


task = code.benchmark(SOURCE, _question, ballot=ballot)
