"""What a preflight is given and gives: keys in Python and for several bases, tasks that have nothing
to vote on, JSON that every reader takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comas.evaluation.preflight import Judged, Preflight, planned_team, preflight
from comas.stats import Interval
from comas.types import UserMistake
from tests.support.command import run

SMALL: dict[str, Any] = {"questions": 3, "answers": 3}
WITHOUT_EXTRACT = """
from dataclasses import replace

from comas.tasks.pick import task as pick

task = replace(pick, name="unread", extract=None)
"""


def refused(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def nothing_judged() -> Preflight:
    """A preflight without dissent, so that nothing was judged, in no time."""
    judge = Judged("text", 0, 0, 0.0, float("nan"), float("nan"), None, None, None)
    open_ended = Interval(0.5, float("-inf"), float("inf"), 1)
    other = Judged("expected", 1, 2, 0.0, 0.5, 0.5, open_ended, open_ended, 0.0)
    return Preflight(
        team=["tiny"],
        task="pick",
        questions=1,
        answers=3,
        readable=1.0,
        cut=0.0,
        distinct=1.0,
        majority=1.0,
        dissent=0.0,
        example="",
        judges=[judge, other],
        truth=None,
        methods=[],
        tokens=1,
        seconds=0.0,
        step_minutes=float("inf"),
        notes=[],
    )


def test_what_is_no_number_is_null_in_json() -> None:
    text = json.dumps(nothing_judged().record())
    found = json.loads(text, parse_constant=refused)
    said, expected = found["judges"]
    assert said["accepts_majority"] is None
    assert said["j"] is None
    assert expected["j"] == {"mean": 0.5, "low": None, "high": None, "n": 1}
    assert found["step_minutes"] is None


def test_the_object_of_a_team_without_dissent_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preflight", "tiny", "temperature=0.01", "--questions", "1", "--answers", "2"]
    assert run([*words, "--json"], monkeypatch) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(line, parse_constant=refused)["dissent"] == 0.0


def test_keys_are_the_same_in_python_and_on_the_command_line() -> None:
    flat = preflight("tiny", **SMALL, task_options__largest=12, room__solution=16)
    table = preflight("tiny", **SMALL, task_options={"largest": 12}, room={"solution": 16})
    assert flat.judges == table.judges
    assert flat.example == table.example
    with pytest.raises(UserMistake, match=r"room\.solution = None"):
        preflight("tiny", **SMALL, room={"solution": None})


def test_keys_have_the_types_of_their_values_where_bases_are_mixed() -> None:
    planned = planned_team(["tiny", "tiny-b"], {"task_options.largest": 12, "temperature": 0.5})
    assert [policy.source.name for policy in planned.policies] == ["tiny", "tiny-b"]
    assert planned.config.task_options["largest"] == 12
    assert planned.config.temperature == 0.5
    assert [policy.host for policy in planned.policies] == ["m0", "m1"]


def test_what_is_missing_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("comas.evaluation.preflight.asked", build)
    monkeypatch.delenv("COMAS_DATA", raising=False)
    for settings in ({"task": "jsonl"}, {"task": "gsm8k", "data": "./nowhere"}):
        with pytest.raises(UserMistake):
            preflight("tiny", **SMALL, **settings)


@pytest.mark.parametrize(("minutes", "asked"), [(None, 7), (1e-9, 4), (60.0, 7)])
def test_as_many_questions_are_asked_as_fit_into_minutes(minutes: float | None, asked: int) -> None:
    heard: list[str] = []
    found = preflight("tiny", questions=7, answers=2, minutes=minutes, tell=heard.append, threads=1)
    assert found.questions == asked
    assert heard[0].startswith("asking 7 questions of pick, 2 times each: at most 119 replies")
    assert heard[1] == "7 questions: intervals say next to nothing, ask 16 or more"
    assert any("for the other 3 questions" in line for line in heard) == (asked == 7)
    assert any("fit into" in line for line in heard) == (minutes == 60.0)
    assert any("the first 4 questions took more than 1e-09" in line for line in heard) == (
        asked == 4
    )


def game(folder: Path) -> str:
    return "kuhn"


def without_extract(folder: Path) -> str:
    file = folder / "unread.py"
    file.write_text(WITHOUT_EXTRACT)
    return str(file)


@pytest.mark.parametrize(("task", "says"), [(game, "is a game"), (without_extract, "`extract`")])
def test_tasks_without_answers_to_compare_are_one_line(
    task: Callable[[Path], str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["preflight", "tiny", f"task={task(tmp_path)}"], monkeypatch) == 2
    *notes, last = capsys.readouterr().err.splitlines()
    assert says in last
    assert not any("asking" in note for note in notes)


BROKEN = """
from dataclasses import replace

from comas.tasks.pick import task as pick


def verify(question, text):
    return {"22": "right"}[text]


task = replace(pick, name="broken", verify=verify)
"""


def test_a_verifier_of_ones_own_that_breaks_down_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(BROKEN)
    with pytest.raises(UserMistake, match=r"broken.py line 8: KeyError"):
        preflight("tiny", task="./broken.py", threads=1, **SMALL)
