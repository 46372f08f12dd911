"""Whatever a model writes, its answer is read in time that grows with the length of the text and
not with its square.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from comas.answers import choice, code, maths, names, numbers, parts, words
from comas.tasks import gsm8k
from comas.types import Question

PIECES = [
    "(",
    "[",
    "{",
    r"\boxed{",
    r"\boxed{}",
    r"\text{",
    "}",
    " ",
    "5",
    "5 ",
    "5,",
    "5.",
    "1 000 ",
    "x",
    "A ",
    "B. ",
    "B, ",
    "and B ",
    r"\frac{1}",
    r"\overline{3}",
    "^",
    "^{",
    r"^\circ",
    "$",
    "#### ",
    "#### 5\n",
    "```",
    "` ```",
    "~~~\n",
    "\\",
    r"\ ",
    "~",
    "-",
    "/",
    "=",
    "\n",
    r"\text{a}",
    r"/\text{a}",
    "1a",
    "0.3",
    "33",
    "...",
    "million ",
    "1_",
    "1e5",
    "A.\n",
    "√",
    "½",
    "²",
    "<",
]
ASKED = Question(
    id="q", prompt="Which?\nA. x\nB. y", kind="coding", answer="5", meta={"names": ["f"]}
)
READERS = [
    choice.extract,
    maths.extract,
    numbers.extract,
    words.extract,
    gsm8k.extract,
    code.extract,
]


@pytest.fixture(autouse=True)
def no_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "ask_child", lambda *request: None)


@pytest.mark.parametrize("piece", PIECES)
def test_long_replies(piece: str) -> None:
    began = time.process_time()
    for before, behind in (("", ""), (r"\boxed{", "}"), (r"\boxed{B. ", "}")):
        for read in READERS:
            read(ASKED, before + 20_000 * piece + behind)
    assert time.process_time() - began < 10


DECIDERS: list[Callable[[str], object]] = [
    lambda text: names.same_names("12", text),
    lambda text: names.same_names(text, "12"),
    parts.parse,
    numbers.number,
    lambda text: choice.extract(ASKED, rf"\boxed{{B. {text}}}"),
]


@pytest.mark.parametrize("piece", PIECES)
def test_answers_of_the_longest_length(piece: str) -> None:
    began = time.process_time()
    for before in ("", "5", "0.", "(1,2"):
        for decide in DECIDERS:
            decide((before + 1000 * piece)[:1000])
    assert time.process_time() - began < 2
