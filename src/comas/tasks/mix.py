r"""The training mix of CoMAS (arXiv 2510.08529): mathematics (MATH) and science (WebInstruct-verified) in one batch.

The mix is not on the hub under a name of its own: `data` names a JSON Lines file, or a folder with `comas_mix.jsonl`, with the
columns `prompt`, `answer`, `task` (math, science, coding). Train, validation and test are cut from it by a hash of each
question. Mathematics is checked by math-verify, science as a number within 5 %. Leaves out: the coding part.
"""

from __future__ import annotations

from functools import partial

from comas.answers import boxed, maths, numbers
from comas.answers.pool import verdicts
from comas.rows import Row, Source, cut, identity
from comas.types import Question, Task, UserMistake, Verdict

SHARES = (("train", 0.7), ("validation", 0.1), ("test", 0.2))
KINDS = {"math": maths, "science": numbers}
LEFT_OUT = ("coding",)
SOURCE = Source(
    "mix", None, None, {name: name for name, _ in SHARES}, ("prompt", "task"), ("answer",),
    files={name: "comas_mix.jsonl" for name, _ in SHARES},
)


def load(split: str, path: str | None = None, limit: int | None = None, seed: int = 0) -> list[Question]:
    """The questions of a split in an order drawn by `seed`, at most `limit`; `path`: the file, or a folder with it."""
    mine = cut("mix", split, SHARES)
    return SOURCE.questions(_question, split, path, limit, seed, lambda q: q.kind not in LEFT_OUT and mine(q))


def _question(row: Row, where: str) -> Question:
    if row["task"] not in (*KINDS, *LEFT_OUT):
        raise UserMistake(f"{where}: `task` is {row['task']!r}: one of {', '.join((*KINDS, *LEFT_OUT))}")
    prompt = row["prompt"].strip()
    return Question(identity("mix", prompt), prompt, row["task"], str(row["answer"]).strip())


def verify(question: Question, text: str) -> Verdict:
    """By the verifier of the question's kind."""
    return KINDS[question.kind].verify(question, text)


def extract(question: Question, text: str) -> str | None:
    """By the reader of the question's kind."""
    return KINDS[question.kind].extract(question, text)


def same(a: str, b: str) -> bool:
    """Whether two answers are the same as mathematics; what is a number to both is compared as one, exactly."""
    return maths.same(a, b)


verify_many = partial(verdicts, verify)
task = Task(
    "mix", load, verify, extract, same=same, wording=boxed.WORDING, max_tokens=boxed.ROOM, recipe=boxed.RECIPE,
)
