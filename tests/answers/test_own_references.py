"""Own questions: references are read as people write them, and those that no reply can match are
refused at load.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comas.tasks import jsonl, mix
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
    with pytest.raises(UserMistake, match=r"rows.jsonl:1: no reply can match the answer"):
        task.load("test", str(file))


def test_a_question_with_two_answers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": "q?", "answer": a} for a in ("5", None, "5", "6")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserMistake, match=r"mine.jsonl:4: .* another answer, '5', .* '6'"):
        jsonl.load("test", str(file), whole=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (question,) = jsonl.load("test", str(file), whole=True)
    assert question.answer == "5"
