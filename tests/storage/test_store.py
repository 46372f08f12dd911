"""A run's folder: what is written, what the marker says, and what a rewind drops; no models."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from enum import Enum
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest

from comas.game.play import settle_all
from comas.storage import files
from comas.storage.game_log import Log
from comas.storage.records import episode_record, strict, without_none
from comas.storage.rewind import rewind
from comas.storage.run import FORMAT, Run
from comas.tasks import pick
from comas.testing import discuss, golden_script, scripted_context
from comas.types import Episode, Turn, UserMistake
from tests.support.run_folders import CONFIG, Q, checkpoint, step


def test_a_config_comes_back_without_its_nones(run: Run) -> None:
    config = Run.open(run.path).config()
    assert config == {
        "method": "comas",
        "steps": 9,
        "options": {"rounds": 2},
        "betas": [0.9, 0.95],
        "text": CONFIG["text"],
        "hosts": {"home": {}},
    }
    assert without_none({"a": [{"b": None}, None]}) == {"a": [{}, None]}


def test_what_is_written_is_read(run: Run) -> None:
    for number, text in enumerate(["plain", "line\nbreak", "\u2028 \x1b[31m <b> \ud7ff 😀"]):
        step(run, number, text)
    assert list(run.metrics()) == [
        {"step": n, "tokens": n, "text": t}
        for n, t in enumerate(["plain", "line\nbreak", "\u2028 \x1b[31m <b> \ud7ff 😀"])
    ]
    (episode,) = run.episodes(2)
    assert episode["turns"][0]["text"] == "\u2028 \x1b[31m <b> \ud7ff 😀"
    assert episode["question"] == {
        "id": Q.id,
        "prompt": Q.prompt,
        "kind": "three",
        "answer": Q.answer,
        "meta": dict(Q.meta),
    }
    assert run.read_eval("before") is None
    run.write_eval("before", {"step": 0, "accuracy": {"mean": 0.5}, "answers": []})
    assert run.read_eval("before") == {"step": 0, "accuracy": {"mean": 0.5}, "answers": []}
    assert not list(run.path.rglob("*.new"))


def test_recorded_discussions_hold_every_field_and_can_be_settled_again() -> None:
    from dataclasses import fields, replace

    from comas.methods import comas

    episodes = discuss(comas.method, pick.task, golden_script, [Q], options={"rounds": 3})
    record = json.loads(json.dumps(episode_record(episodes[0])))
    assert set(record) == {f.name for f in fields(Episode)}
    assert set(record["turns"][0]) == {f.name for f in fields(Turn)}
    again = Episode(
        record["id"],
        Q,
        [replace(Turn(**t), reward=None) for t in record["turns"]],
        record["answer"],
    )
    settle_all(scripted_context(comas.method, pick.task, golden_script)[0], [again])
    assert [t.reward for t in again.turns] == [t.reward for t in episodes[0].turns]


def test_a_rewind_drops_what_lies_beyond_the_marker_and_nothing_else(run: Run) -> None:
    for number in range(3):
        step(run, number)
    checkpoint(run, 3)
    kept = {p.relative_to(run.path): p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    for number in (3, 4):
        step(run, number)
    checkpoint_folder = run.checkpoint()
    (checkpoint_folder / "half").write_text("written")
    with (run.path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "tok')  # killed in the middle of a line
    assert rewind(Run.open(run.path)) == (3, [])
    assert {
        p.relative_to(run.path): p.read_bytes() for p in run.path.rglob("*") if p.is_file()
    } == kept
    assert not checkpoint_folder.exists()
    assert [m["step"] for m in run.metrics()] == [0, 1, 2]
    assert rewind(run) == (3, [])
    step(run, 3, "again")
    checkpoint(run, 4)
    assert [m["text"] for m in run.metrics()] == ["hi", "hi", "hi", "again"]
    assert rewind(run) == (4, [])


def test_a_run_that_was_never_committed_begins_again(run: Run) -> None:
    step(run, 0)
    (run.checkpoint() / "half").write_text("written")
    assert run.marker() is None
    with pytest.raises(UserMistake, match=r"first checkpoint: .*comas resume"):
        run.intact()
    assert rewind(run) == (0, [])
    assert not list(run.metrics())
    assert not list((run.path / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("best", "kept"),
    [
        ([None] * 5, [6, 8]),
        ([0] * 5, [0, 6, 8]),
        ([0, 2, 2, 2, 2], [2, 6, 8]),
        ([0, 2, 4, 6, 8], [6, 8]),
        ([0, 0, 0, 0, 8], [6, 8]),
        ([None, 1, 1, 1, 1], [6, 8]),
    ],
)
def test_kept_are_the_last_two_and_the_best(
    run: Run, best: list[int | None], kept: list[int]
) -> None:
    for number, mark in zip(range(0, 10, 2), best, strict=True):
        checkpoint(run, number, mark)
        assert number in run.steps_kept()
    assert sorted(run.steps_kept()) == kept
    assert [
        (run.path / "checkpoints" / f"step-{s}" / "a0" / "weights").read_text() for s in kept
    ] == [str(s) for s in kept]
    assert run.marker() == {"format": FORMAT, "step": 8, "metrics_bytes": 0, "best": best[-1]}


def test_a_commit_that_is_cut_short_leaves_the_old_marker_and_its_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1, 2):
        step(run, number)
        checkpoint(run, number + 1)
    step(run, 3)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        checkpoint(run, 4)
    monkeypatch.undo()
    again = Run.open(run.path)
    assert rewind(again) == (3, [])
    assert sorted(again.steps_kept()) == [2, 3]
    assert [m["step"] for m in again.metrics()] == [0, 1, 2]


def test_a_checkpoint_begins_empty(run: Run) -> None:
    (run.checkpoint() / "half").write_text("written")
    assert not list(run.checkpoint().iterdir())


def test_a_study_is_told_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "study.json").touch()
    with pytest.raises(UserMistake, match=r"is a study.*report\.md"):
        Run.open(tmp_path)


def test_folders_that_are_taken_missing_or_impossible(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserMistake, match=r"comas resume"):
        Run.create(CONFIG, str(run.path))
    with pytest.raises(UserMistake, match=r"config\.toml"):
        Run.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserMistake, match=r"out=.*r: "):
        Run.create(CONFIG, str(tmp_path / "file" / "r"))
    monkeypatch.chdir(tmp_path)
    fresh = [Run.create({"method": "./my/game.py"}, None).path for _ in range(3)]
    assert len(set(fresh)) == 3
    assert all(p.parts[0] == "runs" and "-game" in p.name for p in fresh)


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("put", [files.write, files.append])
def test_a_write_that_fails_names_its_file(put: Any) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'$"):
        put(FULL, "text")


def test_discussions_that_cannot_be_written_name_their_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: Any, **__: Any) -> Any:
        raise OSError(27, "File too large")

    monkeypatch.setattr(Path, "write_text", too_large)
    with pytest.raises(OSError, match=r"File too large: '.*000000\.jsonl'$"):
        step(run, 0)


class Colour(str, Enum):  # noqa: UP042 - as games of others have them
    RED = "red"


def test_what_is_printed_every_reader_of_json_takes() -> None:
    noted = {
        ("a", 1): math.nan,
        "np": np.float32(0.5),
        "many": np.array([1.0, math.inf]),
        "set": {3, 1},
        "deep": [{2: b"\x01"}],
        "none": None,
        "colour": Colour.RED,
    }
    found = json.loads(json.dumps(strict(noted), allow_nan=False))
    assert found == {
        "('a', 1)": None,
        "np": 0.5,
        "many": [1.0, None],
        "set": [1, 3],
        "deep": [{"2": "01"}],
        "none": None,
        "colour": "red",
    }
    loop: list[object] = []
    loop.append(loop)
    json.dumps(strict(loop))


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, as long as a process has mapped a file of it."""
    remove = shutil.rmtree

    def busy(path: Path, **keys: Any) -> None:
        if path.name == "step-1":
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        remove(path, **keys)

    monkeypatch.setattr(shutil, "rmtree", busy)
    for number in range(3):
        step(run, number)
        checkpoint(run, number + 1)
    assert sorted(run.steps_kept()) == [1, 2, 3]
    assert "step-1 cannot be removed (Directory not empty)" in caplog.text
    monkeypatch.setattr(shutil, "rmtree", remove)
    step(run, 3)
    checkpoint(run, 4)
    assert sorted(run.steps_kept()) == [3, 4], "the next commit has tried again"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOLCK, ""), OSError(errno.EOPNOTSUPP, ""), NotImplementedError("no flock")],
)
def test_a_disk_without_locks_is_warned_of(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: Any) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    files.lock(tmp_path, "run").release()
    assert "this disk has no locks" in caplog.text


def test_a_disk_that_forces_no_folders_holds_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refused)
    files.sync(tmp_path)
    (tmp_path / "x").write_text("x")
    with pytest.raises(OSError, match="Invalid argument"):
        files.sync(tmp_path / "x")


def test_a_line_that_a_full_disk_cuts_short_damages_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "games.jsonl")
    log.add({"id": "b", "verdict": "right"})
    append = files.append

    def full(path: Path, text: str) -> None:
        append(path, text[:7])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "append", full)
    with pytest.raises(OSError, match="No space"):
        log.add({"id": "c", "verdict": "right"})
    assert log.found.keys() == {"b"}, "what is not on the disk was not played"
    monkeypatch.setattr(files, "append", append)
    log.add({"id": "a", "verdict": "wrong"})
    again = Log(tmp_path / "games.jsonl")
    assert [record["id"] for record in again.records] == ["a", "b"], "whichever ended first"


def test_a_log_of_games_holds_no_texts_but_of_games_that_are_to_be_judged(tmp_path: Path) -> None:
    turn = {"id": "t", "role": "solution", "tokens": 3, "prompt": "p", "text": "x", "thoughts": ""}
    log = Log(tmp_path / "games.jsonl")
    for verdict in ("right", "failed"):
        log.add({"id": verdict, "verdict": verdict, "turns": [turn]})
    for each in (log, Log(tmp_path / "games.jsonl")):
        assert each.found["right"]["turns"] == [{"id": "t", "role": "solution", "tokens": 3}]
        assert each.found["failed"]["turns"] == [turn]
    assert log.path.read_text().count('"text": "x"') == 2


def test_a_log_of_games_takes_what_a_run_takes(tmp_path: Path) -> None:
    noted = {"margin": np.float32(0.5), "seen": {1, 2}, "by": {("a", 1): 2}}
    log = Log(tmp_path / "games.jsonl")
    log.add({"id": "q", "verdict": "right", "info": noted})
    log.close(seconds=0.0)
    again = Log(tmp_path / "games.jsonl")
    assert again.found["q"]["info"] == {"margin": 0.5, "seen": [1, 2], "by": {"('a', 1)": 2}}


def contents(path: Path) -> Any:
    return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Inode -> what of it a power cut leaves; a process that dies loses nothing."""
    kept: dict[int, Any] = {}
    real = files.sync

    def sync(path: Path) -> None:
        real(path)
        kept[path.stat().st_ino] = contents(path)

    monkeypatch.setattr(files, "sync", sync)
    return kept


def test_all_that_a_marker_counts_is_on_the_disk_before_it_moves(
    run: Run, on_disk: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Path] = []
    move = os.replace

    def replace(old: Path, new: Path) -> None:
        if new.name == "commit.json":
            parts = [run.path / "metrics.jsonl", old]
            parts += [
                p
                for n in ("episodes", "checkpoints")
                for p in (run.path / n, *(run.path / n).rglob("*"))
            ]
            lost.extend(p for p in parts if on_disk.get(p.stat().st_ino) != contents(p))
        move(old, new)

    monkeypatch.setattr(os, "replace", replace)
    for number in (0, 1):
        step(run, number)
        checkpoint(run, number + 1)
    assert not lost
    assert on_disk[run.path.stat().st_ino] == contents(run.path)


def test_a_log_that_is_closed_and_a_file_that_is_cut_are_on_the_disk(
    tmp_path: Path, on_disk: dict[int, Any]
) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.close(seconds=1.0)
    assert on_disk[log.path.stat().st_ino] == contents(log.path)
    files.truncate(log.path, 3)
    assert on_disk[log.path.stat().st_ino] == contents(log.path)
