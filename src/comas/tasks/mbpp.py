"""MBPP (arXiv 2108.07732): short programs from one sentence and three tests, which the agents see.

Hub: `google-research-datasets/mbpp`, config `full`, split test, columns `text`, `test_list`,
`test_setup_code`; file `mbpp_test.jsonl`. Questions whose tests build objects of the program's
classes cannot be judged: their verdict is failed. For evaluation only.
"""

from __future__ import annotations

from functools import partial

from comas.answers import boxed, code
from comas.answers.code import verify
from comas.answers.pool import verdicts
from comas.questions.sources import Row, Source, identity
from comas.types import Question, Task, UserMistake

SOURCE = Source(
    "mbpp", "google-research-datasets/mbpp", "full", {"test": "test"}, ("text", "test_setup_code")
)
verify_many = partial(verdicts, verify)


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """The 500 programs in an order drawn by `seed`, at most `limit`; `path`: a file, or a folder
    with the file.
    """
    return SOURCE.questions(_question, split, path, limit, seed)


def _question(row: Row, where: str) -> Question:
    lines = row.get("test_list")
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise UserMistake(f"{where}: expected `test_list`, a list of asserts, got {lines!r}")
    tests = "\n".join(lines)
    prompt = f"{row['text'].strip()}\nYour program has to pass these tests:\n{tests}"
    setup = row["test_setup_code"]
    try:
        names = code.called(tests, setup)
    except SyntaxError as error:
        raise UserMistake(f"{where}: its tests or their setup are no Python: {error}") from error
    meta = {"tests": tests, "names": names, "setup": setup}
    return Question(
        id=identity("mbpp", prompt), prompt=prompt, kind="coding", answer="tests", meta=meta
    )


task = Task(
    name="mbpp",
    load=load,
    verify=verify,
    extract=code.extract,
    same=code.same,
    ballot=code.ballot,
    wording={**boxed.WORDING, **code.WORDING},
    max_tokens=boxed.ROOM,
)
