"""Python functions with a fault, to be mended: programs and tests of MBPP (arXiv 2108.07732).

Hub: `google-research-datasets/mbpp`, config `full`, split train, columns `code`, `test_list`; file
`mbpp_train.jsonl`. A question is a program and its tests, each in a fenced block. Faults are made
by changing one operator or number of the program, and are known to fail a test: loading runs them
in the sandbox. Programs that need set-up code, or fail their own tests, are left out. The parts
`train`, `validation` and `test` are cut by a hash of the *tests*, and nobody may pose those of the
last two; MBPP's own test split is not touched. Leaves out: faults of several changes.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from comas import sandbox
from comas.answers import boxed, code
from comas.answers.fences import blocks
from comas.questions.sources import DataSource, Record, identity, split_of_text
from comas.tasks.mbpp import tests_of
from comas.tasks.repair import FORMS, mending
from comas.types import Question, Task, UserMistake, Verdict

SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
"""Share of the tests in each split, in the order in which the hash is cut."""
TRIED = 4
"""Changes of a program that are run in search of a fault."""
SOURCE = DataSource(
    *("mbpp_repair", "google-research-datasets/mbpp", ("code", "test_setup_code"), (), "full"),
    splits=dict.fromkeys(SHARES, "train"),
    files=dict.fromkeys(SHARES, "mbpp_train.jsonl"),
)
FENCE = "```"
WORDING = {
    "solution": (
        "This program fails at least one of its tests:\n{question}\n\n{history}\nFind the fault,"
        " then give the whole mended program in one block that begins with ```python and ends with"
        " ```."
    ),
    "inject": (
        "This program passes its tests:\n{question}\n\nChange it so that at least one of the tests"
        " fails and the fault is hard to find. Give the whole changed program in one block, then"
        " the same tests, unchanged, in a second block, as above."
    ),
}
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""Operator -> the one that takes its place in a fault."""


def written(program: str, tests: str) -> str:
    """A program and its tests, each in a block of its own."""
    return f"{FENCE}python\n{program}\n{FENCE}\nTests:\n{FENCE}python\n{tests}\n{FENCE}"


def read_question(text: str) -> tuple[str, str] | None:
    """The program and the tests of a text with two closed blocks, of which the second calls what
    the first defines; None where it is none.
    """
    fenced = blocks(text)
    if len(fenced) != 2 or not all(block.closed for block in fenced):
        return None
    program, tests = (block.text.strip() for block in fenced)
    try:
        names = code.called(tests)
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return (program, tests) if code.defines(names, defined) and "assert" in tests else None


def split_of(tests: str) -> str:
    """The split that tests belong to, whatever their order, blanks, comments and the program."""
    lines = [ast.unparse(statement) for statement in ast.parse(tests).body]
    return split_of_text("mbpp_repair", "\n".join(sorted(set(lines))), SHARES)


def changes(program: str) -> list[str]:
    """The program with one operator or whole number changed, in all ways, in their order."""
    tree = ast.parse(program)
    changed: list[str] = []
    for node in ast.walk(tree):
        for field, other in _alternatives(node):
            before = getattr(node, field)
            setattr(node, field, other)
            changed.append(ast.unparse(tree))
            setattr(node, field, before)
    return list(dict.fromkeys(changed))


def _alternatives(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """A field of a node, and what may take its place there."""
    if isinstance(node, ast.Compare):
        first, *others = node.ops
        if swapped := _SWAPPED.get(type(first)):
            yield "ops", [swapped(), *others]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        if swapped := _SWAPPED.get(type(node.op)):
            yield "op", swapped()
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "value", node.value + 1
        yield "value", node.value - 1


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "fault",
) -> list[Question]:
    """Questions of a split in an order drawn by `seed`, at most `limit`; `path`: a file, or a
    folder with the file. In the form `program` the questions of `train` are working programs, for
    those who spoil them.
    """
    if form not in FORMS:
        raise UserMistake(f"task mbpp_repair has no form {form!r}: one of {', '.join(FORMS)}")

    def is_of_split(question: Question) -> bool:
        parts = read_question(question.prompt)
        return parts is not None and split_of(parts[1]) == split

    working = SOURCE.questions(_working, split, path, None, seed, is_of_split)
    programs = form == "program" and split == "train"
    questions: list[Question] = []
    for question in working:
        if limit is not None and len(questions) >= limit:
            break
        fault = _fault_of(question)
        if fault is not None:
            questions.append(question if programs else fault)
    return questions


def _working(row: Record, where: str) -> Question:
    """The question of a row; one that needs set-up code is none that can be read."""
    tests = tests_of(row, where)
    try:
        program = ast.unparse(ast.parse(row["code"]))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        program = ""
    prompt = written("" if row["test_setup_code"].strip() else program, tests)
    return _asked(prompt, "program", f"{FENCE}python\n{program}\n{FENCE}")


def _asked(prompt: str, kind: str = "fault", answer: str | None = None) -> Question:
    return Question(id=identity("mbpp_repair", prompt), prompt=prompt, kind=kind, answer=answer)


def _fault_of(working: Question) -> Question | None:
    """The first change, in an order that is a fact of the program, that fails its tests; None where
    the program itself fails them, or none of `TRIED` changes does.
    """
    parts = read_question(working.prompt)
    if parts is None:
        return None
    program, tests = parts
    tried = changes(program)
    random.Random(working.id).shuffle(tried)
    faults = [written(change, tests) for change in tried[:TRIED]]
    texts = (working.prompt, *faults)
    with ThreadPoolExecutor(len(texts)) as threads:  # each program runs in a process of its own
        working_verdict, *verdicts = threads.map(lambda text: check(working, text), texts)
    failing = [text for text, verdict in zip(faults, verdicts, strict=True) if verdict == "wrong"]
    if working_verdict != "right" or not failing:
        return None
    return _asked(failing[0], answer=working.answer)


def extract(question: Question, text: str) -> str | None:
    """The program of a reply, or of a question as `shown` writes it."""
    parts = read_question(text)
    if parts is not None:
        return parts[0]
    asked = read_question(question.prompt)
    names = code.called(asked[1]) if asked else []
    return code.extract(Question(id="", prompt="", meta={"names": names}), text)


def _judge(program: str, tests: str) -> Verdict:
    """By the tests in the sandbox; failed where that breaks down."""
    return sandbox.check(program, tests, names=code.called(tests)).verdict


MENDING = mending(
    read_question, extract, written, split_of, lambda *parts: _asked(written(*parts)), _judge
)
check = MENDING["check"]
task = Task(
    name="mbpp_repair",
    load=load,
    wording={**boxed.WORDING, **code.WORDING, **WORDING},
    extract=extract,
    same=code.same,
    **MENDING,
    max_tokens=boxed.ROOM,
)
