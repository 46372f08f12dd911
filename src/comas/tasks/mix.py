r"""The training mix of CoMAS (arXiv 2510.08529): mathematics (MATH), coding (KodCode) and science
(WebInstruct-verified) in one batch.

The mix is not on the hub under a name of its own: `data` names a JSON Lines file, or a folder with
`comas_mix.jsonl`, with the columns `prompt`, `answer`, `task` (math, science, coding). Train,
validation and test are cut from it by a hash of each question. Mathematics is checked by
sympy, science as a number within 5 %, programs in the sandbox. Leaves out: nothing of the
mix.
"""

from __future__ import annotations

import re

from comas.answers import boxed, code, maths, numbers
from comas.questions.sources import DataSource, Record, identity
from comas.types import Question, UserMistake, Verdict

SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
KINDS = {"math": maths, "science": numbers, "coding": code}
FORM = {
    "math": "Put the final answer alone in \\boxed{}.",
    "science": "Put the final answer, a number, alone in \\boxed{}.",
    "coding": "Give the whole program in one block that begins with ```python and ends with ```.",
}
"""How each kind is to be answered; stands in the question, since the wording is one for all."""
WORDING = {
    "solution": (
        "Solve this problem:\n{question}\n\n{history}\nReason step by step in your own words, check"
        " each step, and answer in the form that the problem asks for."
    ),
    "revision": (
        "Solve this problem:\n{question}\n\nYour answer so far:\n{own}\n\n{history}\nUse what is"
        " right in what others wrote, and do not take it on trust. Answer in the form that the"
        " problem asks for."
    ),
}
_PROGRAM = re.compile(r"\n|(?<!\\)\b(?:def|class|lambda|import)\b")
"""Signs that no answer to a question of mathematics or science holds; `\\lambda` is a letter."""
SOURCE = DataSource(
    *("mix", None, ("prompt", "task"), ("answer",)),
    splits={split: split for split in SHARES},
    files=dict.fromkeys(SHARES, "comas_mix.jsonl"),
    shares=SHARES,
)


def _question(row: Record, where: str) -> Question:
    kind = row["task"]
    if kind not in KINDS:
        raise UserMistake(f"{where}: `task` is {kind!r}: one of {', '.join(KINDS)}")
    prompt = f"{row['prompt'].strip()}\n\n{FORM[kind]}"
    if kind == "coding":
        return code.question("mix", prompt, str(row["answer"]))
    answer = numbers.written(row["answer"])
    if kind == "math":
        answer = maths.reference(answer, where)
    return Question(id=identity("mix", prompt), prompt=prompt, kind=kind, answer=answer)


def verify(question: Question, text: str) -> Verdict:
    """By the verifier of the question's kind."""
    return KINDS[question.kind].verify(question, text)


def extract(question: Question, text: str) -> str | None:
    """By the reader of the question's kind."""
    return KINDS[question.kind].extract(question, text)


def same(a: str, b: str) -> bool:
    """Whether two answers are the same mathematics (numbers are compared exactly), or the same
    program.
    """
    if a == b:
        return True
    if _is_program(a) or _is_program(b):
        return code.same(a, b)
    return maths.same(a, b)


def _is_program(answer: str) -> bool:
    return answer.startswith(code.DOES) or _PROGRAM.search(answer) is not None


def ballot(question: Question, answer: str) -> str | None:
    """A program counts as what it does, any other answer as itself."""
    if question.kind != "coding":
        return answer
    return code.ballot(question, answer)


task = boxed.benchmark(
    SOURCE,
    _question,
    wording=WORDING,
    verify=verify,
    extract=extract,
    same=same,
    ballot=ballot,
    recipe=boxed.RECIPE,
)
