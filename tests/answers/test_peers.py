"""The verdicts of other projects' test suites, pair by pair, and that no verdict depends on which of
two answers is the reference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.answers import maths, parts
from comas.types import Question

PEERS = Path(__file__).with_name("peers.jsonl").read_text().splitlines()
ROWS = [json.loads(line) for line in PEERS[1:]]
AGREED = [row for row in ROWS if "kept" not in row]
KEPT = [row for row in ROWS if "kept" in row]


def verdict(gold: str, answer: str) -> str:
    return maths.verify(Question(id="q", prompt="?", answer=gold), rf"\boxed{{{answer}}}")


def test_pairs_of_two_projects_are_held() -> None:
    assert {row["source"] for row in ROWS} == {"Math-Verify", "NeMo-Skills"}
    assert len(ROWS) == 230
    assert len(KEPT) == 16


@pytest.mark.parametrize("row", AGREED, ids=lambda row: f"{row['reference']} {row['answer']}"[:60])
def test_verdicts_that_are_shared(row: dict[str, str]) -> None:
    assert verdict(row["reference"], row["answer"]) == row["verdict"]


@pytest.mark.parametrize("row", KEPT, ids=lambda row: f"{row['reference']} {row['answer']}"[:60])
def test_disagreements_that_are_kept_are_in_the_docs(row: dict[str, str]) -> None:
    assert verdict(row["reference"], row["answer"]) != row["verdict"]
    docs = Path(__file__).parents[2] / "docs" / "evaluation.md"
    assert f"| {row['kept']} |" in docs.read_text()


def is_a_tuple(text: str) -> bool:
    node = parts.parse(text)
    return (node[2] if node[0] == "named" else node)[0] == "tuple"


NUMBERS = st.sampled_from(
    ["2", "-3", "0.5", r"\frac12", r"\sqrt2", r"50\%", "1{,}000", r"2\pi", r"3\text{ cm}", "x+1"]
)
ANSWERS = st.one_of(
    NUMBERS,
    st.builds("{}, {}".format, NUMBERS, NUMBERS),
    st.builds(r"{} \text{{ or }} {}".format, NUMBERS, NUMBERS),
    st.builds("({}, {})".format, NUMBERS, NUMBERS),
    st.builds(r"\{{{}, {}\}}".format, NUMBERS, NUMBERS),
    st.builds("x = {}".format, NUMBERS),
    st.builds("y={}".format, NUMBERS),
    st.builds("{} = {}".format, NUMBERS, NUMBERS),
    st.builds("x < {}".format, NUMBERS),
    st.builds(r"{} \le x".format, NUMBERS),
    st.builds(r"x \equiv {} \pmod{{5}}".format, st.sampled_from("2378")),
    st.builds("{}:{}".format, st.sampled_from("2468"), st.sampled_from("1234")),
    st.sampled_from(
        ["f'(x)", "A^T", r"\ne 2", r"2,\ldots", "12_5", "12", "3:00 pm", "red", "a, b"]
    ),
)


@given(one=ANSWERS, other=ANSWERS)
@settings(max_examples=150, deadline=None)
def test_no_verdict_depends_on_which_is_the_reference(one: str, other: str) -> None:
    """A reference that is a tuple is read as such in a list without brackets, which is the one
    thing in which it is stricter; and digits count as of the base of a reference.
    """
    if is_a_tuple(one) != is_a_tuple(other) or "12_5" in (one, other):
        return
    assert verdict(one, other) == verdict(other, one)
