"""Answers that are programs: the last fenced Python block of a reply, run in the sandbox against
its question's tests.

One rule and one time limit in training and in evaluation. In a vote, programs count as what they do
on the calls that their question shows. Leaves out: what cannot be tested by calling functions with
literal values; such a question's verdict is failed.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import symtable
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from comas import sandbox
from comas.answers import boxed
from comas.answers.fences import Block, blocks
from comas.questions.sources import DataSource, Record, identity
from comas.sandbox.jail import Broken
from comas.types import HostFailure, Question, Task, Verdict

WORDING = {
    "solution": (
        "Write a program in Python for this task:\n{question}\n\n{history}\nThink it through, then"
        " give the whole program, with its imports, in one block that begins with ```python and"
        " ends with ```."
    ),
    "revision": (
        "Write a program in Python for this task:\n{question}\n\nYour program so"
        " far:\n{own}\n\n{history}\nUse what is right in what others wrote, and do not take it"
        " on trust. Give the whole program in one block that begins with ```python and ends with"
        " ```."
    ),
}
"""Templates of the roles that differ from other questions."""

DOES = "does "
"""How a ballot begins that is no program, but what one does."""
CLOSING = 50
"""Brackets among which the end of a call is looked for."""
_NO_CODE = {0xFEFF: None, 0xA0: " ", 0x202F: " "}
"""A byte order mark, and spaces that do not break: none of them is Python."""
_PARSING = threading.Lock()
_DEFINED = re.compile(
    r"^[ \t]*+(?:(?:async[ \t]++)?def[ \t]++(\w++)|class[ \t]++(\w++)|(\w++)[ \t]*+=(?!=))",
    re.MULTILINE,
)
"""Pattern of what seems to define a name, in a program that is none."""


def extract(question: Question, text: str) -> str | None:
    """The last fenced block that defines what is asked for, if it is a Python program, behind those
    earlier blocks that define or import what it uses and does not have.

    Blocks of other languages are none. Where none defines it, or nothing is known to be asked for,
    the last block that says that it is Python, or the last of all where none does. A reply without
    fences is a program where all of it is one that defines what is asked for.
    """
    text = text.translate(_NO_CODE)
    all_blocks = blocks(text, is_whole=lambda program: _tree(program) is not None)
    asked_for = question.meta.get("names") or []
    if not all_blocks and defines(asked_for, _defined(text)):
        all_blocks = [Block(text.strip(), "python", closed=True)]
    fenced = [block.text.strip() for block in all_blocks if block.is_python or not block.language]
    tagged = [block.text.strip() for block in all_blocks if block.is_python]
    counts = [len(_defined(block).intersection(asked_for)) for block in fenced]
    most = max(counts, default=0)
    defining = [
        block for block, count in zip(fenced, counts, strict=True) if most and count == most
    ]
    chosen = defining or tagged or fenced
    if not chosen or not chosen[-1] or _tree(chosen[-1]) is None:
        return None
    program = chosen[-1]
    index = max(i for i, block in enumerate(fenced) if block == program)
    return "\n\n".join([*_needed(program, fenced[:index]), program])


def _needed(program: str, earlier: list[str]) -> list[str]:
    """The earlier blocks that bring names which a program uses and neither defines nor imports."""
    missing = _lacked(program)
    needed: list[str] = []
    for block in reversed(earlier):
        tree = _tree(block)
        brought = _defined(block) | _imported(tree.body) if tree else set[str]()
        if missing & brought:
            needed.insert(0, block)
            missing = (missing - brought) | _lacked(block)
    return needed


def _lacked(block: str) -> set[str]:
    """The names that a block uses and neither defines nor imports, but from `solution`."""
    return set(_from_solution(block)) | (set(_used(block)) - _bound(block) - set(dir(builtins)))


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that those of the nodes bring which are imports."""
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(a.asname or a.name).split(".")[0] for node in imports for a in node.names}


def _defined(program: str) -> set[str]:
    """The names that a program defines outside its functions and classes; of a broken one, those
    that it seems to define.

    What it imports is none: `from solution import f` stands in blocks that show how `f` is used.
    """
    tree = _tree(program)
    if tree is None:
        return {name for groups in _DEFINED.findall(program) for name in groups if name}
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return names


def _parsed(program: str) -> ast.Module:
    """The syntax tree; what Python thinks of its style (`"\\d"`) is nobody's news here.

    Raises SyntaxError and others.
    """
    with _PARSING, warnings.catch_warnings():  # the filters are the whole process's
        warnings.simplefilter("ignore")
        return ast.parse(program)


def _tree(program: str) -> ast.Module | None:
    """The syntax tree; None where the text is no Python, or too deep to be written out."""
    try:
        tree = _parsed(program)
        ast.dump(tree)
        _scopes(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree


def defined(program: str) -> set[str]:
    """The names that a Python program defines at its top; none where a text is no Python."""
    return _defined(program) if _tree(program) is not None else set()


def same(a: str, b: str) -> bool:
    """Whether two programs are the same but for comments and spaces."""
    if a == b:
        return True
    one, other = _tree(a), _tree(b)
    return one is not None and other is not None and ast.dump(one) == ast.dump(other)


def ballot(question: Question, program: str, before: str = "") -> str | None:
    """Return what a program counts as in a vote: what its functions give for the calls that its
    question shows, whatever the question expects of them; `before` is run before it. The program
    itself where no calls can be read; None where it ends, or reaches a limit, or gives no value for
    any of them. Raises HostFailure where the sandbox breaks down.
    """
    shown = examples(question.prompt)
    if not shown:
        return program
    try:
        seen = _observed(_behind(before, program), shown)
    except Broken as error:
        raise HostFailure(
            f"the sandbox broke down while {question.id} was counted: {error}"
        ) from error
    if seen is not None and not seen.calls:
        return program
    return DOES + seen.digest if seen is not None and seen.values else None


def _observed(program: str, shown: str) -> sandbox.SeenBehaviour | None:
    names = called(shown)
    try:
        return sandbox.observe(program, shown, names=names)
    except Broken:
        # once more, before the whole game is played again
        return sandbox.observe(program, shown, names=names)


def examples(prompt: str) -> str:
    """The calls that a question shows, as Python: its blocks with asserts, else its lines from the
    first assert on, else the calls with literal arguments of the last function that it defines.
    Empty where there are none.
    """
    shown = [b.text for b in blocks(prompt) if (b.is_python or not b.language) and _asserts(b.text)]
    if shown:
        return "\n".join(shown)
    lines = prompt.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("assert ")), len(lines))
    if _asserts(rest := "\n".join(lines[first:])):
        return rest
    defined = re.findall(r"^def (\w+)\(", prompt, re.MULTILINE)
    return "\n".join(dict.fromkeys(_calls(prompt, defined[-1]))) if defined else ""


def _asserts(text: str) -> bool:
    """Whether a text is Python that contains an assert."""
    tree = _tree(text)
    return tree is not None and any(isinstance(n, ast.Assert) for n in ast.walk(tree))


def _calls(prompt: str, name: str) -> Iterator[str]:
    """Calls of a function with literal arguments, one at least, wherever in a text they stand."""
    for start in re.finditer(rf"(?<![\w.]){name}\(", prompt):
        for end in itertools.islice(re.finditer(r"\)", prompt[start.end() :]), CLOSING):
            text = " ".join(prompt[start.start() : start.end() + end.end()].split("\n"))
            if (tree := _tree(text)) is not None:
                if _is_literal_call(tree.body[0]):
                    yield text
                break


def _is_literal_call(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    arguments = [*node.value.args, *[k.value for k in node.value.keywords]]
    try:
        return bool([ast.literal_eval(value) for value in arguments])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False


def verify(question: Question, text: str) -> Verdict:
    """Right if the program passes all tests of `meta` (see `tested`); failed where there are none,
    or the sandbox broke down.
    """
    program = extract(question, text)
    meta = question.meta
    if not meta.get("tests"):
        return "failed"
    if program is None:
        return "wrong"
    how = {key: meta[key] for key in ("names", "setup", "check") if key in meta}
    return sandbox.check(_behind(meta.get("before", ""), program), meta["tests"], **how).verdict


def _behind(before: str, program: str) -> str:
    """A program behind what it is given; imports from `__future__` have to stand before both."""
    if not before:
        return program
    tree = _parsed(program)
    future = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    if not future:
        return before + program
    tree.body = [node for node in tree.body if node not in future]
    return "\n".join([*map(ast.unparse, future), before, ast.unparse(tree)])


def benchmark(source: DataSource, make: Callable[[Record, str], Question], **facts: Any) -> Task:
    """A task whose answers are programs (`boxed.benchmark`)."""
    facts.setdefault("ballot", ballot)
    return boxed.benchmark(
        source, make, wording=WORDING, verify=verify, extract=extract, same=same, **facts
    )


def question(task: str, prompt: str, tests: str) -> Question:
    """Build a question whose tests are functions `test_...`.

    It has no tests where they are no Python.
    """
    try:
        meta = {"tests": tests, "names": called(tests)}
    except SyntaxError:
        meta = {}
    return Question(
        id=identity(task, prompt), prompt=prompt, kind="coding", answer="tests", meta=meta
    )


def not_in_the_sandbox(tests: str) -> str | None:
    """The first module that tests import and the standard library has not; None where there is
    none, or where they are no Python.
    """
    tree = _tree(tests)
    modules: list[str] = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    names = [module.split(".")[0] for module in modules]
    return next((name for name in names if name not in sys.stdlib_module_names), None)


def called(tests: str, setup: str = "") -> list[str]:
    """The functions of the program that tests, and what is run before them, use: what they import
    from `solution`, and what they neither define nor import. Where there is none, the builtins that
    the tests call, one of which the program has to define.

    Raises SyntaxError.
    """
    bound = _bound(setup) | _bound(tests)
    used = [name for source in (setup, tests) for name in _used(source)]
    unbound = [n for n in used if n not in bound and not hasattr(builtins, n)]
    of_program = dict.fromkeys([*_from_solution(setup), *_from_solution(tests), *unbound])
    return list(of_program) or [n for n in _called(tests) if n not in bound and n in _used(tests)]


def defines(names: Iterable[str], defined: Collection[str]) -> bool:
    """Whether a program that defines these names has those that its tests call (`called`): a
    builtin may be Python's own, but not all of them.
    """
    missing = [name for name in names if name not in defined]
    return len(missing) < len(list(names)) and all(hasattr(builtins, n) for n in missing)


def _scopes(source: str) -> list[symtable.SymbolTable]:
    """The scopes of a program, that of the module first. Raises SyntaxError."""
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scopes = [symtable.symtable(source, "<tests>", "exec")]
    for scope in scopes:
        scopes.extend(scope.get_children())
    return scopes


def _bound(source: str) -> set[str]:
    """The names that a module defines, assigns or imports for all of its scopes."""
    module, *inner = _scopes(source)
    names = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    for scope in inner:
        symbols = [s for s in scope.get_symbols() if s.is_declared_global() and s.is_assigned()]
        names |= {symbol.get_name() for symbol in symbols}
    return names


def _used(source: str) -> list[str]:
    """The names that are read from a module's own scope, in whatever scope they are read."""
    module, *inner = _scopes(source)
    symbols = [s for s in module.get_symbols() if s.is_referenced()]
    symbols += [
        s for scope in inner for s in scope.get_symbols() if s.is_global() and s.is_referenced()
    ]
    return list(dict.fromkeys(symbol.get_name() for symbol in symbols))


def _called(source: str) -> list[str]:
    """The plain names that are called anywhere."""
    calls = [node.func for node in ast.walk(_parsed(source)) if isinstance(node, ast.Call)]
    return list(dict.fromkeys(func.id for func in calls if isinstance(func, ast.Name)))


def _from_solution(source: str) -> list[str]:
    """The names that are imported from `solution`, or are attributes of it."""
    nodes = list(ast.walk(_parsed(source)))
    names: list[str] = []
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            names += [alias.name for alias in node.names if alias.name != "*"]
        elif isinstance(node, ast.Import):
            modules |= {a.asname or a.name for a in node.names if a.name == "solution"}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    for node in attributes:
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            names.append(node.attr)
    return list(dict.fromkeys(names))
