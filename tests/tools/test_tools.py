"""The tools that are shipped: what they give back, what they refuse, how they are named."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.config.plan import plan
from comas.config.plugins import plugin_names
from comas.config.schema import checked
from comas.sandbox import Ran
from comas.sandbox.jail import Limits
from comas.tools import calculator, python, search
from comas.types import ToolFailure, UserMistake
from tests.support.platforms import needs_sandbox


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3 + 4 * 2", "11"),
        ("2 ** 100", str(2**100)),
        ("7 × 6 =", "42"),
        ("10 / 4", "2.5"),
        ("123456789012345678 / 2", "61728394506172839"),
        ("10 ** 20 / 10 ** 2", "1000000000000000000"),
        ("-7 / 7", "-1"),
        ("7.0 / 7", "1"),
        ("sqrt(2)", "1.41421356237"),
        ("2^5", "32"),
        ("-(3 - 5)", "2"),
        ("max(3, 4, 5) % 3", "2"),
        ("factorial(20)", "2432902008176640000"),
        ("round(2.567, 2)", "2.57"),
        ("round(1234, -2)", "1200"),
        ("round(2.5)", "2"),
        ("2 ** -2000", "0"),
    ],
)
def test_arithmetic(expression: str, value: str) -> None:
    assert calculator.calculate(expression) == value


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_whole_numbers_stay_exact(a: int, b: int) -> None:
    assert calculator.calculate(f"({a}) * ({b}) - ({b})") == str(a * b - b)


@pytest.mark.parametrize(
    "expression",
    [
        *("", "x", "__import__('os')", "().__class__", "'a' * 9", "1 / 0", "2 ** 99999"),
        *("9 ** 9 ** 9", "factorial(1e9)", "factorial(999999)", "1 if 1 else 2", "(-8) ** 0.5"),
        *("1" * 1001, "(" * 500, "lambda: 0", "sqrt(-1)", "True + 1", "1e308 * 10"),
        *("round(5, -10 ** 9)", "round(5, 10 ** 9)", "round(1, 2, 3)", "0.5 ** -2000"),
    ],
)
def test_what_is_no_arithmetic_is_refused_at_once(expression: str) -> None:
    began = time.monotonic()
    with pytest.raises(ToolFailure):
        calculator.calculate(expression)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("print(3)\n4 + 4", "3\n8"),
        ("x = 3", "(nothing was printed)"),
        ("```python\nx = 3\nx * 2\n```", "6"),
        ("print(1)\nraise SystemExit", "1"),
        ("import sys\nprint(1)\nsys.exit(0)", "1"),
    ],
)
@needs_sandbox
def test_programs_say_what_they_print(program: str, printed: str) -> None:
    assert python.run(program, seconds=20) == printed


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("print(1)\nraise ValueError('no')", "1\nValueError: no"),
        ("def f(:", "SyntaxError: invalid syntax (<unknown>, line 1)"),
        ("import sys\nsys.exit(3)", "the program ended with an exit code that is not 0"),
        ("printed = 3\nprint(1)\nraise SystemExit('bad')", "1"),
    ],
)
@needs_sandbox
def test_a_program_that_ends_by_an_error_failed_and_says_what_it_printed(
    program: str, told: str
) -> None:
    with pytest.raises(ToolFailure) as failure:
        python.run(program, seconds=20)
    assert str(failure.value) == told


@needs_sandbox
def test_a_program_is_held_by_walls_and_limits() -> None:
    with pytest.raises(ToolFailure, match="No such file"):
        python.run("open('/etc/passwd')", seconds=20)
    with pytest.raises(ToolFailure, match="longer than 1 s"):
        python.run("while True: pass", seconds=1)
    assert len(python.run("print('x' * 10 ** 7)", seconds=20)) == 10**6


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    pytest.importorskip("bm25s")
    (tmp_path / "animals.txt").write_text("A cat is a feline.\n\nDogs ran 7 miles.\n\nFish swim.")
    below = tmp_path / "places"
    below.mkdir()
    row = {"title": "Paris", "text": "The capital of France."}
    (below / "cities.jsonl").write_text(json.dumps(row) + "\n")
    (below / "picture.png").write_bytes(b"\x89PNG capital")
    return tmp_path


def test_the_best_passages_come_back_whatever_kind_of_file_they_are_in(texts: Path) -> None:
    tool = search.make(folder=str(texts))
    assert tool.run("capital of France") == "Paris\nThe capital of France."
    assert tool.run("7").splitlines() == ["Dogs ran 7 miles."]
    with pytest.raises(ToolFailure, match="'zebra'"):
        tool.run("zebra")
    with pytest.raises(ToolFailure):
        tool.run("?!")
    assert tool.some is not None
    assert tool.some("a") == tool.some("a")


def test_a_text_in_a_line_of_json_may_hold_other_ends_of_lines(texts: Path) -> None:
    rows = [{"text": "a zebra\u2028runs"}, {"text": "a yak\u0085walks"}]
    written = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (texts / "more.jsonl").write_bytes(written.encode())
    tool = search.make(folder=str(texts))
    assert tool.run("zebra") == "a zebra\u2028runs"
    assert tool.run("yak") == "a yak\u0085walks"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tools": ["serch"]}, "tools = 'serch': did you mean search"),
        (
            {"tools": ["search"], "tool_options": {"search": {"folder": "nowhere"}}},
            "tool_options.search.folder = 'nowhere': no such folder",
        ),
        (
            {"tools": ["calculator"], "tool_options": {"python": {"seconds": 1}}},
            "unknown key tool_options.python",
        ),
        (
            {"tools": ["python"], "tool_options": {"python": {"second": 1}}},
            "unknown key tool_options.python.second: did you mean seconds",
        ),
        ({"tools": ["calculator", "calculator"]}, "'calculator' stands there twice"),
        ({"tools": ["./mine.py"]}, "no such file"),
    ],
)
def test_mistakes_are_one_line(keys: dict, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserMistake, match=message):
        plan(checked(keys))


def test_a_tool_of_ones_own_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "echo.py"
    file.write_text(
        "from comas.types import Tool\n"
        "def make(*, times: int = 1):\n"
        "    return Tool(name='echo', does='repeats', argument='words', run=lambda w: w * times)\n"
    )
    options = {"echo": {"times": 3}}
    task = plan(checked({"tools": [str(file)], "tool_options": options})).task
    assert task.tools["echo"].run("ab") == "ababab"


TOOL = """
from comas.types import Tool

def make():
    {before}
    return Tool(name="mine", does="answers", argument="words", run={run}, {bounds})
"""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"before": "1 / 0"}, "make() failed: ZeroDivisionError: division by zero"),
        ({"run": "3"}, "run=3 is no function"),
        (
            {"before": "async def later(words): return words", "run": "later"},
            "run is a coroutine: make it a function",
        ),
        ({"bounds": "at_once=0"}, "at_once=0, wanted is a number above 0"),
        ({"bounds": "seconds=0"}, "seconds=0, wanted is a number above 0"),
        ({"bounds": "longest=-3"}, "longest=-3, wanted is a number above 0"),
        ({"bounds": "seconds='9'"}, "seconds='9', wanted is a number above 0"),
    ],
)
def test_a_tool_that_could_not_be_called_is_a_mistake(
    changed: dict[str, str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TOOL.format(**{"before": "pass", "run": "str", "bounds": "", **changed}))
    with pytest.raises(UserMistake) as mistake:
        plan(checked({"tools": [str(file)], "method": "agent0", "task": "pick"}))
    assert message in str(mistake.value)


def test_a_folder_without_texts_is_a_mistake_at_once(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserMistake, match="no text in it"):
        search.make(folder=str(tmp_path))
    (tmp_path / "signs.txt").write_text("?!\n\n--")
    with pytest.raises(UserMistake, match="no text in it"):
        search.make(folder=str(tmp_path)).run("cat")


def test_as_many_passages_come_back_as_are_asked_for_and_whole(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    passages = [f"cat {number} ".ljust(search.LONGEST, "x") for number in range(3)]
    (tmp_path / "cats.txt").write_text("\n\n".join(passages))
    tool = search.make(folder=str(tmp_path))
    assert len(tool.run("cat")) <= tool.longest


def test_all_that_are_shipped_are_found_by_name() -> None:
    assert plugin_names("tool") == ["calculator", "python", "search"]


@needs_sandbox
def test_python_may_compute_as_long_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the clock and of the processor are two limits."""
    limits: list[Limits] = []

    def run(program: str, **given: Any) -> Ran:
        limits.append(given["limits"])
        return Ran("1", "")

    monkeypatch.setattr("comas.sandbox.run", run)
    assert python.run("print(1)", seconds=25) == "1"
    assert (limits[0].seconds, limits[0].cpu) == (25, 25)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("molar mass of iron", "Iron, symbol Fe"),
        ("how many feet in a mile", "a mile 5280 feet"),
        ("speed of light", "299792458 m/s"),
        ("volume of a cone", "base area times height / 3"),
        ("escape velocity", "sqrt(2 G M / r)"),
        ("Nernst equation", "0.05916 / n log10 Q"),
    ],
)
def test_without_a_folder_the_handbook_is_searched(words: str, said: str) -> None:
    assert said in search.make().run(words)


def test_constants_of_the_handbook_are_those_of_scipy() -> None:
    constants = pytest.importorskip("scipy.constants")
    text = (search.HANDBOOK / "physics.md").read_text(encoding="utf-8")
    for pattern, named in {
        r"Planck constant: h = (\S+) J s": "Planck constant",
        r"Boltzmann constant: k = (\S+) J": "Boltzmann constant",
        r"N_A = (\S+) per mole": "Avogadro constant",
        r"R = (\S+) J/": "molar gas constant",
        r"F = (\S+) C/mol": "Faraday constant",
        r"G = (\S+) m\^3": "Newtonian constant of gravitation",
        r"electron (\S+) kg": "electron mass",
        r"proton (\S+) kg": "proton mass",
        r"neutron (\S+) kg": "neutron mass",
        r"Vacuum permittivity: (\S+) F": "vacuum electric permittivity",
        r"Stefan-Boltzmann constant: (\S+) W": "Stefan-Boltzmann constant",
        r"Wien's displacement constant: (\S+) m": "Wien wavelength displacement law constant",
        r"Bohr radius: (\S+) m": "Bohr radius",
    }.items():
        found = re.search(pattern, text)
        assert found, named
        assert float(found[1]) == pytest.approx(constants.physical_constants[named][0], rel=1e-6)


def test_the_handbook_has_all_elements() -> None:
    lines = (search.HANDBOOK / "elements.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    numbers = [int(text.partition("atomic number ")[2].split()[0]) for text in texts]
    assert numbers == list(range(1, 119))
    assert len({text.partition(" is ")[0] for text in texts}) == 118
