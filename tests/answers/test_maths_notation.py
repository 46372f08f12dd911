r"""What the writing of a mathematical answer decides, and what history may not: `5 \text{ million}`
is not 5, `Prais` not Paris.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comas.answers import maths, maths_worker, notation, numbers, parts
from comas.answers.pool import WorkerFailed, Workers
from comas.types import HostFailure, Question

RIGHT = [
    (r"\frac{3}{2}", "1½"),
    ("x^2", "x²"),
    (r"\sqrt{2}", "√2"),
    ("-5", "–5"),
    (r"\infty", "∞"),
    ("90", "90°"),
    ("5", r"\textcolor{red}{5}"),
    ("5", r"\underline{5} \checkmark"),
    (r"(2,\infty)", "x > 2"),
    (r"(-\infty,2)\cup(3,\infty)", r"x<2 \text{ or } x>3"),
    ("5000000", r"5 \text{ million}"),
    (r"5 \text{ million}", "5,000,000"),
    ("60", r"5\text{ dozen eggs}"),
    ("1.5", "1 1/2"),
    (r"\frac{3}{2}", "1 1/2"),
    (r"137 \frac{1}{2}", "137.5"),
    (r"\frac{1}{2}", r"\frac 1 2"),
    ("10", r"\binom52"),
    ("10", r"\binom 5 2"),
    (r"\binom52", "10"),
    ("1000", "1 000"),
    ("1000", r"1\,000"),
    ("1234567", r"1\ 234\ 567"),
    (r"\frac{1}{3}", r"0.\overline{3}"),
    (r"\frac{41}{330}", r"0.1\overline{24}"),
    (r"\frac{1}{3}", "0.333..."),
    ("1000000", "1e6"),
    ("0.00001", "1e-5"),
    ("1e-05", "0.00001"),
    ("0.00001", r"1\times 10^{-5}"),
    ("0.00001", "10^{-5}"),
    ("[1,2]", r"1 \le x \le 2"),
    ("(1,2]", "2 >= x > 1"),
    (r"1 \le x \le 2", r"x \in [1,2]"),
    ("4210_{5}", "4210_5"),
    ("4210_{5}", "4210"),
    ("11_{10}", "11"),
    ("11", "11_{10}"),
    ("Paris", r"\text{paris}"),
    ("H2O", r"\text{H}_2\text{O}"),
    ("New York", r"\textbf{New York}"),
    ("Zürich", "Zu\u0308rich"),
    ("xy", r"x \cdot y"),
    ("2pi", r"2\pi"),
    ("pi/4", r"\frac{\pi}{4}"),
    ("sin(x)", r"\sin x"),
    ("infinity", r"\infty"),
    ("5 apples", "5"),
    ("5", r"5\text{ cm}^2"),
    ("864", r"864 \text{ square inches}"),
    ("1,2", r"1 \text{ and } 2"),
    ("1,2", r"\{2,1\}"),
    ("(1,2)", "1,2"),
    (r"\frac13", "0.333333"),
    (r"\frac{1}{7}", "0.142857"),
    (r"\sqrt{1000001}", "1000.0005"),
    (r"12:00\text{ PM}", "12:00 PM"),
    ("-1 + sqrt(3)", r"\sqrt{3} - 1"),
    ("2**(1/4)", r"\sqrt[4]{2}"),
    ("x**2+1", "x^2+1"),
    ("exp(2)", "e^2"),
    ("abs(x)", "|x|"),
    ("oo", r"\infty"),
    (r"\log_2 8", "3"),
    (r"\log_2 3", r"\log_2(3)"),
    ("_5C_2", "10"),
    ("2^4 3^2 5", "720"),
    (r"\emptyset", r"\varnothing"),
    (r"\langle 1,2\rangle", "(1,2)"),
    ("3:4:5", "6:8:10"),
    ("i", r"\sqrt{-1}"),
    ("10", "€10"),
    ("10", "10€"),
    ("10", "£10"),
    ("10", "10 USD"),
    ("10", "10 km/h"),
    ("10", "10 m^2"),
    ("10", r"10\degree"),
    ("10", r"\underline{10}"),
    ("10", r"\boldsymbol{10}"),
    ("10", r"\displaystyle 10"),
    ("10", r"{\rm 10}"),
    ("10", r"\text{Answer: }10"),
    ("10", r"\text{Total}=10"),
    ("10", "P(A)=10"),
    ("73", "**73**"),
    ("12", "１２"),
    ("12", "١٢"),
    ("1234567", "1.234.567"),
    ("1234567", "12,34,567"),
    ("-5", "－5"),
    ("1000, 2000", "1,000, 2,000"),
    ("10", "10 dollars"),
    ("10", "10 cookies"),
    ("10", "10 apples"),
    ("10", "10 cm"),
    (r"\frac35-\frac45i", r"\frac{3-4i}{5}"),
    ("2i", "(1+i)^2"),
    ("-1", "i^2"),
    ("1000", "x = 1{,}000"),
    (r"1000\pi", r"1{,}000\pi"),
    ("720", "2^4 3^2 5"),
    (r"\log_2 3", r"\log_{2} 3"),
    ("-2", r"\sqrt[3]{-8}"),
    ("1234567", "1 234 567"),
    ("x=5", "5"),
    ("5", "AB = 5"),
    ("y=2x+3", "2x+3"),
    ("2:3", "4:6"),
    ("3:00", "3:00 PM"),
    (r"\{(1,2),(3,4)\}", "(1,2),(3,4)"),
    ("1+i", "i+1"),
    ("10 apples", "10 pears"),
]
WRONG = [
    ("5", r"\xcancel{6} 5"),
    ("5", "5_a"),
    ("5", "5'"),
    (r"(2,\infty)", r"x \ge 2"),
    (r"(2,\infty)", "x < 2"),
    ("5", r"5 \text{ million}"),
    (r"5 \text{ million}", "5"),
    ("5", r"5 \text{ thousands}"),
    ("5", r"5\text{k}"),
    ("5", r"5 \text{ (not 6)}"),
    ("5", "5 (not 6)"),
    ("5", r"5 \text{ squared}"),
    ("5", r"5 \text{ x}"),
    ("1", "1 1/2"),
    ("3", "1 2"),
    ("12", "1 2"),
    ("6", "1 2 3"),
    ("123", "1 2 3"),
    ("0", "1 000"),
    ("1 2", "12"),
    ("(1,2)", "{1,2}"),
    ("(1,2)", r"\{1,2\}"),
    (r"\{1,2\}", "(1,2)"),
    (r"\{1,2\}", "[1,2]"),
    ("11_2", "11_3"),
    ("11", "11_2"),
    ("3", "11_2"),
    ("4210_{5}", "555"),
    ("Paris", "Prais"),
    ("Paris", r"\text{Prais}"),
    ("no", "on"),
    ("no", "o n"),
    ("cat", "act"),
    ("H2O", "OH2"),
    ("H2O", "2HO"),
    ("2024-01-05", "2018"),
    ("2024-01-05", r"\frac{4036}{2}"),
    ("10/12/2024", "2024/12/10"),
    ("5", "5..."),
    ("0.3", "0.3..."),
    (".0000672", ".000067"),
    ("0.00001", "0.0000101"),
    ("0.00001", "0"),
    ("0", "0.0000001"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"6.63\times10^{-34}", r"1.05\times10^{-34}"),
    (r"-1.6 \times 10^{-19}", r"1.6 \times 10^{-19}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    ("x+y=5", "5"),
    ("a+b=7", "7"),
    ("6", "2x=6"),
    ("6", "5=6"),
    ("1", r"\frac{x^2}{9}+\frac{y^2}{4}=1"),
    ("0", "x^2-4=0"),
    (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"),
    ("1,2", "(1,2)"),
    ("12:00", "1:00"),
    ("3:00", "3:0"),
    (r"12:00\text{ PM}", r"1:00\text{ PM}"),
    ("1,000, 2,000", "0,1,2"),
    ("xy", "10"),
    ("5", "10 million"),
    ("10", "10 thousand"),
    ("10", "10 x"),
    ("3:10", "3:01"),
    ("2:3", "3:2"),
    ("i", "-i"),
    ("x=5", "y+x=5"),
    ("10", "10 half"),
]


@pytest.mark.parametrize(("gold", "said"), RIGHT)
def test_the_same_in_another_writing(gold: str, said: str) -> None:
    assert maths.verify(Question(id="q", prompt="?", answer=gold), rf"\boxed{{{said}}}") == "right"


@pytest.mark.parametrize(("gold", "said"), WRONG)
def test_another_answer_that_looks_alike(gold: str, said: str) -> None:
    assert maths.verify(Question(id="q", prompt="?", answer=gold), rf"\boxed{{{said}}}") == "wrong"


def test_tokens_are_written_in_one_way() -> None:
    assert notation.tokens("1 2") == ["1", " ", "2"]
    assert notation.tokens(r"x\ +\ 1~2\,3") == ["x", "+", "1", " ", "2", " ", "3"]
    assert notation.tokens(r"\left( 3, \dfrac12 \right).") == notation.tokens(r"(3,\frac{1}{2})")
    assert notation.tokens(r"\leftarrow") == [r"\leftarrow"]
    assert notation.tokens(r"\frac{1}{2") is None
    assert notation.tokens(r"x^") is None


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Checkers that may compute for half a second only."""
    workers = of_seconds(0.5, tmp_path, monkeypatch)
    monkeypatch.setattr(maths, "WORKERS", workers)
    maths.ask_child.cache_clear()
    yield workers
    workers.close()
    maths.ask_child.cache_clear()


def of_seconds(computing: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Checkers whose requests may compute for so many seconds, however many pass on the clock."""
    source = Path(maths_worker.__file__).read_text()
    assert "COMPUTING = 5.0" in source
    limited = source.replace("COMPUTING = 5.0", f"COMPUTING = {computing}")
    (folder / "quick_worker.py").write_text(limited)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Workers("quick_worker", limit=60.0, count=1)


HANGS = ("9^{9^{9^{9}}}", r"(8^{8^{8^{8}}})!")


def test_no_answer_is_blamed_for_another(hasty: Workers) -> None:
    assert maths.same("5", "5.0")
    assert [maths.same("5", hanging) for hanging in HANGS] == [False, False]
    assert [maths.same("5", other) for other in ("5.00", r"\frac{10}{2}", "x=5")] == [True] * 3


@pytest.mark.parametrize("order", [(0, 1, 2), pytest.param((2, 1, 0), marks=pytest.mark.slow)])
def test_votes_do_not_depend_on_what_was_asked_before(
    order: tuple[int, ...], hasty: Workers
) -> None:
    pairs = [(HANGS[0], "x = " + HANGS[0]), ("5", HANGS[0]), (HANGS[0], HANGS[0] + ".")]
    found = {i: maths.same(*pairs[i]) for i in order}
    assert [found[i] for i in range(3)] == [True, False, True]


DEEP = "(" * 50 + "5" + ")" * 50


@pytest.mark.parametrize("said", [r"\binom{10^9}{5\cdot10^8}", DEEP])
def test_what_the_checker_cannot_digest_is_wrong_where_it_digests_the_reference(
    said: str, hasty: Workers
) -> None:
    assert maths.verify(Question(id="q", prompt="?", answer="7"), rf"\boxed{{{said}}}") == "wrong"


@pytest.mark.slow
def test_so_it_is_in_science(hasty: Workers) -> None:
    assert (
        numbers.verify(
            Question(id="q", prompt="?", answer="7"), rf"\boxed{{\sqrt{{3}} \cdot {HANGS[1]}}}"
        )
        == "wrong"
    )


def test_a_reference_that_cannot_be_digested_is_nobodys_fault(hasty: Workers) -> None:
    assert maths.verify(Question(id="q", prompt="?", answer=HANGS[0]), r"\boxed{7}") == "failed"
    assert (
        maths.verify(Question(id="q", prompt="?", answer=HANGS[0]), rf"\boxed{{{HANGS[0]}}}")
        == "right"
    )


@pytest.mark.parametrize(
    "said", [r"(100 \pm 5)", r"\{1, 2\}", "x = (1, 2)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"]
)
def test_what_is_no_number_has_no_value(said: str) -> None:
    assert (
        numbers.verify(Question(id="q", prompt="?", answer="100"), rf"\boxed{{{said}}}") == "wrong"
    )
    assert maths.value(said) is None


def test_a_dead_checker_is_a_machines_failure_and_nobodys_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = Workers("no_such_module", limit=5.0, count=1)
    monkeypatch.setattr(maths, "WORKERS", dead)
    maths.ask_child.cache_clear()
    question = Question(id="q", prompt="?", answer="7")
    assert maths.verify(question, r"\boxed{\sqrt{48}}") == "failed"
    assert numbers.verify(question, r"\boxed{\sqrt{48}}") == "failed"
    with pytest.raises(HostFailure, match="broke down"):
        maths.same("7", r"\sqrt{49}")
    with pytest.raises(HostFailure, match="broke down"):
        numbers.extract(question, r"\boxed{\sqrt{48}}")
    monkeypatch.undo()
    assert maths.same("7", r"\sqrt{49}")  # nothing of it is remembered


def test_computing_is_limited_and_not_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = of_seconds(0.5, tmp_path, monkeypatch)
    try:
        with pytest.raises(WorkerFailed, match="limit of computing time") as caught:
            patient.ask(["equal", parts.parse("5"), parts.parse(HANGS[0] + "!")])
        assert caught.value.lasting
        assert patient.ask(["equal", parts.parse("5"), parts.parse("5.0")])
    finally:
        patient.close()
