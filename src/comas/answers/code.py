"""Answers that are programs: the last fenced Python block of a reply, run in the sandbox against its question's tests.

One rule and one time limit in training and in evaluation. Leaves out: what cannot be tested by calling functions with literal
values; such a question's verdict is failed.
"""

from __future__ import annotations

import ast
import builtins
import re
import threading
import warnings

from comas import sandbox
from comas.rows import identity
from comas.types import Question, Verdict

WORDING = {
    "solution": "Write a program in Python for this task:\n{question}\n\n{history}\nThink it through, then give the whole program, "
    "with its imports, in one block that begins with ```python and ends with ```.",
    "revision": "Write a program in Python for this task:\n{question}\n\nYour program so far:\n{own}\n\n{history}\nUse what is "
    "right in the other programs, and do not take them on trust. Give the whole program in one block that begins with ```python "
    "and ends with ```.",
}
"""Of the roles that differ from other questions."""

_PARSING = threading.Lock()
_BLOCK = re.compile(r"^```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE | re.IGNORECASE)


def extract(question: Question, text: str) -> str | None:
    """The last fenced block, if it is a Python program; None otherwise."""
    found = _BLOCK.findall(text)
    program = found[-1].strip() if found else ""
    return program if program and _tree(program) else None


def _parsed(program: str) -> ast.Module:
    """The syntax tree; what Python thinks of its style (`"\\d"`) is nobody's news here. Raises SyntaxError and others."""
    with _PARSING, warnings.catch_warnings():  # the filters are the whole process's
        warnings.simplefilter("ignore")
        return ast.parse(program)


def _tree(program: str) -> str | None:
    try:
        return ast.dump(_parsed(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def same(a: str, b: str) -> bool:
    """Whether two programs are the same but for comments and spaces."""
    return a == b or (_tree(a) is not None and _tree(a) == _tree(b))


def verify(question: Question, text: str) -> Verdict:
    """Right if the program passes all tests of `meta` (see `tested`); failed where there are none, or the sandbox broke down."""
    program, meta = extract(question, text), question.meta
    if not meta.get("tests"):
        return "failed"
    if program is None:
        return "wrong"
    how = {key: meta[key] for key in ("names", "setup", "check") if key in meta}
    return sandbox.check(meta.get("before", "") + program, meta["tests"], **how).verdict


def question(task: str, prompt: str, tests: str) -> Question:
    """A question whose tests are functions `test_...`; one without tests where they are no Python."""
    try:
        meta = {"tests": tests, "names": called(tests)}
    except SyntaxError:
        meta = {}
    return Question(identity(task, prompt), prompt, "coding", "tests", meta)


def called(tests: str) -> list[str]:
    """The functions that tests call and neither define nor import: those of the program. Raises SyntaxError."""
    tree = _parsed(tests)
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            own |= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        elif isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "solution"):
            own |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    used = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return list(dict.fromkeys(name for name in used if name not in own and not hasattr(builtins, name)))
