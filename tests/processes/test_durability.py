"""A run that dies anywhere goes on as if it had not: a crash at every write, sync, rename and
removal, on a host whose state depends on everything that it learnt; then the same with real weights
at a few places, and damage found afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import read, settings_of
from comas.hooks import Hook
from comas.storage import files
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.result import result_of
from comas.training.start import resume_async, train_async
from comas.types import UserMistake
from tests.support.faults import Crash, Faults, go_on, start, story
from tests.support.runs import SMALL, essence


def died(work: Callable[[], None], faults: Faults) -> None:
    with faults.watching(), pytest.raises((Crash, BaseExceptionGroup)):
        work()
    assert faults.dead, "another error than the crash"


@pytest.mark.slow
def test_a_crash_at_any_write_sync_rename_or_removal_changes_nothing(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    expected, names = whole
    assert {"write", "append", "rename", "fsync", "rmtree"} <= set(names)
    for at, name in enumerate(names):
        for halfway in (False, True) if name in ("write", "append", "rmtree") else (False,):
            folder = tmp_path / f"{at}-{halfway}"
            died(lambda f=folder: start(f), Faults(at, halfway))
            go_on(folder)
            assert story(folder) == expected, f"operation {at} ({name}, halfway: {halfway})"
            shutil.rmtree(folder)


def test_a_crash_while_resuming_changes_nothing(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    expected, names = whole
    # step 3 is written, the marker stands at 2
    late = [i for i, n in enumerate(names) if n == "append"][3]
    died(lambda: start(tmp_path / "cut"), Faults(late + 1))
    shutil.copytree(tmp_path / "cut", tmp_path / "counted")
    with Faults().watching() as faults:
        go_on(tmp_path / "counted")
    for at, name in enumerate(faults.names):
        folder = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "cut", folder)
        died(lambda f=folder: go_on(f), Faults(at, halfway=True))
        go_on(folder)
        assert story(folder) == expected, f"operation {at} of the resumed run ({name})"
        shutil.rmtree(folder)


def test_a_full_disk_is_one_error_and_after_making_room_nothing_is_lost(
    whole: tuple[Any, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, names = whole
    kinds = ("write", "append", "rename", "fsync")
    for at in range(6, sum(n in kinds for n in names), 9):
        folder = tmp_path / f"full-{at}"
        count = 0

        def full(name: str, real: Callable[..., Any], at: int = at) -> Callable[..., Any]:
            def act(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count > at:
                    raise OSError(28, "No space left on device", str(args[0]))
                return real(*args, **kwargs)

            return act

        with monkeypatch.context() as patch:
            for where, name in (
                (Path, "write_text"),
                (files, "append"),
                (os, "replace"),
                (os, "fsync"),
            ):
                patch.setattr(where, name, full(name, getattr(where, name)))
            with pytest.raises(OSError, match="No space left"):
                start(folder)
        go_on(folder)
        assert story(folder) == expected


def test_a_run_that_has_ended_is_not_measured_again(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    before = {
        p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "processes.json"
    }
    go_on(folder)
    assert {
        p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "processes.json"
    } == before


class Notes(Hook):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda c: cut_short(c / "state.json"), "state.json has"),
        (lambda c: flip(c / "state.json"), "SHA-256 differs"),
        (lambda c: (c / "state.json").unlink(), "state.json is missing"),
        (lambda c: (c / "manifest.json").unlink(), "no readable manifest"),
        (lambda c: (c / "manifest.json").write_text("{"), "no readable manifest"),
        (lambda c: cut_short(c.parent.parent / "metrics.jsonl"), "metrics.jsonl has"),
    ],
    ids=["cut", "flipped", "missing", "no manifest", "half manifest", "log cut"],
)
def test_a_damaged_checkpoint_is_passed_over_in_one_line(
    whole: tuple[Any, list[str]], tmp_path: Path, break_it: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "whole"
    watch = Notes()
    break_it(folder / "checkpoints" / "step-5")
    run_sync(resume_async(folder, watch))
    assert story(folder) == whole[0]
    note, *others = watch.notes
    assert note.startswith("checkpoint of step 5 is damaged (")
    assert said in note
    # those are of the team's learning
    assert all("checkpoint of step 4" in n for n in others if not n.startswith("step "))
    assert note.endswith(("going on from step 4", "going on from step 2"))


@pytest.mark.parametrize("text", ['{"step": ', "{}", "[]", '{"step": "x"}', "null", None])
def test_a_damaged_marker_is_replaced_by_the_checkpoints(
    whole: tuple[Any, list[str]], tmp_path: Path, text: str | None
) -> None:
    folder = tmp_path / "whole"
    watch = Notes()
    (folder / "commit.json").unlink()
    if text is not None:
        (folder / "commit.json").write_text(text)
    run_sync(resume_async(folder, watch))
    assert story(folder) == whole[0]
    assert "commit.json is " + ("damaged" if text is not None else "missing") in watch.notes[0]


def test_nothing_whole_left_is_an_error_that_keeps_what_there_is(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    for checkpoint in (folder / "checkpoints").iterdir():
        flip(checkpoint / "state.json")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(UserMistake, match=r"SHA-256 differs"):
        go_on(folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_damaged_measurement_that_can_be_made_again_stops_nothing(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    watch = Notes()
    cut_short(folder / "eval" / "after.json")
    run_sync(resume_async(folder, watch))
    assert story(folder) == whole[0]
    assert "eval/after.json is damaged" in watch.notes[0]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"processes": 3}', '{"processes": [3]}'])
def test_a_damaged_note_on_processes_stops_nothing(
    text: str, whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    watch = Notes()
    (folder / "processes.json").write_text(text)
    one_step_more(folder, watch)
    assert "processes.json is damaged" in watch.notes[0]


def one_step_more(folder: Path, watch: Notes) -> None:
    """Go on with a run that has come to its end."""
    steps = Run.open(folder).config()["steps"] + 1
    run_sync(resume_async(folder, watch, changes=settings_of([f"steps={steps}"])))


def test_a_damaged_first_measurement_is_said_and_not_reported(
    whole: tuple[Any, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut_short(tmp_path / "whole" / "eval" / "before.json")
    folder = tmp_path / "whole"
    result = run_sync(resume_async(folder, Notes()))
    assert result.accuracy["before"] is result.gain is None
    assert result.accuracy["after"] is not None
    assert "before.json is damaged" in caplog.text


def test_what_was_measured_after_fewer_steps_is_not_what_a_run_came_to(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    run = Run.open(tmp_path / "whole")
    assert result_of(run).gain is not None
    after = run.read_eval("after") or {}
    run.write_eval("after", {**after, "step": after["step"] - 1})  # it was killed when it went on
    result = result_of(run)
    assert result.accuracy["after"] is result.gain is None
    assert result.accuracy["before"] is not None


def test_two_processes_do_not_work_on_one_run(whole: tuple[Any, list[str]], tmp_path: Path) -> None:
    held = Run.open(tmp_path / "whole")
    held.lock()
    with pytest.raises(UserMistake, match="another process"):
        go_on(tmp_path / "whole")
    held.unlock()
    go_on(tmp_path / "whole")


def test_another_machine_is_noted_and_warned_of(
    whole: tuple[Any, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    watch = Notes()
    record = json.loads((folder / "processes.json").read_text())
    record["processes"][-1] |= {"torch": "1.0", "threads": 77}
    (folder / "processes.json").write_text(json.dumps(record))
    one_step_more(folder, watch)
    assert sum("torch was 1.0" in n or "threads was 77" in n for n in watch.notes) == 2
    assert len(json.loads((folder / "processes.json").read_text())["processes"]) == 2


@pytest.fixture(scope="module")
def trained(
    untaught: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], Any, list[str]]:
    """Real weights: the config, the essence of an uninterrupted run, and its operations."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    pairs = [
        f"{k.replace('__', '.')}={json.dumps(v)}"
        for k, v in {**SMALL, "steps": 3, "checkpoint_every": 1}.items()
    ]
    # of adapters: test_population_runs
    pairs += [f"hosts.home.base={untaught}", "hosts.home.learner=full"]
    with Faults().watching() as faults:
        run_sync(train_async(read(None, [*pairs, f"out={folder}"]), Hook()))
    return pairs, essence(Run(folder)), faults.names


@pytest.mark.parametrize("share", [0.3, 0.97])
def test_weights_and_moments_after_a_crash_are_the_same(
    trained: tuple[list[str], Any, list[str]], share: float, tmp_path: Path
) -> None:
    pairs, expected, names = trained
    folder = tmp_path / "cut"
    at = int(share * len(names))
    died(
        lambda: run_sync(train_async(read(None, [*pairs, f"out={folder}"]), Hook())),
        Faults(at, halfway=True),
    )
    go_on(folder)
    assert essence(Run(folder)) == expected
