"""A run is a folder: write, commit, read.

`config.toml`, `metrics.jsonl` (an object per step), `episodes/<step>.jsonl` (an object per
discussion), `checkpoints/step-N/` (sealed), `eval/*.json`, and `commit.json`: the marker, moved
last. Leaves out: what the numbers mean, going back to a commit (`storage.rewind`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import filelock
import tomli_w

from comas.program import VERSION, command
from comas.storage import files
from comas.storage.nearby import resembling
from comas.storage.out_folder import check_free, fresh
from comas.storage.records import episode_record, line, lines, without_none
from comas.types import Episode, UserMistake

LOG = logging.getLogger("comas")
FORMAT = 1
"""Format of the folder (docs/stability-promise.md). It grows where a version writes what the one
before could not read; folders without a number are of format 1.
"""
KEEP = 2
"""Checkpoints that are kept besides the best."""
REMEDY = "remove it to go on without what it said"
RUNS_HAVE = {"method": str, "steps": int, "hosts": dict}
"""Keys that every run's config has, and others' files of that name have not, with their types."""


class Run:
    """The folder of one run, open for writing or reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: filelock.BaseFileLock | None = None
        self._unsynced: list[Path] = []

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def create(cls, config: Mapping[str, Any], out: str | None) -> Run:
        """A fresh folder with its config; without `out`, `runs/<time>-<method>`."""
        if out is not None:
            check_free(out)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config['method']).stem}"
        path = fresh(Path("runs") / name) if out is None else Path(out)
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run.lock()
        except OSError as error:
            raise UserMistake(f"out={path}: {error.strerror}") from error
        try:
            if out is not None:
                check_free(out)  # now that nobody else can begin there
            for name in ("episodes", "checkpoints", "eval"):
                (path / name).mkdir(exist_ok=True)
            (path / "metrics.jsonl").write_text("", encoding="utf-8")
            # last: with it the folder is a run
            files.replace(path / "config.toml", tomli_w.dumps(without_none(config)))
        except BaseException:
            run.unlock()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run."""
        path = os.path.expanduser(path)
        if not (Path(path) / "config.toml").is_file():
            if (Path(path) / "study.json").is_file():
                raise UserMistake(
                    f"{path} is a study, not a run: read {Path(path) / 'report.md'}, or name one of"
                    f" the runs below {Path(path) / 'cells'}"
                )
            raise UserMistake(f"{path} is not a run: it has no config.toml{resembling(str(path))}")
        run = cls(Path(path))
        run.config()  # what is called so may be of something else
        run._check_format()
        return run

    def _check_format(self) -> None:
        """An error for a folder that a later version of comas has written."""
        try:
            marker = files.read_object(self.path / "commit.json")
        except UserMistake:  # said where the marker is needed
            return
        written = (marker or {}).get("format", FORMAT)
        if written != FORMAT:
            raise UserMistake(
                f"{self.path} has run folder format {written}, and comas {VERSION} reads format"
                f" {FORMAT}: use the version of comas that wrote it, or a later one"
            )

    def lock(self) -> None:
        """Keep other processes from working on this run until `unlock`."""
        self._lock = files.lock(self.path, "run")

    def unlock(self) -> None:
        """Others may."""
        if self._lock is not None:
            self._lock.release()

    def config(self) -> dict[str, Any]:
        """The resolved config, as it was saved."""
        path = self.path / "config.toml"
        try:
            config = files.read_toml(path)
        except ValueError as error:
            raise UserMistake(f"{path} is damaged: {error}") from error
        for key, kind in RUNS_HAVE.items():
            if not isinstance(config.get(key), kind):
                raise UserMistake(
                    f"{self.path} is not a run: its config.toml, which runs write whole, has no"
                    f" {key}"
                )
        return config

    def resuming(self) -> str:
        """The command that goes on with this run, in quotes."""
        return f"`{command()} resume {shlex.quote(str(self.path))}`"

    def change(self, changes: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Other values of some dotted keys from now on, of which None is no value and removes the
        key; returns what they were and are.
        """
        config = self.config()
        changed: dict[str, list[Any]] = {}
        for key, value in changes.items():
            *path, last = key.split(".")
            table = config
            for part in path:
                table = table[part]
            changed[key] = [table.get(last), value]
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        if changes:
            files.replace(self.path / "config.toml", tomli_w.dumps(config))
        return changed

    def write_step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """Append a step's metrics, and its discussions as a file of their own; on the disk for
        certain after `commit`.
        """
        path = self.path / "episodes" / f"{metrics['step']:06d}.jsonl"
        records = [line(episode_record(episode)) for episode in episodes]
        with files.naming(path):
            path.write_text("".join(records), encoding="utf-8")
        self._unsynced.append(path)
        files.append(self.path / "metrics.jsonl", line(metrics))

    def write_eval(self, name: str, record: Mapping[str, Any]) -> None:
        """One measurement with its answers."""
        files.replace(self.path / "eval" / f"{name}.json", files.as_json(record))

    def read_eval(
        self, name: str, note: Callable[[str], Any] = LOG.warning
    ) -> dict[str, Any] | None:
        """That measurement; None if there is none, or, which `note` reports, if its file is
        damaged: the run itself is whole.
        """
        path = self.path / "eval" / f"{name}.json"
        try:
            record = files.read_object(path)
        except UserMistake as error:
            note(f"{error}; it counts as not measured")
            return None
        if record is None:
            return None
        keys = ("exact", "tested") if name == "overlap" else ("step", "accuracy", "answers")
        if type(record) is dict and record.keys() >= set(keys):
            return record
        note(f"{path} is damaged: it has to have {', '.join(keys)}; it counts as not measured")
        return None

    def write_spent(self, accounts: Mapping[str, Any]) -> None:
        """Write what hosts behind an API have cost; apart from checkpoints, since what is dropped
        is billed all the same.
        """
        files.replace(self.path / "spent.json", files.as_json(accounts, indent=1))

    def spent(self) -> dict[str, Any]:
        """Read what hosts have cost as it was last written; nothing where nothing was, or where no
        host costs anything.
        """
        hosts = self.config()["hosts"].values()
        if not any(host.get("api") or host.get("kind") for host in hosts):
            return {}
        return accounts_in(self.path / "spent.json")

    def write_process(self, facts: Mapping[str, Any]) -> list[str]:
        """Note what a process that works on this run runs on; returns what differs from the one
        before, in words.
        """
        path = self.path / "processes.json"
        try:
            processes = self.processes()
        except UserMistake:
            files.replace(path, json.dumps({"processes": [facts]}, indent=1))
            return [f"{path} is damaged: what it said is lost"]
        before = processes[-1] if processes else facts
        files.replace(path, json.dumps({"processes": [*processes, facts]}, indent=1))
        compared = (facts.keys() & before.keys()) - {"step", "changed"}
        return [
            f"{key} was {before[key]}, is {facts[key]}"
            for key in facts
            if key in compared and before[key] != facts[key]
        ]

    def processes(self) -> list[dict[str, Any]]:
        """The facts of each process that worked on this run; none where nothing was noted."""
        path = self.path / "processes.json"
        try:
            noted: Any = (files.read_object(path) or {"processes": []}).get("processes")
            listed: list[Any] = cast("list[Any]", noted) if isinstance(noted, list) else [None]
            if not all(isinstance(each, dict) for each in listed):
                raise UserMistake(f"{path} is damaged: it lists no processes")
        except UserMistake as error:
            raise UserMistake(f"{error}; {REMEDY}") from error
        return listed

    def versions(self) -> list[str]:
        """Name the versions of comas, with their commits, under which processes worked on this run,
        in the order of the first of each.
        """
        named = [
            " ".join([process["comas"], *filter(None, [process.get("commit")])])
            for process in self.processes()
        ]
        return list(dict.fromkeys(named))

    def checkpoint(self) -> Path:
        """An empty folder for the next `commit`."""
        path = self.checkpoint_of("new")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, step: int, best: int | None = None) -> None:
        """Seal the checkpoint after `step` steps and move the marker: everything so far is on disk.

        Older ones go, but the best and those that others hold.
        """
        log = self.path / "metrics.jsonl"
        for path in (*self._unsynced, self.path / "episodes", log):
            files.sync(path)
        self._unsynced.clear()
        marker = {"format": FORMAT, "step": step, "metrics_bytes": log.stat().st_size, "best": best}
        unfinished = self.checkpoint_of("new")
        files.seal(unfinished, marker)
        folder = self.checkpoint_of(step)
        if folder.exists():  # beyond the marker, or damaged
            shutil.rmtree(folder)
        files.rename(unfinished, folder)
        files.replace(self.path / "commit.json", json.dumps(marker))
        steps = self.steps_kept()
        newest = sorted(steps)[-KEEP:]
        needed = {*newest, best, *steps_held(self)}
        for old in set(steps) - needed:
            try:
                shutil.rmtree(self.checkpoint_of(old))
            except OSError as error:  # NFS and Windows keep what a process has mapped
                LOG.warning(
                    "%s cannot be removed (%s): the next commit tries again",
                    self.checkpoint_of(old),
                    error.strerror,
                )

    def checkpoint_of(self, step: int | Literal["new"]) -> Path:
        """The folder of a checkpoint, or of the one that is being written."""
        return self.path / "checkpoints" / ("new" if step == "new" else f"step-{step}")

    def steps_kept(self) -> list[int]:
        """Steps that have a checkpoint; whatever else lies beside them is somebody else's."""
        folders = (self.path / "checkpoints").glob("step-*")
        return [step for folder in folders if (step := _step_of(folder)) is not None]

    def marker(self) -> dict[str, Any] | None:
        """The last commit: `step`, `metrics_bytes`, `best`; None before the first."""
        path = self.path / "commit.json"
        if not path.exists():
            # sealed folders say that there have been commits
            if max(self.steps_kept(), default=0) > 0:
                raise UserMistake(f"{path} is missing, although there are checkpoints")
            return None
        marker = files.read_object(path)
        keys = ("step", "metrics_bytes")
        if not isinstance(marker, dict) or any(type(marker.get(key)) is not int for key in keys):
            raise UserMistake(f"{path} is damaged: it names no step")
        return marker

    def intact(self, step: int | None = None) -> Path:
        """The checkpoint after `step` steps (None: of the marker); its policies are proved to be as
        they were written, its optimizers, two thirds of the bytes, are not read.
        """
        if step is None:
            marker = self.marker()
            if marker is None:
                self.config()  # where this is no run at all, that is the news
                raise UserMistake(
                    f"{self.path} was stopped before its first checkpoint: go on with"
                    f" {self.resuming()}"
                )
            last: int = marker["step"]
            step = last
        folder = self.checkpoint_of(step)
        steps = sorted(self.steps_kept())
        if not folder.is_dir():
            raise UserMistake(f"{self.path} has no checkpoint of step {step}: one of {steps}")
        if wrong := files.damage(folder, without="optimizer.safetensors"):
            others = [other for other in steps if other != step]
            raise UserMistake(
                f"checkpoint {folder} is damaged: {wrong}; others are of steps {others}"
            )
        return folder

    def best(self) -> int:
        """The step whose checkpoint did best on the validation split."""
        marker = self.marker()
        if marker is None or marker.get("best") is None:
            raise UserMistake(
                f"{self.path} knows no best checkpoint: it was trained without validation"
                " (eval_every=0)"
            )
        return marker["best"]

    def drop(self, after: int, metrics_bytes: int, everything: bool = False) -> None:
        """Remove what was written after step `after`; with `everything` its checkpoint too."""
        files.truncate(self.path / "metrics.jsonl", metrics_bytes)
        self._unsynced.clear()
        for file in (self.path / "episodes").glob("*.jsonl"):
            if re.fullmatch(r"\d{6,}", file.stem) and int(file.stem) >= after:
                file.unlink()
        unfinished = self.checkpoint_of("new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        for step_kept in self.steps_kept():
            if everything or step_kept > after:
                shutil.rmtree(self.checkpoint_of(step_kept))

    def metrics(self) -> Iterator[dict[str, Any]]:
        """An object per step; a last line that is still being written is left out."""
        yield from lines(self.path / "metrics.jsonl")

    def episodes(self, step: int) -> Iterator[dict[str, Any]]:
        """The recorded discussions of a step."""
        yield from lines(self.path / "episodes" / f"{step:06d}.jsonl")


def accounts_in(path: Path, by_system: bool = False) -> dict[str, Any]:
    """The accounts of hosts, in an evaluation `by_system`, as they were written last; empty where
    none were.
    """
    try:
        accounts = files.read_object(path) or {}
    except UserMistake as error:
        raise UserMistake(f"{error}; {REMEDY}") from error
    tables: list[Any] = list(accounts.values()) if by_system else [accounts]
    if not all(map(_are_accounts, tables)):
        raise UserMistake(f"{path} is damaged: it has to say of each host what was spent; {REMEDY}")
    return accounts


def _are_accounts(table: Any) -> bool:
    """Whether this is what `spending.accounts` says."""
    return isinstance(table, dict) and all(
        map(_is_account, cast("Mapping[str, Any]", table).values())
    )


def _is_account(value: Any) -> bool:
    """Whether this is what `spending.accounts` says of one host."""
    if not isinstance(value, dict) or "money" not in value:
        return False
    account = cast("dict[str, Any]", value)
    return all(isinstance(account.get(key), dict) for key in ("spent", "events"))


def _step_of(folder: Path) -> int | None:
    """N of a folder `step-N`, as `commit` names it; None of anything else, such as a user's copy
    `step-5-backup`.
    """
    name = re.fullmatch(r"step-(0|[1-9]\d*)", folder.name)
    return int(name[1]) if name and folder.is_dir() else None


# --- checkpoints that others still need: a note in the run's folder for each of them

Checkpoint = tuple[Run, int]
"""A run, and after how many of its steps."""


def hold(checkpoints: Iterable[Checkpoint], holder: Path) -> Iterator[str]:
    """Have these checkpoints kept while their runs train on, as long as the folder `holder` exists
    and does not `release` them; yields a note for each that cannot be, since the run's folder may
    be somebody else's.
    """
    for run, step in checkpoints:
        note = _note(run, step, holder)
        try:
            note.parent.mkdir(exist_ok=True)
            files.replace(note, str(holder.resolve()))
        except OSError:
            yield (
                f"{run.path} cannot be written: if it is trained on, its checkpoint of step {step},"
                f" which is needed to go on with {holder}, may be removed"
            )


def release(checkpoints: Iterable[Checkpoint], holder: Path) -> None:
    """Let the next commit remove these checkpoints."""
    for run, step in checkpoints:
        with suppress(OSError):  # what remains costs disk space, nothing else
            _note(run, step, holder).unlink(missing_ok=True)


def _note(run: Run, step: int, holder: Path) -> Path:
    holder_path = str(holder.resolve()).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(holder_path).hexdigest()[:12]
    return run.path / "held" / f"step-{step}.{digest}"


def steps_held(run: Run) -> set[int]:
    """Find the steps whose checkpoints are still needed; one is whose note or holder cannot be
    looked at, since these may be another user's.
    """
    steps: set[int] = set()
    for note in (run.path / "held").glob("step-*.*"):
        name = re.fullmatch(r"step-(\d+)\.[0-9a-f]{12}", note.name)
        try:
            holder = Path(note.read_text(encoding="utf-8", errors="replace"))
            is_held = holder.is_absolute() and stat.S_ISDIR(holder.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # gone by now, or no path
            continue
        except OSError:
            is_held = True
        if name and is_held:
            steps.add(int(name[1]))
    return steps
