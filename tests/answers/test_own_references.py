"""Own questions: references are read as people write them, and those that no reply can match are
refused at load.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comas.tasks import gsm8k, jsonl, mbpp, mix
from comas.tasks.benchmarks import TASKS
from comas.types import Question, Task, UserMistake

LISTED = "Which?\nA. Daoism\nB. Buddhism\nC. neither"


def loaded(folder: Path, row: dict[str, object]) -> Question:
    file = folder / "mine.jsonl"
    file.write_text(
        json.dumps({"question": "first?"}) + "\n" + json.dumps({"question": "q?", **row}) + "\n"
    )
    prompt = row.get("question", "q?")
    return next(q for q in jsonl.load("test", str(file), whole=True) if q.prompt == prompt)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": 0.00001}, ["0.00001", "10^{-5}", r"1\times10^{-5}", "1e-5"]),
        ({"answer": 1e17}, ["10^{17}", "1e17"]),
        ({"answer": 5.0}, ["5", "5.0"]),
        ({"answer": 1e300}, ["10^{300}"]),
        ({"answer": 1e-5, "kind": "science"}, ["1e-5", "0.00001"]),
        ({"answer": 3.0, "kind": "text"}, ["3"]),
        ({"answer": r"\boxed{5}"}, ["5"]),
        ({"answer": "She has 3 * 24 = <<3*24=72>>72 eggs.\n#### 72"}, ["72", "72 eggs"]),
        ({"answer": "so it is\n#### 1,000", "kind": "science"}, ["1000"]),
        ({"answer": "Paris"}, ["Paris", r"\text{Paris}"]),
        ({"answer": "5 apples"}, ["5", "5 apples"]),
        ({"answer": "12 cm^2"}, ["12", r"12\text{ cm}^2"]),
        ({"answer": "H2O"}, ["H_2O"]),
        ({"answer": "3 or n"}, ["3, n", r"n \text{ or } 3"]),
        ({"answer": r"0\text{ or }\pi"}, [r"\pi, 0"]),
        ({"answer": "red or blue"}, ["Red or Blue"]),
        ({"answer": "5 dollars and 20 cents"}, [r"5\text{ dollars and }20\text{ cents}"]),
        ({"answer": "{a}", "kind": "text"}, [r"\{a\}"]),
        ({"answer": "北京", "kind": "text"}, ["北京。"]),
        ({"answer": "B", "kind": "choice"}, ["B）", "'B'", r"\Large B", "B ✓", "B (correct)"]),
        ({"answer": "(B)", "kind": "choice"}, ["B", "(B)"]),
        ({"answer": "b", "kind": "choice"}, ["B"]),
        ({"answer": "Buddhism", "kind": "choice", "question": LISTED}, ["B", "B. Buddhism"]),
        ({"answer": "Café", "kind": "text"}, ["cafe\u0301", r"\text{Café}.", "“Café”"]),
        ({"answer": r"\sqrt{2}", "kind": "science"}, ["1.41"]),
    ],
)
def test_replies_match_what_is_meant(
    row: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    question = loaded(tmp_path, row)
    assert [jsonl.verify(question, rf"\boxed{{{one}}}") for one in said] == ["right"] * len(said)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"answer": "maybe", "kind": "choice"},
            r"'maybe' of kind choice: write the letter of one choice, such as B",
        ),
        ({"answer": "D", "kind": "choice", "question": LISTED}, r"this question lists A, B, C"),
        ({"answer": 2, "kind": "choice"}, "letter"),
        ({"answer": "many", "kind": "science"}, "write one number, or set `kind`"),
        ({"answer": "", "kind": "text"}, "write the words"),
        ({"answer": "$", "kind": "text"}, "write the words"),
        ({"answer": " "}, "of kind math"),
        ({"answer": r"\frac{1}{2"}, "every brace closed"),
        ({"answer": "She sells 48 / 2 = 24 clips in May and then some."}, "without sentences"),
        ({"answer": "42 (exact)"}, "without sentences"),
        ({"answer": "Result: 42"}, "without sentences"),
        ({"answer": "So 17 in all"}, "without sentences"),
        ({"answer": "y = 9 or so"}, "without sentences"),
        ({"answer": r"8\text{ and up}"}, "without sentences"),
        ({"answer": "12 litres or more"}, "without sentences"),
        ({"answer": "(3,4), or thereabouts"}, "without sentences"),
        ({"answer": "7 or so", "kind": "science"}, "write one number"),
        ({"answer": True}, "True: a text or a number"),
        ({"answer": {"a": 1}}, "a text or a number"),
        ({"answer": float("nan")}, "a text or a number"),
    ],
)
def test_references_that_no_reply_can_match(
    row: dict[str, object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserMistake, match=told) as caught:
        loaded(tmp_path, row)
    assert "mine.jsonl:2: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", ["", r"\frac{1}{2", "He takes two of them, and so he has four."])
@pytest.mark.parametrize(
    ("task", "columns"),
    [
        (TASKS["math500"], {"problem": "q?"}),
        (TASKS["amc"], {"question": "q?"}),
        (TASKS["aime"], {"Problem": "q?"}),
        (mix.task, {"prompt": "q?", "task": "math"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_references_of_benchmarks_that_no_reply_can_match(
    task: Task, columns: dict[str, str], answer: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    key = "Answer" if task is TASKS["aime"] else "answer"
    file.write_text(json.dumps({**columns, key: answer}))
    with pytest.raises(UserMistake, match=r"rows.jsonl:1: .*answer"):
        task.load("test", str(file))


def test_a_question_with_two_answers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": "q?", "answer": a} for a in ("5", None, "5", "6")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserMistake, match=r"mine.jsonl:4: .*'5', .*'6'"):
        jsonl.load("test", str(file), whole=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (question,) = jsonl.load("test", str(file), whole=True)
    assert question.answer == "5"


def test_two_writings_of_one_answer_are_no_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    for one, other, kind in (
        ("1/2", "0.5", "math"),
        ("0.25", "1/4", "science"),
        ("B", "b", "choice"),
    ):
        rows = [{"question": "q?", "answer": answer, "kind": kind} for answer in (one, other)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert len(jsonl.load("test", str(file), whole=True)) == 1
    rows = [{"question": "q?", "answer": answer} for answer in ("1/2", "0.51")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserMistake, match=r"mine.jsonl:2: .*another"):
        jsonl.load("test", str(file), whole=True)


HUMANEVAL = {"prompt": "def f(x):\n", "test": "def check(f):\n    assert f(1)", "entry_point": "f"}
SCIBENCH = {"problem_text": "p?", "unit": "m", "answer_number": "5"}
MBPP = {"text": "Write f.", "test_setup_code": "", "test_list": ["assert f(1) == 2"]}


@pytest.mark.parametrize(
    ("task", "row", "told"),
    [
        (mbpp.task, {**MBPP, "test_list": []}, "`test_list` is empty"),
        (mbpp.task, {**MBPP, "test_list": [" "]}, "`test_list` is empty"),
        (mbpp.task, {**MBPP, "test_setup_code": "import numpy as np"}, "import numpy"),
        (mbpp.task, {**MBPP, "test_list": ["assert 1 == 1"]}, "call no function"),
        (TASKS["humaneval"], {**HUMANEVAL, "entry_point": ""}, "got ''"),
        (TASKS["humaneval"], {**HUMANEVAL, "prompt": "Write f:"}, "head of a Python function"),
        (TASKS["humaneval"], {**HUMANEVAL, "entry_point": "g"}, "got 'g'"),
        (TASKS["humaneval"], {**HUMANEVAL, "test": ""}, "defines `check"),
        (TASKS["humaneval"], {**HUMANEVAL, "test": "assert f(1) == 1"}, "defines `check"),
        (TASKS["humaneval"], {**HUMANEVAL, "test": "def check(f"}, "defines `check"),
        (TASKS["scibench"], {**SCIBENCH, "answer_number": "several"}, "one number .* 'several'"),
        (
            TASKS["scibench"],
            {**SCIBENCH, "answer_number": float("inf")},
            "one number .* 'Infinity'",
        ),
        (TASKS["scibench"], {**SCIBENCH, "answer_number": "2 or so"}, "one number .* '2 or so'"),
        (gsm8k.task, {"question": "q?", "answer": "so\n#### "}, "behind the last `####`"),
        (gsm8k.task, {"question": "q?", "answer": "so\n#### 1,234 or 5"}, "'1,234 or 5'"),
    ],
)
def test_rows_that_no_reply_can_pass_are_refused(
    task: Task, row: dict[str, object], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    good = {"mbpp": MBPP, "humaneval": HUMANEVAL, "scibench": SCIBENCH}.get(
        task.name, {"question": "p?", "answer": "#### 5"}
    )
    file.write_text(json.dumps(good))
    assert len(task.load("test", str(file))) == 1
    file.write_text(json.dumps(good) + "\n" + json.dumps(row))
    with pytest.raises(UserMistake, match=told) as caught:
        task.load("test", str(file))
    assert "rows.jsonl:2: " in str(caught.value)
