"""How answers are read and checked: boxes, quantities, letters, mathematics in processes that may
be killed.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.answers import choice, maths, numbers, parts, words
from comas.answers.boxed import last_box
from comas.answers.pool import WorkerFailed, Workers
from comas.types import Question
from tests.support.checking import verdicts


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\boxed{2}}", "2"),
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        ("7", None),
        (r"\boxed{" + "1" * 2000 + "}", None),
    ],
)
def test_the_last_box_decides(text: str, inside: str | None) -> None:
    assert last_box(text) == inside


QUANTITIES = {
    r"3.8 \times 10^{-8} \text{ C/m}^2": 3.8e-8,
    "3e5": 3e5,
    "3 x 10^5 m": 3e5,
    "3·10⁵": 3e5,
    "3*10**5": 3e5,
    "3 × 10^{5}": 3e5,
    r"3\times10^{5}\,\mathrm{m/s}": 3e5,
    r"3 \cdot 10^{5}": 3e5,
    "3E+05": 3e5,
    "10^5": 1e5,
    "10⁻⁵ m": 1e-5,
    r"10^{-5}": 1e-5,
    "7.2×10⁻³ mol/L": 7.2e-3,
    "1.5e-3 V": 1.5e-3,
    "v = 3 m/s": 3,
    r"x \approx 3.14": 3.14,
    r"5\%": 0.05,
    "5%": 0.05,
    "-0.5": -0.5,
    "−0.5 J": -0.5,
    "+11": 11,
    "1,234.5 kg": 1234.5,
    "102,965.21": 102965.21,
    r"2{,}500 J": 2500,
    r"3\,400\,000": 3.4e6,
    r"0.012\,500 m": 0.0125,
    r"40.7^\circ": 40.7,
    "40.7°": 40.7,
    r"3.5^{\circ} \mathrm{C}": 3.5,
    r"\frac{1}{2}": 0.5,
    r"-\frac{1}{2}": -0.5,
    r"\sqrt{493}": 493**0.5,
    r"e^{-1}": 0.36787944117,
    r"2\pi": 6.283185307,
    "2/3": 2 / 3,
    "2 \\times 3": 6,
    "-(3)": -3,
    "0": 0,
    "0.0": 0,
    "-0": 0,
    "5 m^2": 5,
    r"5\text{ m}^2": 5,
    r"5\ \mathrm{kJ\,mol^{-1}}": 5,
    "5 kJ mol⁻¹": 5,
    "5 m s^-1": 5,
    r"5 \Omega": 5,
    r"37\,\mu\mathrm{C}": 37,
    ".5 A": 0.5,
    "$5": 5,
    r"25 \text{ years}": 25,
    "12 Å": 12,
    "5 N·m": 5,
}


@pytest.mark.parametrize("text", QUANTITIES)
def test_quantities_in_every_usual_notation(text: str) -> None:
    assert numbers.quantity(text) == pytest.approx(QUANTITIES[text], rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 4",
        "3 m 20 cm",
        "three",
        "3.2 ± 0.1",
        "1e999",
        "H2O",
        "CO_2",
        "nan",
        "inf",
        "1 234",
        "0,075",
        "-0,300 kg",
        "042,195",
        "0{,}075",
        r"0\,075",
        r"v = 0,\!075",
        "x",
        r"\infty",
        "5 or 6",
        r"5\text{ to }1",
        "5 million",
        "9" * 999,
        "5" + "a" * 230 + "!",
    ],
)
def test_no_quantity(text: str) -> None:
    assert numbers.quantity(text) is None


def test_science_is_right_within_five_percent() -> None:
    def verdict(gold: str, said: str, power: int = 0) -> str:
        return numbers.verify(
            Question(id="q", prompt="?", answer=gold, meta={"power": power}),
            rf"so \boxed{{{said}}}",
        )

    assert [verdict("2.0", x) for x in ("2.09", "1.91", "2.11", "1.89", "-2.0", "0", "many")] == [
        "right"
    ] * 2 + ["wrong"] * 5
    assert [verdict("0", x) for x in ("0", "0.0 N", "0.001", "-1e-9")] == [
        "right",
        "right",
        "wrong",
        "wrong",
    ]
    assert [verdict("-36.5", x) for x in ("-36.4 J/K", "36.5")] == ["right", "wrong"]
    said = ("2.25", r"2.25\times 10^{-9}", "2.25e9", "2.25e-8")
    assert [verdict("2.25", x, -9) for x in said] == ["right", "right", "wrong", "wrong"]
    assert verdict("unknown", "3") == verdict("", "3") == "failed"
    assert numbers.verify(Question(id="q", prompt="?"), r"\boxed{3}") == "failed"


@pytest.mark.parametrize(
    ("unit", "power"),
    [
        (r"$10^{-9}$", -9),
        (" $\r\n10^{15} \\text { photon } \\cdot \\mathrm{s}^{-1}\r\n$", 15),
        (r" $\mathrm{10^{-4}} \mathrm{~cm}^3$", -4),
        (r"$\mathrm{m}$", 0),
        ("", 0),
        (r"$^\circ$", 0),
        ("m/s", 0),
        ("10⁶ W", 6),
    ],
)
def test_the_power_of_ten_of_a_unit(unit: str, power: int) -> None:
    assert numbers.power_of(unit) == power


@given(st.text(alphabet="0123456789.,-+/eE^*x \\{}()abmols⁻³×%", max_size=40))
@settings(max_examples=60, deadline=None)  # what is no plain number goes to the checker's process
def test_no_text_breaks_the_reader_of_quantities(text: str) -> None:
    found = numbers.extract(Question(id="q", prompt="?"), r"\boxed{" + text + "}")
    assert found is None or numbers.same(found, found)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{(B)}", "B"),
        (r"\boxed{\textbf{(B)}}", "B"),
        (r"\boxed{B. Daoism}", "B"),
        (r"\boxed{B) Daoism}", "B"),
        (r"\boxed{A} no, \boxed{D}", "D"),
        (r"\boxed{ C }", "C"),
        (r"\boxed{B: x}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{Because}", None),
        (r"\boxed{BC}", None),
        (r"\boxed{12}", None),
        ("B", None),
        (r"\boxed{}", None),
        (r"\boxed{A'}", None),
        (r"\boxed{B or C}", None),
        (r"\boxed{B: no, C}", None),
        (r"\boxed{A duty of care}", None),
        (r"\boxed{D-glucose}", None),
        (r"\boxed{\text{Option B}}", "B"),
        (r"\boxed{\left(B\right)}", "B"),
        (r"\boxed{[B]}", "B"),
        (r"\boxed{\mathsf{B}}", "B"),
        (r"\boxed{A} \boxed{none}", None),
    ],
)
def test_choices_are_letters_in_the_last_box(text: str, letter: str | None) -> None:
    question = Question(id="q", prompt=choice.asked("Which?", ["w", "x", "y", "z"]), answer="B")
    assert choice.extract(question, text) == letter
    assert choice.verify(question, text) == ("right" if letter == "B" else "wrong")
    assert "B. x" in question.prompt


def test_words() -> None:
    question = Question(id="q", prompt="?", answer="The Moon")
    assert [
        words.verify(question, rf"\boxed{{{x}}}") for x in (r"\text{the  moon.}", "moon", "")
    ] == ["right", "wrong", "wrong"]
    assert words.verify(Question(id="q", prompt="?"), r"\boxed{x}") == "failed"


@pytest.mark.parametrize("said", ["Oslo!", "«Oslo»", "„Oslo“", "「Oslo」", "Ｏｓｌｏ。", "‹oslo›?"])
def test_marks_around_words_are_none_of_them(said: str) -> None:
    for right, answer in (("Oslo", said), (said, "Oslo")):
        question = Question(id="q", prompt="?", answer=right)
        assert words.verify(question, rf"\boxed{{{answer}}}") == "right"
    assert words.verify(Question(id="q", prompt="?", answer="C"), r"\boxed{C\#}") == "wrong"


SAME = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\dfrac 12"),
    ("(1,2)", r"\left( 1, 2 \right)"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    ("-2,1", "1, -2"),
    ("5", "x = 5"),
    (r"76^\circ", "76"),
    (r"\$18.90", "18.9"),
    ("58,500", "58500"),
    (r"11,\! 111", "11111"),
    ("(a+5)(b+2)", "ab+2a+5b+10"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"1\frac{4}{5}", r"\frac{9}{5}"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\text{(C)}", "C"),
    (r"3\sqrt{13}", r"\sqrt{117}"),
    (
        r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}",
        r"\begin{bmatrix} -\frac{1}{3} \\ 2 \end{bmatrix}",
    ),
    (r"5.4 \text{ cents}", "5.4"),
    ("3/8", "３／８"),
    ("(2,7)", "（２，７）"),
    ("x=4", "ｘ＝４。"),
]
OTHER = [
    ("3/8", "３／９"),
    ("(2,7)", "（７，２）"),
    (r"\frac{1}{2}", "0.51"),
    (r"\frac{1}{3}", "0.33"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    (r"\text{east}", "teas"),
    (r"\text{(C)}", "(B)"),
    ("5", "-5"),
    ("5", "no"),
    ("5", "{{{"),
    (r"\sqrt{2}", "1.414"),
    ("x^2+1", "x^2-1"),
    (r"\text{even}", "seven"),
]


@pytest.mark.parametrize(("gold", "said"), SAME)
def test_the_same_mathematics(gold: str, said: str) -> None:
    assert maths.equal(gold, said)
    assert (
        maths.verify(Question(id="q", prompt="?", answer=gold), rf"it is $\boxed{{{said}}}$.")
        == "right"
    )


@pytest.mark.parametrize(("gold", "said"), OTHER)
def test_other_mathematics(gold: str, said: str) -> None:
    assert not maths.equal(gold, said)


@pytest.mark.slow
def test_an_answer_that_hangs_the_checker_is_wrong_and_costs_its_limit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasty = Workers("comas.answers.maths_worker", limit=4.0, count=1)
    monkeypatch.setattr(maths, "WORKERS", hasty)
    hostile = Question(id="q", prompt="?", answer="5"), r"\boxed{9^{9^{9^{9^9}}}}"
    try:
        assert hasty.ask(["equal", parts.parse("1"), parts.parse("1.0")])
        began = time.monotonic()
        assert maths.verify(*hostile) == "wrong"
        assert time.monotonic() - began < 60
        assert maths.verify(hostile[0], r"\boxed{5.0}") == "right"  # by a fresh process
        assert not maths.same("5", "9^{9^{9^{9^8}}}")
    finally:
        hasty.close()


def test_failures_of_the_checker_are_told_apart_from_wrong_answers() -> None:
    with pytest.raises(WorkerFailed, match="empty reference"):
        maths.equal("", "5")
    assert maths.verify(Question(id="q", prompt="?", answer=""), r"\boxed{5}") == "failed"
    assert maths.verify(Question(id="q", prompt="?"), r"\boxed{5}") == "failed"
    assert maths.verify(Question(id="q", prompt="?", answer="5"), "5") == "wrong"


def test_workers_are_asked_from_many_threads_and_replaced_when_they_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echoing.py").write_text(
        "import json, os, sys\nprint(json.dumps({'answer': 'ready'}), flush=True)\nfor line in"
        " sys.stdin:\n    asked = json.loads(line)\n    if asked == 'die':\n        os._exit(3)\n  "
        "  print(json.dumps({'answer': [asked, os.getpid()]} if asked != 'bug' else {'error': 'a"
        " bug'}), flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers = Workers("echoing", limit=20.0, count=2)
    try:
        told: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda i=i: told.append(workers.ask(i))) for i in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(asked for asked, _ in told) == list(range(20))
        assert len({pid for _, pid in told}) <= 2  # kept warm
        with pytest.raises(WorkerFailed, match="a bug"):
            workers.ask("bug")
        for _ in range(3):
            with pytest.raises(WorkerFailed, match=r"died \(exit code 3\)"):
                workers.ask("die")
        assert workers.ask("again")[0] == "again"
    finally:
        workers.close()
    assert all(p.poll() is not None for p in workers._alive) or not workers._alive
    missing = Workers("no_such_module", limit=5.0, count=1)
    for _ in range(2):
        with pytest.raises(WorkerFailed, match="python -m no_such_module"):
            missing.ask(1)


def test_what_filled_the_memory_is_no_burden_to_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filling.py").write_text(
        "import json, os, sys\nprint(json.dumps({'answer': 'ready'}), flush=True)\nfor line in"
        " sys.stdin:\n    full = json.loads(line) == 'fill'\n    told = {'error': 'MemoryError: '}"
        " if full else {'answer': [os.getpid(), hash('text')]}\n    print(json.dumps(told),"
        " flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers = Workers("filling", limit=20.0, count=1)
    try:
        before, order = workers.ask("who?")
        with pytest.raises(WorkerFailed, match="MemoryError") as caught:
            workers.ask("fill")
        assert not caught.value.lasting
        after, same_order = workers.ask("who?")
        assert before != after
        assert order == same_order
    finally:
        workers.close()


def test_a_script_without_a_main_guard_is_not_run_twice(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\nfrom comas.answers import maths\nprint(maths.equal('1/2', '0.5'))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "once\nTrue\n"


def test_verdicts_keep_their_order() -> None:
    questions = [Question(id=f"q{i}", prompt="?", answer=str(i)) for i in range(40)]
    pairs = [(q, rf"\boxed{{{i - i % 3}.0}}") for i, q in enumerate(questions)]
    assert verdicts(maths.verify, pairs) == ["right" if i % 3 == 0 else "wrong" for i in range(40)]
