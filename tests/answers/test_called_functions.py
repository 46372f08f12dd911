"""How tests find the functions of a program: by names without a scope of their own, by imports from
`solution`, and by names of builtins where they call nothing else.
"""

from __future__ import annotations

import sys

import pytest

from comas.answers import code
from comas.sandbox import check
from comas.tasks.mbpp_repair import read_question, written
from comas.types import Question

FINDS = [
    ("assert sum([1, 2]) == 3", ["sum"]),
    ("assert divmod(7, 2) == (3, 1)\nassert divmod(8, 2) == (4, 0)", ["divmod"]),
    ("assert set(f([1])) == {1}", ["f"]),
    ("assert sorted(filter([3, 1])) == [1]", ["sorted", "filter"]),
    ("from solution import max\nassert max([1, 2]) == 2", ["max"]),
    ("from solution import f as g\nassert g(len([1])) == 2", ["f"]),
    ("import solution\nassert solution.f(2) == 3", ["f"]),
    ("import solution as s\nassert s.f(2) == s.g(3)", ["f", "g"]),
    ("from solution import *\nassert f(1) == 2", ["f"]),
    ("def same(f):\n    return f\nassert f(1) == same(2)", ["f"]),
    ("assert [f for f in (1, 2)] == [1, 2]\nassert f(1) == 2", ["f"]),
    ("assert (lambda f: f)(2) == f(1)", ["f"]),
    ("def test_it():\n    f = 2\n    assert f == 2\nassert f(1) == 2", ["f"]),
    ("f = 2\nassert f == 2", []),
    ("def f(x):\n    return x\nassert f(1) == 1", []),
    ("def make():\n    global f\n    f = abs\nmake()\nassert f(1) == 1", []),
    ("assert True", []),
]


@pytest.mark.parametrize(("tests", "names"), FINDS)
def test_names_of_the_program_in_its_tests(tests: str, names: list[str]) -> None:
    assert code.called(tests) == names


def test_helpers_of_the_setup_call_the_program_too() -> None:
    setup = "from math import inf\ndef check_it(x):\n    assert f(x) == inf"
    assert code.called("check_it(1)", setup) == ["f"]
    assert code.called("assert len([1]) == 1", "numbers = list(range(3))") == ["len"]


def test_replies_are_read_for_functions_that_are_named_like_builtins() -> None:
    asked = Question(id="q", prompt="?", kind="coding", meta={"names": ["sorted", "filter"]})
    program = "def filter(x):\n    return x"
    assert code.extract(asked, program) == program
    assert code.extract(asked, "def other(x):\n    return x") is None
    repair = "def sum(a):\n    return 0", "assert sum([1]) == 1"
    assert read_question(written(*repair)) == repair
    assert read_question(written("def total(a):\n    return 0", repair[1])) is None


def verdict(program: str, tests: str) -> str:
    if sys.platform != "linux":
        pytest.skip("the sandbox needs Linux")
    return check(program, tests, names=code.called(tests)).verdict


SUM = "assert sum([1, 2]) == 3\nassert sum([]) == 0"
NEXT = "assert next(5) == 6"
JUDGED = [
    ("def sum(a): return 0", SUM, "wrong"),
    ("def sum(a): return len(a) and a[0] + a[1]", SUM, "right"),
    ("def total(a): return 3", SUM, "wrong"),
    ("def next(n): return n + 1", NEXT, "right"),
    ("def next(n): return n", NEXT, "wrong"),
    ("def max(a): return 0", "from solution import max\nassert max([1, 2]) == 2", "wrong"),
    ("f = max", "from solution import max, f\nassert max([1, 2]) == 2", "wrong"),
    ("def filter(a): return a[:1]", "assert sorted(filter([3, 1])) == [3]", "right"),
    ("def sorted(a): return 1", "assert list(filter(None, [3])) == [3]", "wrong"),
    ("def f(x): return x + 1", "def same(f):\n    return f\nassert f(1) == same(2)", "right"),
    ("def f(x): return x", "assert [f for f in (1,)] == [1] and f(1) == 2", "wrong"),
    ("def f(x): return x + 1", "import solution\nassert solution.f(2) == 3", "right"),
    ("def f(x): return x", "import solution as s\nassert s.f(2) == 3", "wrong"),
    ("def f(x): return x + 1", "from solution import f as g\nassert g(2) == 3", "right"),
    ("def f(x): return x", "from solution import *\nassert f(2) == 3", "wrong"),
    ("def f(x): return x", "assert 1 + 1 == 2", "failed"),
    ("def f(x): return x", "def never():\n    f(1)\nassert 1 + 1 == 2", "failed"),
]


@pytest.mark.parametrize(("program", "tests", "right"), JUDGED)
def test_the_programs_own_function_is_called(program: str, tests: str, right: str) -> None:
    assert verdict(program, tests) == right


def expecting(call: str, error: str, more: str = "True") -> str:
    """A test that `call` raises `error` of which `more` holds."""
    return f"try:\n    {call}\nexcept {error} as e:\n    assert {more}\nelse:\n    assert False"


RAISED = [
    ("x = 1", expecting("f(1)", "KeyError"), "wrong"),
    ("x = 1", expecting("f(1)", "Exception"), "wrong"),
    ("x = 1", "import solution\n" + expecting("solution.f(1)", "Exception"), "wrong"),
    ("f = 1", expecting("f(1)", "TypeError"), "right"),
    ("import json\nf = json.loads", expecting("f('{')", "ValueError"), "right"),
    ("import json\nf = json.loads", expecting("f('{')", "KeyError"), "wrong"),
    ("f = bytes.decode", expecting(r"f(b'\xff')", "UnicodeDecodeError", "e.start == 0"), "right"),
    ("f = bytes.decode", expecting(r"f(b'\xff')", "UnicodeError", "e.start == 1"), "wrong"),
    ("def f(x): raise KeyError(x)", expecting("f('a')", "KeyError", "str(e) == \"'a'\""), "right"),
    ("def f(x): raise OSError(2, x)", expecting("f('a')", "FileNotFoundError"), "right"),
    (
        "class Own(LookupError):\n    pass\ndef f(x): raise Own(x, 2)",
        expecting("f(1)", "LookupError", "e.args == (1, 2)"),
        "right",
    ),
    (
        "class Own(Exception):\n    pass\ndef f(x): raise Own(x, 2)",
        expecting("f(1)", "LookupError"),
        "wrong",
    ),
    (
        "def f(x): raise ValueError(f)",
        expecting("f(1)", "ValueError", "'function' in str(e)"),
        "right",
    ),
    ("def f(x): raise StopIteration", "for x in [1]:\n    f(x)\nassert True", "wrong"),
    ("import sys\ndef f(x): sys.exit(0)", "f(1)\nassert True", "wrong"),
]


@pytest.mark.parametrize(("program", "tests", "right"), RAISED)
def test_errors_arrive_as_what_they_are(program: str, tests: str, right: str) -> None:
    assert verdict(program, tests) == right


@pytest.mark.parametrize("call", ["f(a)", "f(x=a)"])
@pytest.mark.parametrize(
    ("values", "after"), [("[2, 1]", "[]"), ("{2: 1}", "{}"), ("{2, 1}", "set()")]
)
def test_changes_of_arguments_are_seen_however_they_are_given(
    call: str, values: str, after: str
) -> None:
    tests = f"a = {values}\n{call}\nassert a == {after}"
    assert verdict("def f(x): x.clear()", tests) == "right"
    assert verdict("def f(x): return x", tests) == "wrong"
