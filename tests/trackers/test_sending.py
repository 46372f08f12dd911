"""Each step is sent once, whoever dies in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from comas.stats import Interval
from comas.storage.rewind import rewind
from comas.storage.run import Run
from comas.trackers.tracker import Tracker
from tests.support.faults import Crash
from tests.support.run_folders import checkpoint, step
from tests.support.tracking import Store, alarm, attach, commit, measure, play, send


def test_a_step_is_sent_when_it_is_written_and_not_again_when_it_is_played_again(run: Run) -> None:
    for answers in (True, False):
        store = Store(answers)
        checkpoint(run, 0)
        play(run, attach(run, store, 0), 0, 2)  # and here it is killed
        assert store.steps == [1, 2]
        assert rewind(run)[0] == 0
        tracker = attach(run, store, 0)
        play(run, tracker, 0, 3)
        tracker.ended(None)
        assert store.steps == [1, 2, 3]
        assert store.closed == 1
        assert len({tracked.id for tracked in store.opened}) == 1
        assert [tracked.sent for tracked in store.opened] == [0, 2]
        rewind(run)
        (run.path / "track" / "store.json").unlink()


def test_a_copied_run_is_another_one_and_a_moved_run_the_same(run: Run, tmp_path: Path) -> None:
    store = Store(answers=False)
    commit(run, 0, 2)
    send(run, store)
    copied = Run(Path(shutil.copytree(run.path, tmp_path / "copy")))
    moved = Run(Path(shutil.copytree(run.path, tmp_path / "moved")))
    send(copied, store)
    assert len({tracked.id for tracked in store.opened}) == 2
    shutil.rmtree(run.path)
    send(moved, store)
    assert len({tracked.id for tracked in store.opened}) == 2


def test_two_trackers_of_one_file_name_are_refused(run: Run, tmp_path: Path) -> None:
    commit(run, 0, 2)
    places = [tmp_path / name / "sink.py" for name in "ab"]
    told: list[str] = []
    for place in places:
        place.parent.mkdir()
        place.touch()
        tracker = Tracker(str(place), Store().open)
        tracker.tell = told.append
        tracker.begin(run, None, 2)  # type: ignore[arg-type]
    (failed,) = told
    assert "another tracker of this name" in failed
    assert "a/sink.py" in failed


def test_what_was_trained_without_a_tracker_is_sent_when_there_is_one(run: Run) -> None:
    store = Store()
    measure(run, "before", 0, 0.25)
    commit(run, 0, 2)
    tracker = attach(run, store, 2)
    play(run, tracker, 2, 3)
    assert [number for number, _ in store.rows] == [0, 1, 2, 3]
    assert store.rows[0][1]["accuracy/before"] == 0.25


def test_alarms_are_told_once_and_counted_in_watched_steps(run: Run) -> None:
    store = Store()
    commit(run, 0, 2)
    alarm(run, 1, "probes.proven")
    alarm(run, 1, "favours.shares")
    tracker = attach(run, store, 2)
    told = [
        (2, "probes.proven", "probes.proven is wrong"),
        (2, "favours.shares", "favours.shares is wrong"),
    ]
    assert store.alarms == told
    step(run, 2, monitors={"probes": {"proven": {"mean": 0.5}}})
    alarm(run, 2, "flips.flips")
    tracker.step(list(run.metrics())[-1], [])
    checkpoint(run, 3)
    send(run, store)
    assert store.alarms == [*told, (3, "flips.flips", "flips.flips is wrong")]
    assert [figures.get("alarms") for _, figures in store.rows] == [None, None, 3.0]


def test_an_older_checkpoint_in_place_of_a_damaged_one_repeats_nothing(run: Run) -> None:
    store = Store(answers=False)
    commit(run, 0, 2)
    commit(run, 2, 4)
    send(run, store)
    (run.path / "checkpoints" / "step-4" / "a0" / "weights").write_text("flipped")
    assert rewind(run)[0] == 2
    play(run, attach(run, store, 2), 2, 5)
    assert store.steps == [1, 2, 3, 4, 5]


def test_accuracies_are_sent_once_and_again_of_a_longer_run(run: Run) -> None:
    store = Store()
    checkpoint(run, 0)
    tracker = attach(run, store, 0)
    tracker.measured("before", 0, Interval(0.25, 0.1, 0.4, 8))
    play(run, tracker, 0, 2)
    tracker.measured("validation", 2, Interval(0.5, 0.1, 0.9, 8))
    tracker.measured("after", 2, Interval(0.5, 0.1, 0.9, 8))
    checkpoint(run, 2)
    measure(run, "after", 2, 0.5)
    tracker = attach(run, store, 2)
    tracker.measured("after", 2, Interval(0.5, 0.1, 0.9, 8))
    play(run, tracker, 2, 3)
    tracker.measured("after", 3, Interval(0.75, 0.1, 0.9, 8))
    after = [(n, f["accuracy/after"]) for n, f in store.rows if "accuracy/after" in f]
    assert after == [(2, 0.5), (3, 0.75)]
    assert store.steps == [1, 2, 3]
    assert [number for number, _ in store.rows] == [0, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_that_dies_at_any_point_loses_nothing_and_repeats_one_at_most(
    run: Run, answers: bool
) -> None:
    measure(run, "before", 0, 0.25)
    checkpoint(run, 0)
    commit(run, 0, 5)
    alarm(run, 1, "probes.proven")
    measure(run, "after", 5, 0.5)
    whole = Store()
    send(run, whole)
    (run.path / "track" / "store.json").unlink()
    for dies in range(whole.operations):
        store = Store(answers)
        store.dies = dies
        with pytest.raises(Crash):
            send(run, store)
        send(run, store)
        assert {number for number, _ in store.rows} == {0, 1, 2, 3, 4, 5}
        assert len(store.rows) - len(whole.rows) <= 1
        assert set(store.alarms) == set(whole.alarms)
        if answers:
            assert store.steps == [1, 2, 3, 4, 5]
        (run.path / "track" / "store.json").unlink()


def test_what_a_store_lost_is_sent_again(run: Run) -> None:
    store = Store()
    commit(run, 0, 3)
    send(run, store)
    del store.rows[1:]
    assert send(run, store) == 2
    assert store.steps == [1, 2, 3]


def test_a_damaged_note_is_one_line(run: Run) -> None:
    commit(run, 0, 1)
    send(run, Store())
    note = run.path / "track" / "store.json"
    assert json.loads(note.read_text())["sent"] == {"tokens": 1}
    for text in ("{", "[]", '{"id": "x"}'):
        note.write_text(text)
        tracker = Tracker("store", Store().open)
        told: list[str] = []
        tracker.tell = told.append
        tracker.begin(run, None, 1)
        tracker.ended(None)
        assert "is damaged; remove it to send everything anew" in str(tracker.failed)
        assert len(told) == 1


def test_the_note_of_an_older_version_is_read(run: Run) -> None:
    commit(run, 0, 3)
    (run.path / "track").mkdir()
    sent = {"tokens": 2, "accuracy/before": -1, "accuracy/after": -1}
    (run.path / "track" / "store.json").write_text(json.dumps({"id": "x", "sent": sent}))
    store = Store(answers=False)
    assert send(run, store) == 1
    assert store.opened[0].id == "x"
