"""Faults in Python functions: made rows in the columns of the hub; the sandbox says what fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from comas import sandbox
from comas.tasks import mbpp_repair, repair
from comas.testing import check_task
from comas.types import Question, UserMistake

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


def row(i: int) -> dict[str, object]:
    code = f"def f{i}(a, b):\n    if a < b:  # the smaller\n        return a + {i}\n    return b"
    tests = [f"assert f{i}(1, 2) == {1 + i}", f"assert f{i}(5, 2) == 2"]
    return {"text": "x", "task_id": i, "test_setup_code": "", "code": code, "test_list": tests}


BROKEN = {**row(90), "test_list": ["assert f90(1, 2) == 0"]}
NEEDS_SETUP = {**row(91), "test_setup_code": "import os"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [*map(row, range(12)), BROKEN, NEEDS_SETUP]
    (tmp_path / "mbpp_train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def free(program: str, i: int = 0) -> str:
    """A program with tests that nobody holds out, of a name like `f0`."""
    for number in range(100):
        tests = f"assert f{i}(1, {number + 2}) == 1"
        if mbpp_repair.split_of(tests) == "train":
            return mbpp_repair.written(program, tests)
    raise AssertionError


WORKING = "def f0(a, b):\n    return min(a, b)"
FAULT = "def f0(a, b):\n    return max(a, b)"


def test_faults_fail_their_tests_and_answers_mend_them(folder: Path) -> None:
    splits = {split: mbpp_repair.load(split, path=str(folder)) for split in mbpp_repair.SHARES}
    everything = [question for questions in splits.values() for question in questions]
    assert len(everything) == 12, "rows that are broken, or need set-up code, are left out"
    asked = splits["train"][0]
    assert mbpp_repair.check(asked, asked.prompt) == "wrong"
    assert mbpp_repair.check(asked, asked.answer or "") == "right"
    for split, questions in splits.items():
        for question in questions:
            parts = mbpp_repair.read_question(question.prompt)
            assert parts is not None
            assert mbpp_repair.split_of(parts[1]) == split
            assert (mbpp_repair.task.pose(question.prompt) is None) == (split != "train")
    [first] = mbpp_repair.load("train", path=str(folder), limit=1)
    assert first == asked
    [program] = mbpp_repair.load("train", path=str(folder), limit=1, form="program")
    assert program.kind == "program"
    assert mbpp_repair.check(program, program.prompt) == "right"


def test_it_keeps_the_contract_of_tasks(folder: Path) -> None:
    check_task(mbpp_repair.task, names=["train", "test"], path=str(folder))


def test_a_reply_is_a_program_or_a_program_with_tests() -> None:
    asked = mbpp_repair.task.pose(free(FAULT))
    assert asked is not None
    fenced = f"The fault is `max`.\n```python\n{WORKING}\n```"
    assert mbpp_repair.extract(asked, fenced) == WORKING
    assert mbpp_repair.check(asked, fenced) == "right"
    assert mbpp_repair.check(asked, f"```python\n{FAULT}\n```") == "wrong"
    assert mbpp_repair.check(asked, "no program") == "wrong"
    again = mbpp_repair.task.pose(mbpp_repair.task.shown(asked, f"```python\n{FAULT} + 0\n```"))
    assert again is not None
    assert "max(a, b) + 0" in again.prompt


@pytest.mark.parametrize(
    "text",
    [
        "",
        WORKING,
        f"```python\n{WORKING}\n```",
        f"```python\n{WORKING}\n```\n```python\nassert g(1) == 1\n```",
        f"```python\n{WORKING}\n```\n```python\nf0(1, 2)\n```",
        f"```python\n{WORKING}\n```\n```python\nassert f0(1, 2) == 1",
        "```python\ndef f0(\n```\n```python\nassert f0(1, 2) == 1\n```",
    ],
)
def test_what_is_no_question(text: str) -> None:
    assert mbpp_repair.task.pose(text) is None


def test_held_out_tests_stay_held_out_however_they_are_written() -> None:
    held = [n for n in range(100) if mbpp_repair.split_of(written_for(n)) in repair.HELD_OUT]
    assert held
    for number in held:
        plain = written_for(number)
        spaced = plain.replace("==", " ==  ").replace(", ", ",")
        for text in (plain, spaced, f"{plain}  # easy", f"# easy\n{plain}\n{plain}"):
            assert mbpp_repair.task.pose(mbpp_repair.written(FAULT, text)) is None


def written_for(number: int) -> str:
    return f"assert f0(1, {number}) == 1"


def test_a_change_touches_one_operator_or_number() -> None:
    found = mbpp_repair.changes(
        "def f(a):\n    if a < 3 and a:\n        return a - 1\n    return -a"
    )
    assert len(found) == len(set(found)) == 7
    assert "    if a <= 3 and a:" in "\n".join(found)
    assert "    if a < 3 or a:" in "\n".join(found)
    assert "        return a + 1" in "\n".join(found)
    assert mbpp_repair.changes("def f(a):\n    return a") == []


def test_mistakes_are_told(folder: Path) -> None:
    with pytest.raises(UserMistake, match="no form 'bug': one of fault, program"):
        mbpp_repair.load("train", path=str(folder), form="bug")
    without = {key: value for key, value in row(1).items() if key != "code"}
    (folder / "mbpp_train.jsonl").write_text(json.dumps(without))
    with pytest.raises(UserMistake, match="`code`"):
        mbpp_repair.load("train", path=str(folder))
    (folder / "mbpp_train.jsonl").write_text(json.dumps({**row(1), "test_list": "assert"}))
    with pytest.raises(UserMistake, match="`test_list`"):
        mbpp_repair.load("train", path=str(folder))


def test_a_sandbox_that_breaks_down_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Question(id="q", prompt=free(FAULT))
    broken = sandbox.Found("failed", "the sandbox broke down", 0.0)
    monkeypatch.setattr(sandbox, "check", lambda *_, **__: broken)
    assert mbpp_repair.check(asked, f"```python\n{WORKING}\n```") == "failed"
