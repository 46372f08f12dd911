"""Each committed step is sent once, whoever dies in between."""

from __future__ import annotations

import json

import pytest

from comas.storage.rewind import rewind
from comas.storage.run import Run
from comas.trackers.reader import Feed
from comas.types import UserMistake
from tests.support.faults import Crash
from tests.support.run_folders import checkpoint, step
from tests.support.tracking import Store, alarm, commit, measure, send


def test_a_step_is_sent_once_it_is_committed(run: Run) -> None:
    store = Store()
    assert send(run, store) == 0
    assert not (run.path / "track").exists(), "such a run may still be replaced"
    measure(run, "before", 0, 0.25)
    checkpoint(run, 0)
    assert send(run, store) == 1
    step(run, 0)
    step(run, 1)
    assert send(run, store) == 0
    checkpoint(run, 2)
    assert send(run, store) == 2
    assert send(run, store) == 0
    assert [number for number, _ in store.rows] == [0, 1, 2]
    assert store.rows[0][1]["accuracy/before"] == 0.25
    assert store.rows[1][1] == {"tokens": 0}
    assert len(set(store.ids)) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_what_a_resume_drops_and_plays_again_is_sent_once(run: Run, answers: bool) -> None:
    store = Store(answers)
    commit(run, 0, 2)
    step(run, 2)  # and here it is killed
    send(run, store)
    assert rewind(run)[0] == 2
    send(run, store)
    commit(run, 2, 5)
    send(run, store)
    assert store.steps == [1, 2, 3, 4, 5]


def test_alarms_are_told_once_they_are_committed_and_counted_in_watched_steps(run: Run) -> None:
    store = Store()
    commit(run, 0, 2)
    alarm(run, 1, "probes.proven")
    alarm(run, 1, "favours.shares")
    step(run, 2, monitors={"probes": {"proven": {"mean": 0.5}}})
    alarm(run, 2, "swaps.follows")
    send(run, store)
    told = [
        (2, "probes.proven", "probes.proven is wrong"),
        (2, "favours.shares", "favours.shares is wrong"),
    ]
    assert store.alarms == told
    checkpoint(run, 3)
    send(run, store)
    send(run, store)
    assert store.alarms == [*told, (3, "swaps.follows", "swaps.follows is wrong")]
    assert [figures.get("alarms") for _, figures in store.rows] == [None, None, 3.0]


def test_alarms_are_told_again_to_a_store_that_was_emptied(run: Run) -> None:
    store = Store()
    commit(run, 0, 2)
    alarm(run, 1, "probes.proven")
    send(run, store)
    store.rows.clear()
    send(run, store)
    assert store.alarms == 2 * [(2, "probes.proven", "probes.proven is wrong")]


def test_a_process_that_dies_while_it_tells_an_alarm_loses_none(run: Run) -> None:
    commit(run, 0, 2)
    alarm(run, 1, "probes.proven")
    for dies in range(4):
        store = Store(answers=False)
        store.dies = dies
        with pytest.raises(Crash):
            send(run, store)
        send(run, store)
        assert set(store.alarms) == {(2, "probes.proven", "probes.proven is wrong")}
        (run.path / "track" / "store.json").unlink()


def test_an_older_checkpoint_in_place_of_a_damaged_one_repeats_nothing(run: Run) -> None:
    store = Store(answers=False)
    feed = Feed(run, "store", store.open)
    commit(run, 0, 2)
    commit(run, 2, 4)
    feed.catch_up()
    (run.path / "checkpoints" / "step-4" / "a0" / "weights").write_text("flipped")
    assert rewind(run)[0] == 2
    feed.catch_up()
    commit(run, 2, 5)
    feed.catch_up()
    feed.release()
    assert store.steps == [1, 2, 3, 4, 5]


def test_accuracies_are_sent_once_and_again_of_a_longer_run(run: Run) -> None:
    store = Store()
    measure(run, "before", 0, 0.25)
    checkpoint(run, 0)
    commit(run, 0, 2)
    measure(run, "after", 2, 0.5)
    send(run, store)
    commit(run, 2, 3)
    send(run, store)  # that measurement is of a shorter run
    measure(run, "after", 3, 0.75)
    send(run, store)
    send(run, store)
    after = [(n, f["accuracy/after"]) for n, f in store.rows if "accuracy/after" in f]
    assert after == [(2, 0.5), (3, 0.75)]
    assert store.steps == [1, 2, 3]


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_that_dies_at_any_point_loses_nothing_and_repeats_what_cannot_be_asked(
    run: Run, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comas.trackers.reader.BATCH", 2)
    measure(run, "before", 0, 0.25)
    checkpoint(run, 0)
    commit(run, 0, 5)
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
        numbers = [number for number, _ in store.rows]
        if answers:
            assert store.rows == whole.rows
        else:
            assert sorted(set(numbers)) == [0, 1, 2, 3, 4, 5]
            assert len(numbers) - len(whole.rows) <= 2, "no more than a batch"
        (run.path / "track" / "store.json").unlink()


def test_a_store_that_was_emptied_gets_everything_again(run: Run) -> None:
    store = Store()
    commit(run, 0, 3)
    send(run, store)
    store.rows.clear()
    assert send(run, store) == 3


def test_one_process_sends_at_a_time(run: Run) -> None:
    commit(run, 0, 1)
    store = Store()
    sending = Feed(run, "store", store.open)
    sending.catch_up()
    with pytest.raises(UserMistake, match="another process is sending"):
        send(run, store)
    sending.release()
    assert send(run, store) == 0


def test_a_damaged_note_is_one_line(run: Run) -> None:
    commit(run, 0, 1)
    send(run, Store())
    note = run.path / "track" / "store.json"
    assert json.loads(note.read_text())["sent"] == {
        "accuracy/after": -1,
        "accuracy/before": -1,
        "tokens": 1,
    }
    for text in ("{", "[]", "{}"):
        note.write_text(text)
        with pytest.raises(UserMistake, match=r"is damaged.*; remove it to send everything anew"):
            send(run, Store())
