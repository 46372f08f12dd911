"""Trackers of a run that is trained: they are told of each step, and may fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import read, settings_of
from comas.exit_codes import MISTAKE
from comas.hooks import Hook
from comas.stats import Interval
from comas.storage.rewind import rewind
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.trackers.sink import figures_of
from comas.training.start import resume_async, train_async
from comas.types import UserMistake
from tests.support.command import run as command
from tests.support.faults import KEYS, Crash, story
from tests.support.run_folders import checkpoint
from tests.support.tracking import Store, attach, commit, lines_of, play, tracker


def test_a_step_is_sent_when_it_is_written_and_not_again_when_it_is_played_again(run: Run) -> None:
    store = Store()
    checkpoint(run, 0)
    tracker = attach(run, store, 0)
    play(run, tracker, 0, 1)
    play(run, tracker, 1, 2)  # and here it is killed
    assert store.steps == [1, 2]
    assert rewind(run)[0] == 0
    tracker = attach(run, store, 0)
    play(run, tracker, 0, 1)
    play(run, tracker, 1, 3)
    tracker.ended(None)
    assert store.steps == [1, 2, 3]
    assert store.closed == 1
    assert len({tracked.id for tracked in store.opened}) == 1
    assert [tracked.sent for tracked in store.opened] == [0, 2]


def test_what_was_trained_without_a_tracker_is_sent_when_there_is_one(run: Run) -> None:
    store = Store()
    commit(run, 0, 2)
    play(run, attach(run, store, 2), 2, 3)
    assert store.steps == [1, 2, 3]


def test_a_tracker_that_comes_later_gets_what_was_measured_before_and_each_measurement_once(
    run: Run,
) -> None:
    found = Interval(0.25, 0.1, 0.4, 8)
    run.write_eval("before", {"step": 0, "accuracy": found._asdict(), "answers": []})
    commit(run, 0, 2)
    store = Store()
    for _ in range(2):
        attached = attach(run, store, 2)
        attached.measured("after", 2, found)
        attached.ended(None)
    attach(run, store, 2).measured("after", 3, found)
    places = [(n, key) for n, of in store.rows for key in of if key.endswith("/mean")]
    measured = [place for place in places if place[1] in ("before/mean", "after/mean")]
    assert measured == [(0, "before/mean"), (2, "after/mean"), (3, "after/mean")]


def test_a_process_that_dies_at_any_point_loses_nothing_and_repeats_one_at_most(run: Run) -> None:
    commit(run, 0, 5)
    for dies in range(5):
        store = Store()
        store.dies = dies
        with pytest.raises(Crash):
            attach(run, store, 5)
        attach(run, store, 5)
        assert sorted(set(store.steps)) == [1, 2, 3, 4, 5]
        assert len(store.steps) <= 6
        (run.path / "track" / "store.json").unlink()


def test_the_note_of_an_older_version_is_read(run: Run) -> None:
    commit(run, 0, 3)
    (run.path / "track").mkdir()
    sent = {"tokens": 2, "accuracy/before": -1, "accuracy/after": -1}
    (run.path / "track" / "store.json").write_text(json.dumps({"id": "x", "sent": sent}))
    store = Store()
    attach(run, store, 3)
    assert store.steps == [3]
    assert store.opened[0].id == "x"


class Notes(Hook):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def train(folder: Path, *trackers: Path | str) -> list[str]:
    """The notes of a run of five steps with these trackers."""
    notes = Notes()
    names = json.dumps([str(name) for name in trackers])
    config = read(None, [*KEYS, f"out={folder}", f"track={names}"])
    run_sync(train_async(config, notes))
    return notes.texts


def steps_of(run: Path, name: str) -> list[int]:
    return [number for number, figures in lines_of(run, name) if "tokens" in figures]


def test_a_tracker_gets_every_step_and_changes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "tracked", tracker(tmp_path, "mine")) == train(tmp_path / "plain")
    numbers = [number for number, _ in lines_of(tmp_path / "tracked", "mine")]
    assert numbers == [0, 1, 2, 3, 4, 5, 5], "before, five steps, after"
    assert story(tmp_path / "tracked") == story(tmp_path / "plain")
    metrics = list(Run.open(tmp_path / "tracked").metrics())
    sent = dict(lines_of(tmp_path / "tracked", "mine")[1:6])
    assert sent == {line["step"] + 1: figures_of(line) for line in metrics}
    assert "sending" not in capsys.readouterr().out, "what trackers print is kept from stdout"


def test_a_longer_run_goes_on_where_its_tracker_was_and_may_leave_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, tracker(tmp_path, "mine"))
    run_sync(resume_async(folder, Hook(), changes=settings_of(["steps=6"])))
    assert steps_of(folder, "mine") == [1, 2, 3, 4, 5, 6]
    changes = ["steps=7", "track=[]"]
    run_sync(resume_async(folder, Hook(), changes=settings_of(changes)))
    assert steps_of(folder, "mine") == [1, 2, 3, 4, 5, 6]
    assert Run.open(folder).config()["track"] == []


def test_a_tracker_that_fails_is_told_once_and_ends_neither_run_nor_others(tmp_path: Path) -> None:
    bad = tracker(tmp_path, "bad", "raise RuntimeError('no key')")
    folder = tmp_path / "run"
    notes = [text for text in train(folder, bad, tracker(tmp_path, "good")) if "track" in text]
    assert steps_of(folder, "good") == [1, 2, 3, 4, 5]
    (told,) = notes
    assert "RuntimeError: no key" in told
    assert "the next `comas resume` of it sends what is left" in told
    assert len(list(Run.open(folder).metrics())) == 5


def missing(name: str) -> Any:
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "wandb",
            "track = 'wandb' needs a package that is not installed: pip install \"comas[wandb]\"",
        ),
        ("wand", "track = 'wand': did you mean wandb? (or ./file.py)"),
        ("all", "track = 'all': one of mlflow, tensorboard, trackio, wandb (or ./file.py)"),
        ("./no.py", "no.py': no such file"),
    ],
)
def test_a_tracker_that_cannot_be_had_is_one_line_before_anything_is_loaded(
    name: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(UserMistake) as mistake:
        train(tmp_path / "run", name)
    assert said in str(mistake.value)
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run")
    for words in (
        ["train", f'track=["{name}"]', f"out={tmp_path}/other"],
        ["train", "--dry-run", f'track=["{name}"]'],
    ):
        assert command(words, monkeypatch) == MISTAKE
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run" / "track").exists()


def test_two_trackers_of_one_file_name_are_refused_before_the_first_step_and_later(
    tmp_path: Path,
) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    one, other = (tracker(place, "mine") for place in places)
    with pytest.raises(UserMistake, match=r"called mine\.py"):
        train(tmp_path / "both", one, other)
    assert not (tmp_path / "both").exists()
    folder = tmp_path / "run"
    train(folder, one, one)
    changes = ["steps=6", f"track={json.dumps([str(one), str(other)])}"]
    with pytest.raises(UserMistake, match=r"called mine\.py: .*rename one"):
        run_sync(resume_async(folder, Hook(), changes=settings_of(changes)))
    assert Run.open(folder).config()["track"] == [str(one), str(one)]
    assert steps_of(folder, "mine") == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills of POSIX")
def test_kills_and_resumes_lose_no_step_and_repeat_one_each_at_most(
    untaught: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    mine = tracker(tmp_path, "mine")
    keys = ["steps=12", "questions=4", "test_questions=4", "eval_every=0", "checkpoint_every=2"]
    keys += [f"hosts.home.base={untaught}", "lr=1e-3", "threads=1", f'track=["{mine}"]']
    keys.append("options.format_check=false")
    kills = 0
    for _ in range(20):
        there = (folder / "config.toml").exists()
        words = ["resume", str(folder)] if there else ["train", *keys, f"out={folder}"]
        process = subprocess.Popen([sys.executable, "-m", "comas", *words])
        before = len(list(Run(folder).metrics())) if there else 0
        while process.poll() is None:
            log = folder / "metrics.jsonl"
            # one beyond a commit
            if log.exists() and len(list(Run(folder).metrics())) >= before + 3:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        if process.wait() == 0:
            break
    sent = steps_of(folder, "mine")
    assert sorted(set(sent)) == list(range(1, 13))
    assert len(sent) - 12 <= kills, "a process may die between sending a step and noting it"
