"""MBPP (arXiv 2108.07732): short programs from one sentence and three tests, which the agents see.

Hub: `google-research-datasets/mbpp`, config `full`, splits train (374 programs), validation (90)
and test (500), columns `text`, `test_list`, `test_setup_code`; files `mbpp_train.jsonl` and so on.
Where only the test split is at hand, `parts` cuts all three from it by a hash of each question's
text: three parts of five to learn from (half of all to train on, a tenth for validation), two to
measure, which are no longer MBPP's test. Questions whose tests build objects of the program's
classes cannot be judged: their verdict is failed.
"""

from __future__ import annotations

from dataclasses import replace

from comas.answers import code
from comas.questions.sources import DataSource, Record, identity
from comas.types import Question, UserMistake

HUB = "google-research-datasets/mbpp"
COLUMNS = ("text", "test_setup_code")
SHARES = {"train": 0.5, "validation": 0.1, "test": 0.4}
"""Share of the hub's test split in each of its parts, in the order in which the hash is cut."""
SPLITS = tuple(SHARES)
SOURCE = DataSource("mbpp", HUB, COLUMNS, config="full", splits={split: split for split in SPLITS})
PARTS = replace(SOURCE, splits=dict.fromkeys(SPLITS, "test"), shares=SHARES)
"""Source of the three splits, all of them from the hub's test split."""


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    parts: bool = False,
) -> list[Question]:
    """The programs of a split in an order drawn by `seed`, at most `limit`; `path`: a file, or a
    folder with the files. With `parts` the splits are parts of the test split.
    """
    source = PARTS if parts else SOURCE
    return source.loader(_question)(split, path, limit, seed)


def tests_of(row: Record, where: str) -> str:
    """The asserts of a row, a line each."""
    lines = row.get("test_list")
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise UserMistake(f"{where}: expected `test_list`, a list of asserts, got {lines!r}")
    if not any(line.strip() for line in lines):
        raise UserMistake(f"{where}: `test_list` is empty, so that no program could be right")
    return "\n".join(lines)


def _question(row: Record, where: str) -> Question:
    tests = tests_of(row, where)
    prompt = f"{row['text'].strip()}\nYour program has to pass these tests:\n{tests}"
    setup = row["test_setup_code"]
    try:
        names = code.called(tests, setup)
    except SyntaxError as error:
        raise UserMistake(f"{where}: its tests or their setup are no Python: {error}") from error
    if missing := code.not_in_the_sandbox(f"{setup}\n{tests}"):
        raise UserMistake(
            f"{where}: its tests import {missing}, and the sandbox has the standard library only"
        )
    if not names:
        raise UserMistake(f"{where}: its tests call no function that a program could define")
    meta = {"tests": tests, "names": names, "setup": setup}
    return Question(
        id=identity("mbpp", prompt), prompt=prompt, kind="coding", answer="tests", meta=meta
    )


task = code.benchmark(SOURCE, _question, load=load)
