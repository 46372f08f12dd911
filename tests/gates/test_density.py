"""How dense the code may be: what a statement, a function and a file may hold.

Limits in lines were kept by compressing. These count nodes of the syntax tree per simple statement,
and statements per function and file, so that dividing is what helps. A folder that is denser than the
aim has a ceiling of its own, which may only be lowered.
"""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "comas"
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py"))}

AIM = (11, 25)
"""Nodes per simple statement: the median and the 90th percentile of a folder."""
CEILINGS = {
    "answers": (11, 26),
    "cli": (12, 22),
    "config": (13, 25),
    "display": (13, 23),
    "engines": (14, 26),
    "evaluation": (14, 24),
    "export": (14, 24),
    "forecast": (13, 25),
    "game": (13, 27),
    "learners": (14, 29),
    "methods": (14, 25),
    "monitors": (12, 22),
    "objective": (13, 25),
    "questions": (14, 24),
    "seed": (13, 31),
    "setups": (15, 25),
    "studies": (12, 25),
    "tasks": (14, 26),
    "team": (12, 25),
    "testing": (14, 27),
    "training": (12, 27),
}
"""Folder -> what it still holds where that is above the aim."""

FILE = 220
"""Statements per file."""
FUNCTION = 40
"""Statements per function."""
LARGE = {}
"""File -> its ceiling, where it is not divided yet."""


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_simple(node: ast.AST) -> bool:
    """Whether this is a statement without a body; imports say nothing of density."""
    if not isinstance(node, ast.stmt) or isinstance(node, ast.Import | ast.ImportFrom):
        return False
    return not hasattr(node, "body") and not is_docstring(node)


def statements(tree: ast.AST) -> int:
    """Statements below a node, docstrings apart."""
    below = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n is not tree]
    return sum(not is_docstring(n) for n in below)


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "."


def density(folder: str) -> tuple[float, int]:
    """Median and 90th percentile of nodes per simple statement."""
    trees = [tree for path, tree in TREES.items() if folder_of(path) == folder]
    simple = [n for tree in trees for n in ast.walk(tree) if is_simple(n)]
    sizes = sorted(sum(1 for _ in ast.walk(n)) for n in simple)
    return statistics.median(sizes), sizes[int(0.9 * len(sizes))]


FOLDERS = sorted({folder_of(p) for p in TREES})


@pytest.mark.parametrize("folder", FOLDERS)
def test_statements_hold_little(folder: str) -> None:
    median, most = density(folder)
    highest = CEILINGS.get(folder, AIM if folder != "." else (11, 28))
    assert median <= highest[0]
    assert most <= highest[1]


@pytest.mark.parametrize("path", TREES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_files_and_functions_are_divided(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    assert statements(TREES[path]) <= LARGE.get(name, FILE)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert statements(node) <= FUNCTION, node.name


def test_unrelated_values_are_not_assigned_together() -> None:
    """Sixteen are left: swaps, and values of which one needs what another had before."""
    pairs = [
        node
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ]
    assert len(pairs) <= 16


def test_the_gates_close() -> None:
    tree = ast.parse('def f():\n    """Say."""\n    x = 1\n    return x\n')
    assert statements(tree) == 3
    assert [is_simple(n) for n in ast.walk(tree) if isinstance(n, ast.stmt)].count(True) == 2
