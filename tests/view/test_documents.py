"""What a page is built from: read by number, by offset, and as JSON that a browser reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comas.storage.alarms import append_alarms
from comas.storage.run import Run
from comas.types import UserMistake
from comas.view.documents import (
    EvaluationDocuments,
    Growing,
    RunDocuments,
    Several,
    encoded,
    records,
)
from tests.support.viewed import CONFIG, HOSTILE, discussion, evaluation, metrics, viewed_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return viewed_run(tmp_path / "r")


Reader = Callable[[Path], Callable[[], Sequence[Any]]]


@pytest.fixture(params=["files of discussions", "files that grow"])
def reader(request: pytest.FixtureRequest) -> Reader:
    if request.param == "files that grow":
        return lambda path: Growing(path).records
    return lambda path: lambda: records(path)


def test_lines_are_found_as_the_file_grows(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    read = reader(path)
    assert len(read()) == 0
    path.write_text('{"n": 0}\n{"n": 1}\n{"n"')
    assert [record["n"] for record in read()] == [0, 1]
    with path.open("a") as file:
        file.write(': "ü\\u2028"}\n')
    assert read()[2] == {"n": "ü\u2028"}
    path.write_text('{"n": 9}\n')  # a run that was set back
    assert [record["n"] for record in read()] == [9]


@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_a_file_that_was_cut_and_has_grown_again_is_read_anew(
    reader: Reader, lines: int, tmp_path: Path
) -> None:
    """As of a run that was killed and gone on with, between two looks of the page."""
    path = tmp_path / "x.jsonl"
    read = reader(path)
    path.write_text("".join(f'{{"n": {n}, "seconds": 1.5}}\n' for n in range(3)))
    assert len(read()) == 3
    path.write_text("".join(f'{{"n": {n}, "seconds": 10.25}}\n' for n in range(lines)))
    assert list(read()) == [{"n": n, "seconds": 10.25} for n in range(lines)]
    path.unlink()
    assert len(read()) == 0


def test_rows_of_a_step_that_was_played_again_are_the_new_ones(run: Run) -> None:
    documents = RunDocuments(str(run.path))
    before = documents.read("step/0")
    file = run.path / "episodes" / "000000.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    after = documents.read("step/0")
    assert [row["id"] for row in after] == [row["id"] for row in reversed(before)]


def test_a_damaged_line_is_named(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    read = reader(path)
    for damage in ('{"n', "[1]", "7", "[" * 100_000):
        path.write_text(f'{{"n": 0}}\n{damage}\n')
        with pytest.raises(UserMistake, match=r"x\.jsonl line 2"):
            read()


def test_a_run_as_documents(run: Run) -> None:
    documents = RunDocuments(str(run.path))
    facts = documents.read("run")
    assert (facts["steps"], facts["planned"], list(facts["measured"])) == (
        3,
        9,
        ["before", "after"],
    )
    assert [step["step"] for step in documents.read("steps/1")] == [1, 2]
    rows = documents.read("step/0")
    assert [row["kinds"] for row in rows] == [
        [],
        ["misjudged", "rewarded-but-wrong"],
        ["right-but-unrewarded", "unreadable"],
    ]
    one = documents.read("step/0/1")
    assert one == documents.read("step/0/all")[1]
    assert [turn["id"] for turn in one["turns"]] == [
        "solution0",
        "solution0.evaluation0",
        "solution0.evaluation0.scoring0",
    ]
    assert one["turns"][2]["about"] == "solution0.evaluation0"
    assert one["turns"][0]["right"] is False
    assert one["turns"][2]["facts"] == {"score": 3}
    assert len(documents.read("eval/before")["answers"]) == len(HOSTILE)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "step",
        "step/7/0",
        "step/0/99",
        "step/-1",
        "step/0/../1",
        "eval/overlap",
        "eval/../config",
        "../config.toml",
        "steps/x",
    ],
)
def test_there_are_no_other_documents(run: Run, name: str) -> None:
    documents = RunDocuments(str(run.path))
    if name == "step/7/0":
        assert documents.read("step/7") == []
    with pytest.raises(KeyError):
        documents.read(name)


def test_a_run_that_goes_on_is_followed(run: Run) -> None:
    documents = RunDocuments(str(run.path))
    assert documents.read("step/3") == []
    run.write_step(metrics(3), [discussion(3, 0, right=True, score=3)])
    assert documents.read("run")["steps"] == 4
    assert len(documents.read("step/3")) == 1


def test_steps_have_the_evidence_of_monitors_and_what_an_alarm_needs(run: Run) -> None:
    (step,) = RunDocuments(str(run.path)).read("steps/2")
    assert step["evidence"]["probes"] == {"strangers": 2.0, "cut": 2.1, "proven": 2.2}
    assert step["needed"] == 2.5


def test_of_an_older_run_an_alarm_says_what_it_needed(run: Run) -> None:
    older = metrics(3)
    older["monitors"] = {"probes": {"cut": {"evidence": 1.0}}}
    run.write_step(older, [])
    documents = RunDocuments(str(run.path))
    assert documents.read("steps/3")[0]["needed"] is None
    append_alarms(run.path, [{"step": 3, "needed": 1000.0}])
    assert documents.read("steps/3")[0]["needed"] == pytest.approx(3.0)
    run.write_step({**metrics(4), "monitors": {}}, [])
    (unwatched,) = documents.read("steps/4")
    assert unwatched["evidence"] == {}
    assert unwatched["needed"] is None


def test_json_has_no_infinity(run: Run) -> None:
    text = encoded(RunDocuments(str(run.path)).read("steps/0"))
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert encoded({"x": 0.123456789}, 4) == '{"x": 0.1235}'


def test_an_evaluation_as_documents(tmp_path: Path) -> None:
    documents = EvaluationDocuments(str(evaluation(tmp_path / "e")))
    assert documents.read("run")["files"] == ["seed.pick.single.0123abcd"]
    assert [row["verdict"] for row in documents.read("games/0")] == ["wrong"] * len(HOSTILE)
    assert documents.read("games/0")[0]["kinds"] == []  # nothing is rewarded in an evaluation
    assert documents.read("games/0/0") == documents.read("games/0/all")[0]
    for name in ("games/1", "games/0/99", "games/x", "step/0"):
        with pytest.raises(KeyError):
            documents.read(name)


def test_several_folders_are_told_apart_by_number(run: Run, tmp_path: Path) -> None:
    both = [RunDocuments(str(run.path)), EvaluationDocuments(str(evaluation(tmp_path / "e")))]
    documents = Several(both)
    assert documents.read("folders") == 2
    assert [documents.read(f"{n}/run")["kind"] for n in (0, 1)] == ["run", "evaluation"]
    for name in ("2/run", "run", "x/run", "-1/run"):
        with pytest.raises(KeyError):
            documents.read(name)


def test_threads_that_look_at_a_file_at_once_find_its_lines_once(
    reader: Reader, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    read = reader(path)
    path.write_text('{"a": 1}\n' * 50_000)
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(lambda _: len(read()), range(4)))
    assert counts == [50_000] * 4


def test_pay_that_was_compared_is_listed_as_what_it_was_before(tmp_path: Path) -> None:
    """Right and paid 0, as all answers were right: nobody went unpaid."""
    run = Run.create(CONFIG, str(tmp_path / "r"))
    episode = discussion(0, 0, right=True, score=3)
    episode.turns[0].reward = 0.0
    run.write_step(metrics(0), [episode])
    episode.turns[0].info["raw"] = 1.0
    run.write_step(metrics(1), [episode])
    documents = RunDocuments(str(run.path))
    assert documents.read("step/0")[0]["kinds"] == ["right-but-unrewarded"]
    assert documents.read("step/1")[0]["kinds"] == []


def test_a_judgement_about_itself_is_of_no_work(run: Run) -> None:
    file = run.path / "episodes" / "000000.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for turn in records[1]["turns"]:
        turn["about"] = turn["id"]
        turn["info"] = {"accepts": True}
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert RunDocuments(str(run.path)).read("step/0")[1]["kinds"] == []


def test_a_judgement_is_of_the_work_that_it_is_about_and_of_none_before(tmp_path: Path) -> None:
    """A revision without a label, after wrong work that somebody else would have refused."""
    run = Run.create(CONFIG, str(tmp_path / "r"))
    episode = discussion(0, 0, right=False, score=3)
    work, _, judgement = episode.turns
    revised = replace(work, id=f"{work.id}.revised", about=work.id, info={})
    for step, judged in enumerate((work, revised)):
        judgement.about = judged.id
        run.write_step(metrics(step), [replace(episode, turns=[work, revised, judgement])])
    documents = RunDocuments(str(run.path))
    assert "misjudged" in documents.read("step/0")[0]["kinds"]
    assert "misjudged" not in documents.read("step/1")[0]["kinds"]
