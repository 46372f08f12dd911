"""What the code may look like: who imports whom, how long things get, what is caught."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "comas"
FILES = sorted(p for p in SOURCE.rglob("*.py"))
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in FILES}


def imports(tree: ast.AST, lazy: bool) -> set[str]:
    """Modules imported at the top of a file; with `lazy` also those inside functions."""
    checks = {id(n) for c in ast.walk(tree) if isinstance(c, ast.If) and "TYPE_CHECKING" in ast.dump(c.test) for n in ast.walk(c)}
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in checks or (id(node) in inside and not lazy):
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_stays_in_engines_and_learners(path: Path) -> None:
    at_home = path.parent.name in ("engines", "learners") or path.name == "teach.py"
    heavy = {"torch", "transformers", "peft", "ray", "vllm", "datasets"}
    assert at_home or not {m.split(".")[0] for m in imports(TREES[path], lazy=False)} & heavy


ALLOWED = {
    "methods": {"types", "agent", "credit", "losses", "wording"}, "setups": {"types", "agent", "wording"}, "tasks": {"types"},
}


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name in ALLOWED], ids=lambda p: p.name)
def test_plugins_look_down_only(path: Path) -> None:
    ours = {m.split(".")[1] for m in imports(TREES[path], lazy=True) if m.startswith("comas.")}
    assert ours <= ALLOWED[path.parent.name]


def test_the_core_points_one_way() -> None:
    order = ["types", "agent", "play", "evaluate", "train", "cli"]
    for i, name in enumerate(order):
        ours = {m.split(".")[1] for m in imports(TREES[SOURCE / f"{name}.py"], lazy=True) if m.startswith("comas.")}
        assert not ours & set(order[i + 1 :]), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < (120 if path.parent.name == "methods" else 400)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


def test_no_file_is_called_after_nothing() -> None:
    assert not {p.stem for p in FILES} & {"utils", "util", "common", "base", "helpers", "misc"}
    names = {n.name for t in TREES.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)}
    assert not [n for n in names if n.endswith(("Manager", "Controller", "Wrapper", "Processor", "Maker"))]
