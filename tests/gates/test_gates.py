"""What the code may look like: who imports whom, how long things get, what is caught."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import FunctionType

from comas.config.plugins import KINDS
from comas.training import metrics

SOURCE = Path(__file__).parents[2] / "src" / "comas"
FILES = sorted(p for p in SOURCE.rglob("*.py"))
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in FILES}


HEAVY = {
    *("torch", "transformers", "tokenizers", "peft", "ray", "vllm", "datasets"),
    *("mlflow", "tensorboard", "trackio", "wandb"),
}


@cache
def imports(tree: ast.AST, lazy: bool) -> set[str]:
    """Modules imported at the top of a file; with `lazy` also those inside functions."""
    checks = {
        id(n)
        for c in ast.walk(tree)
        if isinstance(c, ast.If) and "TYPE_CHECKING" in ast.dump(c.test)
        for n in ast.walk(c)
    }
    inside = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        for n in ast.walk(f)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in checks or (id(node) in inside and not lazy):
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found.add(module)
            if module == "comas":  # `from comas import memory`
                found |= {f"comas.{a.name}" for a in node.names}
    return found


def test_imports_name_the_whole_way() -> None:
    for path in FILES:
        nodes = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.ImportFrom)]
        assert not [node.lineno for node in nodes if node.level], path


def test_no_test_hides_another_of_its_name() -> None:
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert len(names) == len(set(names)), path


def room(path: Path) -> str:
    """The folder of the package that a file is in, or its own name at the root: what walls are
    built between.
    """
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def seen(path: Path) -> set[str]:
    """Other rooms that a file imports from, inside functions too."""
    ours = {m for m in imports(TREES[path], lazy=True) if m.startswith("comas.")}
    return {m.split(".")[1] for m in ours} - {room(path)}


def test_torch_stays_in_engines_and_learners() -> None:
    for path in FILES:
        at_home = room(path) in ("engines", "learners") or path.name == "teach.py"
        top = {m.split(".")[0] for m in imports(TREES[path], lazy=False)}
        assert at_home or not top & HEAVY, path


LAZY = {
    "models/loading.py": {"torch", "transformers"},
    "testing/tiny.py": {"torch", "transformers", "tokenizers"},
    "testing/engines.py": {"torch", "transformers"},
    "installed.py": {"torch"},
    "machine.py": {"torch"},
    "models/gguf.py": {"transformers"},
    "memory.py": {"transformers"},
    "questions/sources.py": {"datasets"},
    "hosts/ray.py": {"ray"},
    "trackers/mlflow.py": {"mlflow"},
    "trackers/tensorboard.py": {"torch"},
    "trackers/trackio.py": {"trackio"},
    "trackers/wandb.py": {"wandb"},
}
"""Who may import heavy things inside functions, besides those that are at home there."""


def test_heavy_imports_inside_functions_are_few_and_known() -> None:
    for path in FILES:
        if room(path) not in ("engines", "learners") and path.name != "teach.py":
            heavy = {m.split(".")[0] for m in imports(TREES[path], lazy=True)} & HEAVY
            assert heavy == LAZY.get(path.relative_to(SOURCE).as_posix(), set()), path


WALLS = {
    "answers": "children machine questions sandbox types",
    "config": "engines game hosts learners machine models objective program seams storage sync types",
    "display": "evaluation hooks stats storage team types",
    "engines": "seams sync types",
    "evaluation": "answers config game hooks hosts learners machine memory methods models objective program questions"
    " setups signals stats storage sync tasks team testing types",
    "export": "config evaluation learners models program stats storage types",
    "memory": "config engines hosts learners machine models types",
    "game": "types",
    "hosts": "children engines game learners machine models program seams sync types",
    "learners": "models objective seams types",
    "methods": "game objective setups types",
    "models": "engines machine storage types",
    "monitors": "game stats types",
    "objective": "types",
    "questions": "config game types",
    "sandbox": "types",
    "serve": "config evaluation game hosts signals storage sync team types",
    "setups": "game types",
    "storage": "program types",
    "tasks": "answers game questions sandbox types",
    "team": "config game hosts learners machine program sandbox sync types",
    "testing": "config game hosts learners questions seams storage tasks team types",
    "view": "game storage types",  # of game only how an unreadable reply is noted
    "tools": "sandbox types",
    "trackers": "hooks program storage types",
    "training": "config evaluation game hooks machine memory monitors objective program questions seams"
    " signals stats storage sync team testing trackers types",
}
"""Room -> all that it sees of ours."""


def test_walls() -> None:
    for path in (p for p in FILES if room(p) in WALLS):
        assert seen(path) <= set(WALLS[room(path)].split()), path


def test_the_core_needs_no_library_but_numpy_and_scipy() -> None:
    for path in (p for p in FILES if room(p) in ("types", "game", "objective", "stats")):
        top = {m.split(".")[0] for m in imports(TREES[path], lazy=True)} - {"comas", ""}
        assert top <= set(sys.stdlib_module_names) | {"numpy", "scipy", "annotated_types"}, path


def test_no_file_is_called_after_nothing() -> None:
    assert not {p.stem for p in FILES} & {"utils", "util", "common", "base", "helpers", "misc"}
    names = {n.name for t in TREES.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)}
    assert not [
        n for n in names if n.endswith(("Manager", "Controller", "Wrapper", "Processor", "Maker"))
    ]


def blind(text: str) -> list[int]:
    """Lines that catch everything and give no reason behind `noqa: BLE001`."""
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            kinds = (
                {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
                if node.type
                else {"BaseException"}
            )
            excused = re.search(r"# noqa: BLE001 - \w+", lines[node.lineno - 1])
            again = any(
                isinstance(n, ast.Raise) and (n.exc is None or n.cause is not None)
                for n in ast.walk(node)
            )
            if kinds & {"Exception", "BaseException"} and not excused and not again:
                found.append(node.lineno)
    return found


def test_nothing_is_caught_blindly_without_a_reason() -> None:
    for path in FILES:
        assert not blind(path.read_text(encoding="utf-8")), path


def test_the_gate_against_blind_catching_closes() -> None:
    caught = "try:\n    x\nexcept {}\n    pass\n"
    assert (
        blind(caught.format("Exception:"))
        == blind(caught.format("(OSError, BaseException) as e:"))
        == [3]
    )
    assert blind("try:\n    x\nexcept:\n    pass\n") == [3]
    assert blind(caught.format("Exception:  # noqa: BLE001")) == [3]
    assert not blind(caught.format("Exception:  # noqa: BLE001 - carried over"))
    assert not blind(caught.format("OSError:"))
    assert not blind("try:\n    x\nexcept Exception:\n    raise\n")
    assert not blind("try:\n    x\nexcept Exception as e:\n    raise OSError from e\n")
    assert blind("try:\n    x\nexcept Exception:\n    raise OSError\n") == [3]


def test_every_file_opens_with_what_it_is() -> None:
    for path in FILES:
        said = ast.get_docstring(TREES[path]) or not path.read_text(encoding="utf-8")
        assert said or path.name == "__main__.py", path


RIDDLES = re.compile(r"(Its|Which|What|Those|Of|The same)\b")
"""First words of a docstring that leave open what the thing is."""


def riddles(tree: ast.AST) -> list[int]:
    """Lines with a docstring, also of an attribute, that begins with a word of `RIDDLES`."""
    lines: list[int] = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str) and RIDDLES.match(text.strip()):
                    lines.append(statement.lineno)
    return lines


def test_docstrings_begin_with_a_verb_or_with_what_the_thing_is() -> None:
    for path in FILES:
        assert not riddles(TREES[path]), path


def test_the_gate_on_first_words_of_docstrings_closes() -> None:
    for text in (
        '"""What a run is."""',
        'class Run:\n    """Its folder."""',
        'async def run() -> int:\n    r"""The same as\n    before.\n    """',
        'SHARE = 0.1\n"""Of the memory."""',
        'class Run:\n    step: int\n    """Those before it."""',
        'if True:\n    STEP = 1\n    """Which: the last."""',
    ):
        assert len(riddles(ast.parse(text))) == 1, text
    for text in (
        '"""Whatever a run needs."""',
        'def run() -> int:\n    """Return what it costs, of the same run."""',
        'SHARE = 0.1\n"""Often half of the memory."""',
        'print("What a run is")\nx = "Its folder"',
    ):
        assert not riddles(ast.parse(text)), text


UNPICKLES = SOURCE / "hosts" / "ray.py"
"""In an actor that the same run has started: what it reads was pickled there, and by nobody else."""


def test_nothing_is_evaluated_and_no_pickles_are_read() -> None:
    # which run behind walls
    inside = {SOURCE / "sandbox" / name for name in ("inside.py", "judging.py")}
    for path, tree in [(p, t) for p, t in TREES.items() if p not in inside]:
        calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        if path == UNPICKLES:
            calls -= {"cloudpickle.loads"}
        assert not calls & {
            "eval",
            "exec",
            "pickle.load",
            "pickle.loads",
            "cloudpickle.loads",
            "torch.load",
            "os.system",
        }, path


def asks_for_code(tree: ast.AST) -> list[int]:
    """Lines that load something of a model and do not say whether code of its own may run, which
    transformers then asks of whoever sits at the keyboard.
    """
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            trusted = [k.value for k in node.keywords if k.arg == "trust_remote_code"]
            is_open = not trusted or ast.unparse(trusted[0]) == "None"
            if node.func.attr == "from_pretrained" and is_open:
                lines.append(node.lineno)
    return lines


def test_whether_code_of_a_model_may_run_is_said_wherever_one_is_loaded() -> None:
    for path in FILES:
        assert not asks_for_code(TREES[path]), path


def test_the_gate_on_code_of_models_closes() -> None:
    for line in (
        "AutoConfig.from_pretrained(folder)",
        "transformers.AutoTokenizer.from_pretrained(folder, **arguments)",
        "Model.from_pretrained(folder, trust_remote_code=None).eval()",
    ):
        assert asks_for_code(ast.parse(line)) == [1]
    for line in (
        "AutoConfig.from_pretrained(folder, trust_remote_code=False)",
        "Model.from_pretrained(folder, trust_remote_code=trusted, **arguments)",
    ):
        assert not asks_for_code(ast.parse(line))


def asks_for_kinds(tree: ast.AST) -> list[int]:
    """Lines that ask what kind of host something is: `isinstance(host, ...)`, `getattr(host, ...)`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            asked = ast.unparse(node.args[0])
            kinds = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
            about = re.search(r"\bhosts?\b", asked) and "config" not in asked
            if node.func.id in ("isinstance", "getattr", "hasattr") and (
                re.search(r"Host\b", kinds) or (about and node.func.id != "isinstance")
            ):
                found.append(node.lineno)
    return found


HOST_TABLES = {"config/schema.py", "evaluation/spec.py"}
"""Here `host` is a table of the config, whose keys are asked for by name."""


def test_nobody_asks_what_kind_a_host_is() -> None:
    for path in FILES:
        if path.relative_to(SOURCE).as_posix() not in HOST_TABLES | {"memory.py"}:
            assert not asks_for_kinds(TREES[path]), path


def test_no_type_is_ignored_on_a_host() -> None:
    for path in (p for p in FILES if room(p) in ("hosts", "team", "training", "evaluation")):
        assert "type: ignore" not in path.read_text(encoding="utf-8"), path


def test_the_gate_on_kinds_of_hosts_closes() -> None:
    for line in (
        "isinstance(h, ApiHost)",
        "getattr(host, 'meter', None)",
        "hasattr(team.hosts[name], 'x')",
    ):
        assert asks_for_kinds(ast.parse(line)) == [1]
    assert not asks_for_kinds(ast.parse("isinstance(host, Mapping)"))


BASE_NAMES = {
    "at_hand",
    "is_adapter",
    "is_seed",
    "place_of_model",
    "run_at",
    "snapshot",
}
"""What asks what the name of a base means."""


def derived(tree: ast.AST) -> list[int]:
    """Lines that work out by themselves which policy or base an agent has."""
    lines = []
    for node in ast.walk(tree):
        alternatives = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        first = node.values[0] if alternatives else None
        if isinstance(first, ast.Attribute) and first.attr in ("policy", "base"):
            lines.append(node.lineno)
        if isinstance(node, ast.Call) and ".get('policy'" in ast.unparse(node):
            lines.append(node.lineno)
    return lines


def test_policies_and_bases_are_resolved_once() -> None:
    for path in (p for p in FILES if room(p) != "config"):
        assert not derived(TREES[path]), path
        if path != SOURCE / "models" / "sources.py":
            names = {n.id for n in ast.walk(TREES[path]) if isinstance(n, ast.Name)}
            assert not names & BASE_NAMES, path


def test_the_gate_for_policies_closes() -> None:
    for line in ("a.policy or name", "x = a.base or host.base", "t.get('policy', n)"):
        assert derived(ast.parse(line)) == [1]
    assert not derived(ast.parse("plan.policy"))


def circles(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Edges that lie on a circle."""

    def reaches(start: str, end: str) -> bool:
        todo, done = [start], set()
        while todo:
            place = todo.pop()
            if place == end:
                return True
            if place not in done:
                done.add(place)
                todo += graph.get(place, ())
        return False

    return {(a, b) for a, there in graph.items() for b in there if reaches(b, a)}


def test_the_graph_of_folders_has_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if room(path) not in ("__init__", "__main__"):
            graph.setdefault(room(path), set()).update(seen(path))
    assert not circles(graph)


def test_the_gate_against_circles_closes() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}}) == {
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
    }


def test_training_shows_nothing_and_nobody_imports_the_command_line() -> None:
    for path in FILES:
        if room(path) in ("training", "evaluation", "hosts", "team"):
            assert not seen(path) & {"display", "cli"}, path
        if room(path) not in ("cli", "__init__", "__main__"):
            assert "cli" not in seen(path), path


def test_importing_the_package_reads_no_arguments_and_exits_nothing() -> None:
    text = (SOURCE / "__init__.py").read_text(encoding="utf-8")
    assert not re.search(r"argv|SystemExit|exit\(|comas\.cli", text)


def test_the_shipped_plugins_are_the_files_that_define_one() -> None:
    for kind, (folder, defines, made, names) in KINDS.items():
        if made is not FunctionType:
            continue
        function = defines.partition("(")[0]
        modules = {
            (path.parent.name if path.stem == "__init__" else path.stem)
            for path in FILES
            if path.is_relative_to(SOURCE / folder)
            and any(isinstance(n, ast.FunctionDef) and n.name == function for n in TREES[path].body)
        }
        assert modules == {*names}, kind


def test_each_metric_of_a_step_is_in_the_one_list() -> None:
    """One that is not listed would run in no run."""
    functions = {
        name
        for name, function in vars(metrics).items()
        if isinstance(function, FunctionType)
        and function.__module__ == metrics.__name__
        and list(inspect.signature(function).parameters) == ["step"]
        and not name.startswith("_")
    }
    assert functions == set(metrics.METRICS)
