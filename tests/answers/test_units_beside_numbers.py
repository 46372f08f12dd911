"""What may stand beside a number: units, and no words that make another number of it."""

from __future__ import annotations

import pytest

from comas.answers import numbers
from comas.tasks import gsm8k
from comas.types import Question

OTHER_NUMBERS = [
    "5 thousands",
    "5 millions",
    "5 hundreds",
    "5 dozens",
    "5 k",
    "5 K",
    "5 M",
    "5k",
    "5 squared",
    "5 pi",
    "5 e",
    "5 sqrt",
    "5 infinity",
    "5 double",
    "5 tenths",
    "5 half",
    "5 times ten",
    "5 less than zero",
    "5 dollars and fifty cents",
    "5 minus two",
    "5 percent of ten",
    "5/",
    "5 / ",
    r"5\text{ million}",
    r"5 \text{k}",
    r"5\text{x}",
    "5 x",
    "5i",
    r"5^2",
    r"5 ^{2}",
    "5!",
    r"5 \text{ (not 6)}",
    "5 lakh",
    r"5^\circ \text{ million}",
    r"\frac{5}{1}\text{ million}",
    "5cm million",
    "5ft 3in",
    "5million",
    "5pi",
    "5ab",
    r"5\,x",
    r"5\,k",
    "5;6",
    "5 000",
    "0 005",
]


@pytest.mark.parametrize("said", OTHER_NUMBERS)
def test_words_that_make_another_number(said: str) -> None:
    assert gsm8k.verify(Question(id="q", prompt="?", answer="5"), rf"\boxed{{{said}}}") == "wrong"


@pytest.mark.parametrize(
    "said",
    [
        r"25\text{cm}^{2}",
        r"25 \text{ cm}^{2}",
        r"25\ \text{cm}^2",
        r"25\,\text{cm}",
        r"25~\mathrm{kg}",
        r"25\,\text{m}/\text{s}",
        r"25\mathrm{~m}^{-1}",
        r"25^\circ C",
        r"25^{\circ}C",
        r"25^{\circ}\text{C}",
        "25°C",
        "25 apples",
        "25 km/h",
        "25 m^2",
        "€25",
        "25 €",
        "25 times",
        "25 seconds",
        "25 quarters",
        r"25\text{ more apples}",
        r"25\ \text{miles per hour}",
        r"\text{\$25}",
        "25 percent",
        r"25\ dollars",
        "25cm",
        "25km/h",
        "25cm²",
        "25th",
        r"25\,m",
        r"25\,apples",
        "25;",
        "25 cm;",
        "２５",
        "+25kg",
        r"\displaystyle 25",
        r"\(25\)",
        r"\text{answer: }25",
        "25,",
        r"\large 25",
        r"\bf 25",
        "２５．",
        "25。",
    ],
)
def test_units_change_nothing(said: str) -> None:
    assert gsm8k.verify(Question(id="q", prompt="?", answer="25"), rf"\boxed{{{said}}}") == "right"


@pytest.mark.parametrize("said", ["1 500", "1 500 m", "1\u202f500", "1 500.0", "1 500;"])
def test_digits_in_groups(said: str) -> None:
    for sign in ("", "-", "－"):
        asked = Question(id="q", prompt="?", answer=f"{sign and '-'}1500")
        assert gsm8k.verify(asked, rf"\boxed{{{sign}{said}}}") == "right"


@pytest.mark.parametrize("said", ["1 500/3", "1 50", "1 5000", "1 500 2", "3 x 10 000", "01 500"])
def test_two_numbers_are_no_groups(said: str) -> None:
    for gold in ("3", "500", "1500", "15000", "30000"):
        asked = Question(id="q", prompt="?", answer=gold)
        assert gsm8k.verify(asked, rf"\boxed{{{said}}}") == "wrong"


@pytest.mark.parametrize(
    "said",
    [
        "2 not 3",
        "2 ft 3 in",
        "2 m 3 cm",
        "2i",
        r"\le 2",
        "> 2",
        "2x",
        "2k",
        "2 x 3",
        r"2 \neq 3",
        r"2 \pm 1",
        r"2 \to 3",
        r"2 \le x",
        r"2\alpha x",
        "2 million",
        "2 thousand",
        "2 squared",
        "2 tenths",
        r"2 \text{ million}",
        "2 m or 3 m",
    ],
)
def test_other_quantities(said: str) -> None:
    assert numbers.verify(Question(id="q", prompt="?", answer="2"), rf"\boxed{{{said}}}") == "wrong"


@pytest.mark.parametrize(
    "said",
    [
        r"25^\circ C",
        r"25^{\circ}C",
        r"25 ^{\circ} \mathrm{C}",
        r"25 { }^{\circ} \mathrm{C}",
        "25 °C",
        r"25\degree C",
        "about 25",
        r"\text{about } 25",
        "approximately 25 K",
        r"25\,\mathrm{J\,K^{-1}\,mol^{-1}}",
        "25 kJ mol-1",
        "25 m s-1",
        "25 m3",
        "25 K",
        "25 T",
        r"25\,\Omega",
        r"25 \mu\mathrm{C}",
        r"25\text{ N}\hat{i}",
        r"T = 25\,\mathrm{K}",
        r"2.5\times 10^{1} \text{ N/C}",
        r"25\text{ revolutions per minute}",
        "25 M",
    ],
)
def test_quantities_with_units(said: str) -> None:
    assert (
        numbers.verify(Question(id="q", prompt="?", answer="25"), rf"\boxed{{{said}}}") == "right"
    )


def test_percent_in_words_is_a_hundredth_too() -> None:
    for said in (r"5\%", "5 percent", r"5 \text{ per cent}"):
        assert (
            numbers.verify(Question(id="q", prompt="?", answer="0.05"), rf"\boxed{{{said}}}")
            == "right"
        )
        assert (
            numbers.verify(
                Question(id="q", prompt="?", answer="5", meta={"percent": True}),
                rf"\boxed{{{said}}}",
            )
            == "right"
        )


def test_the_word_boxed_is_no_box() -> None:
    assert (
        gsm8k.verify(Question(id="q", prompt="?", answer="12"), "She boxed 12 cookies.\n#### 12")
        == "right"
    )
    assert (
        gsm8k.verify(
            Question(id="q", prompt="?", answer="12"), r"\boxed{many}, 12 of them" + "\n#### 12"
        )
        == "wrong"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00001, "0.00001"),
        (1e17, "100000000000000000"),
        (3.0, "3"),
        (3.25, "3.25"),
        (-1.5e-7, "-0.00000015"),
        (7, "7"),
        (1e300, "1e+300"),
        (" 5 ", "5"),
    ],
)
def test_numbers_of_files_are_written_as_people_write_them(value: float | str, text: str) -> None:
    assert numbers.written(value) == text
