"""What the code may look like: who imports whom, how long things get, what is caught."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "comas"
FILES = sorted(p for p in SOURCE.rglob("*.py"))
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in FILES}


HEAVY = {"torch", "transformers", "tokenizers", "peft", "ray", "vllm", "datasets"}


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
    assert at_home or not {m.split(".")[0] for m in imports(TREES[path], lazy=False)} & HEAVY


LAZY = {
    "hosts/local.py": {"torch", "transformers"}, "testing.py": {"torch", "transformers", "tokenizers"},
    "estimate.py": {"torch"}, "machine.py": {"torch"},
    "lengths.py": {"transformers"},
    "rows.py": {"datasets"},
}
"""Who may import heavy things inside functions, besides those that are at home there."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_heavy_imports_inside_functions_are_few_and_known(path: Path) -> None:
    if path.parent.name not in ("engines", "learners") and path.name != "teach.py":
        heavy = {m.split(".")[0] for m in imports(TREES[path], lazy=True)} & HEAVY
        assert heavy == LAZY.get(path.relative_to(SOURCE).as_posix(), set())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_engines_and_learners_know_nothing_of_games(path: Path) -> None:
    below = {"engines": {"types", "engines", "learners"}, "learners": {"bases", "types", "losses", "learners"}}
    if path.parent.name in below:
        ours = {m for m in imports(TREES[path], lazy=True) if m.startswith("comas.")}
        assert {m.split(".")[1] for m in ours} <= below[path.parent.name]


ALLOWED = {
    "methods": {"types", "agent", "credit", "losses", "wording", "majority"}, "setups": {"types", "agent", "wording", "majority"},
    "tasks": {"types", "rows", "answers"},
}


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name in ALLOWED], ids=lambda p: p.name)
def test_plugins_look_down_only(path: Path) -> None:
    ours = {m.split(".")[1] for m in imports(TREES[path], lazy=True) if m.startswith("comas.")}
    assert ours <= ALLOWED[path.parent.name]


def test_the_core_points_one_way() -> None:
    order = ["types", "agent", "play", "evaluate", "train", "cli"]
    for name in ("types", "agent", "credit", "losses", "wording", "stats"):
        top = {m.split(".")[0] for m in imports(TREES[SOURCE / f"{name}.py"], lazy=True)} - {"comas"}
        assert top <= set(sys.stdlib_module_names) | {"numpy", "scipy", "annotated_types"}, name
    for name in ("credit", "losses"):
        assert {m for m in imports(TREES[SOURCE / f"{name}.py"], lazy=True) if m.startswith("comas.")} <= {"comas.types"}
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


def blind(text: str) -> list[int]:
    """Lines that catch everything and give no reason behind `noqa: BLE001`."""
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            kinds = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
            excused = re.search(r"# noqa: BLE001 - \w+", lines[node.lineno - 1])
            again = any(isinstance(n, ast.Raise) and (n.exc is None or n.cause is not None) for n in ast.walk(node))
            if kinds & {"Exception", "BaseException"} and not excused and not again:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_nothing_is_caught_blindly_without_a_reason(path: Path) -> None:
    assert not blind(path.read_text(encoding="utf-8"))


def test_the_gate_against_blind_catching_closes() -> None:
    caught = "try:\n    x\nexcept {}\n    pass\n"
    assert blind(caught.format("Exception:")) == blind(caught.format("(OSError, BaseException) as e:")) == [3]
    assert blind("try:\n    x\nexcept:\n    pass\n") == [3]
    assert blind(caught.format("Exception:  # noqa: BLE001")) == [3]
    assert not blind(caught.format("Exception:  # noqa: BLE001 - carried over"))
    assert not blind(caught.format("OSError:"))
    assert not blind("try:\n    x\nexcept Exception:\n    raise\n")
    assert not blind("try:\n    x\nexcept Exception as e:\n    raise OSError from e\n")
    assert blind("try:\n    x\nexcept Exception:\n    raise OSError\n") == [3]


def test_the_loop_and_the_methods_are_short() -> None:
    (loop,) = [n for n in ast.walk(TREES[SOURCE / "train.py"]) if isinstance(n, ast.AsyncFunctionDef) and n.name == "loop"]
    assert (loop.end_lineno or 0) - loop.lineno + 1 < 80
    methods = [p for p in FILES if p.parent.name == "methods" and p.name != "__init__.py"]
    assert len(methods) >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_every_file_opens_with_what_it_is(path: Path) -> None:
    assert not path.read_text(encoding="utf-8") or ast.get_docstring(TREES[path]) or path.name == "__main__.py"


def test_nothing_is_evaluated_and_no_pickles_are_read() -> None:
    inside = SOURCE / "sandbox" / "inside.py"  # which runs behind walls
    for path, tree in [(p, t) for p, t in TREES.items() if p != inside]:
        calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        assert not calls & {"eval", "exec", "pickle.load", "pickle.loads", "torch.load", "os.system"}, path
