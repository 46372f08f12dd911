"""Multiple choice: what stands behind the letter is compared with the choices that the question
shows.
"""

from __future__ import annotations

import pytest

from comas.answers import choice
from comas.types import Question

FORMS = [
    "B. %s",
    "(B) %s",
    "B: %s",
    "B) %s",
    "B %s",
    "B, %s",
    "B - %s",
    "B — %s",
    r"\text{B. %s}",
    r"\textbf{(B)} %s",
    r"B.\ %s",
    r"B \text{ %s}",
]
CHOICES = [
    "Vitamin C",
    "37 C",
    "E. coli",
    "D-glucose",
    "H-bond",
    "H_2O",
    "E = mc^2",
    "B cells",
    "Daoism",
    "A duty of care",
    "vitamins A and D",
    "I and IV only",
    "A, C and D",
    "C. elegans",
    "Type A, B",
    "None of the above",
    "-75",
    "x < 3",
    "A",
]


def listing(*choices: str) -> Question:
    return Question(id="q", prompt=choice.asked("Which?", choices), answer="B")


@pytest.mark.parametrize("text", CHOICES)
def test_a_letter_may_be_followed_by_its_own_choice(text: str) -> None:
    said = [form % text for form in FORMS]
    assert [choice.verify(listing("w", text, "y", "z"), rf"\boxed{{{one}}}") for one in said] == [
        "right"
    ] * len(said)


@pytest.mark.parametrize(
    "text",
    [
        "Vitamin C",
        "37 C",
        "E. coli",
        "D-glucose",
        "H-bond",
        "H_2O",
        "E = mc^2",
        "B cells",
        "Daoism",
    ],
)
def test_so_it_may_where_the_question_lists_none(text: str) -> None:
    assert choice.extract(Question(id="q", prompt="Which?"), rf"\boxed{{B. {text}}}") == "B"


@pytest.mark.parametrize(
    "said",
    [
        "(B) and (A)",
        "B. or A",
        "B) A",
        "B. C",
        "B. A and C",
        "(B), (C)",
        "B. or (A)",
        "B; A",
        "B. not A",
        "B and not A",
        "B (or C)",
        "B. Daoism C. Buddhism",
        "B. Daoism or A",
        r"\text{B}\text{ or }\text{C}",
        "B. (C) Buddhism",
        "B A",
        "B. D",
        "B. A or C",
    ],
)
def test_two_letters_are_no_answer(said: str) -> None:
    assert choice.extract(Question(id="q", prompt="Which?"), rf"\boxed{{{said}}}") is None
    assert choice.extract(listing("w", "x", "y", "z"), rf"\boxed{{{said}}}") is None


def test_small_letters_are_choices_too() -> None:
    small = Question(id="q", prompt="Which?\na) Paris\nb) Rome", kind="choice", answer="A")
    assert choice.listed(small.prompt) == {"A": "Paris", "B": "Rome"}
    for text, letter in (
        ("a", "A"),
        ("(b)", "B"),
        ("a) Paris", "A"),
        ("a Rome", None),
        ("c", None),
    ):
        assert choice.extract(small, rf"\boxed{{{text}}}") == letter
    inline = Question(id="q", prompt="Which? a) Paris b) Rome", kind="choice", answer="A")
    assert choice.verify(inline, r"\boxed{a}") == "right"
    assert choice.extract(inline, r"\boxed{a city}") is None


def test_a_letter_with_the_text_of_another_choice_is_no_answer() -> None:
    assert choice.extract(listing("Daoism", "Buddhism", "x"), r"\boxed{B. Daoism}") is None
    assert choice.extract(listing("x < 3", "x > 3"), r"\boxed{B. $x < 3$}") is None
    assert choice.extract(listing("9", "14", "18"), r"\boxed{B. 18}") is None
    assert choice.extract(listing("a", "b", "c"), r"\boxed{E}") is None  # no such choice


@pytest.mark.parametrize(
    "said",
    [
        "B is correct",
        "the answer is B",
        "Option B",
        "The correct answer is B.",
        "B. since it is so",
        "Ｂ",
        "（Ｂ）",
        "B。",
    ],
)
def test_usual_sentences_around_a_letter(said: str) -> None:
    assert choice.extract(listing("w", "x", "y", "z"), rf"\boxed{{{said}}}") == "B"


def test_choices_are_found_as_they_are_listed() -> None:
    assert choice.listed("A. no list\n\nWhich?\nA) one\nstill one\nB) two\n(C) three") == {
        "A": "one\nstill one",
        "B": "two",
        "C": "three",
    }
    assert choice.listed("A. one line only") == choice.listed("Nothing.") == {}
    many = [str(i) for i in range(26)]
    assert list(choice.listed(choice.asked("Which?", many)).values()) == many


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(b)", "B"),
        ("B. Daoism", "B"),
        ("Daoism", "B"),
        (r"\text{(B)}", "B"),
        ("D", None),
        ("maybe", None),
        ("B or A", None),
        ("2", None),
    ],
)
def test_references_as_people_write_them(text: str, letter: str | None) -> None:
    assert choice.reference(text, "Which?\nA. x\nB. Daoism\nC. y") == letter
