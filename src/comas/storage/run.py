"""A run is a folder: write, commit, read.

`config.toml`, `metrics.jsonl` (an object per step), `episodes/<step>.jsonl` (an object per
discussion), `checkpoints/step-N/` (sealed), `eval/*.json`, and `commit.json`: the marker, moved
last. What lies beyond the marker is dropped and played again; a damaged checkpoint is passed over
for the one before it. Leaves out: what the numbers mean.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, cast

import filelock
import tomli_w

from comas.program import command
from comas.storage import files
from comas.storage.nearby import resembling
from comas.storage.out_folder import check_free, fresh
from comas.storage.records import episode_record, line, lines, without_none
from comas.types import Episode, UserMistake

LOG = logging.getLogger("comas")
KEEP = 2
"""Checkpoints that are kept besides the best."""
RUNS_HAVE = {"method": str, "steps": int, "hosts": dict}
"""Of what every run's config has: what others' files of that name have not."""


class Run:
    """The folder of one run, open for writing or reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = filelock.FileLock(path / ".lock")
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
            # of a run that died before it came to anything
            (path / "processes.json").unlink(missing_ok=True)
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
            raise UserMistake(f"{path} is not a run: it has no config.toml{resembling(str(path))}")
        run = cls(Path(path))
        run.config()  # what is called so may be of something else
        return run

    def lock(self) -> None:
        """Keep other processes from working on this run until `unlock`, or until this process ends
        in whatever way.
        """
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserMistake(
                f"{self.path}: another process is working on this run; wait for it or stop it"
            ) from None
        except NotImplementedError:  # some network disks have no locks
            LOG.warning(
                "%s: this disk has no locks; make sure that no other process works on it", self.path
            )

    def unlock(self) -> None:
        """Others may."""
        self._lock.release()

    def config(self) -> dict[str, Any]:
        """The resolved config, as it was saved."""
        path = self.path / "config.toml"
        try:
            found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserMistake(f"{path} is damaged: {error}") from error
        if missing := [
            key for key, kind in RUNS_HAVE.items() if not isinstance(found.get(key), kind)
        ]:
            raise UserMistake(
                f"{self.path} is not a run: its config.toml, which runs write whole, has no"
                f" {missing[0]}"
            )
        return found

    def resuming(self) -> str:
        """The command that goes on with this run, in quotes."""
        return f"`{command()} resume {shlex.quote(str(self.path))}`"

    def change(self, changes: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Other values of some dotted keys from now on; returns what they were and are."""
        config = self.config()
        changed = dict[str, list[Any]]()
        for key, value in changes.items():
            *path, last = key.split(".")
            table = reduce(lambda found, part: found[part], path, config)
            changed[key], table[last] = [table.get(last), value], value
        if changes:
            files.replace(self.path / "config.toml", tomli_w.dumps(config))
        return changed

    def write_step(self, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """Append a step's metrics, and its discussions as a file of their own; on the disk for
        certain after `commit`.
        """
        written = "".join(line(episode_record(e)) for e in episodes)
        path = self.path / "episodes" / f"{metrics['step']:06d}.jsonl"
        path.write_text(written, encoding="utf-8")
        self._unsynced.append(path)
        files.append(self.path / "metrics.jsonl", line(metrics))

    def write_eval(self, name: str, record: Mapping[str, Any]) -> None:
        """One measurement with its answers."""
        files.replace(self.path / "eval" / f"{name}.json", files.as_json(record))

    def read_eval(
        self, name: str, note: Callable[[str], Any] = LOG.warning
    ) -> dict[str, Any] | None:
        """That measurement; None if there is none, or, which `note` is told, if its file is
        damaged: the run itself is whole.
        """
        path = self.path / "eval" / f"{name}.json"
        try:
            found = files.read_object(path)
        except UserMistake as error:
            note(f"{error}; it counts as not measured")
            return None
        wanted = (
            ("exact", "near", "tested") if name == "overlap" else ("step", "accuracy", "answers")
        )
        if found is not None and not set(wanted) <= (
            found.keys() if type(found) is dict else set()
        ):
            note(
                f"{path} is damaged: it has to have {', '.join(wanted)}; it counts as not measured"
            )
            return None
        return found

    def write_spent(self, accounts: Mapping[str, Any]) -> None:
        """What hosts behind an API have cost; apart from checkpoints, since what is dropped has
        been paid for all the same.
        """
        files.replace(self.path / "spent.json", files.as_json(accounts, indent=1))

    def spent(self) -> dict[str, Any]:
        """The same as it was last written; nothing where nothing was, or where no host costs
        anything.
        """
        if not any(host.get("api") or host.get("own") for host in self.config()["hosts"].values()):
            return {}
        path = self.path / "spent.json"
        remedy = "remove it to go on without what it said"
        try:
            accounts = files.read_object(path) or {}
        except UserMistake as error:
            raise UserMistake(f"{error}; {remedy}") from error
        if type(accounts) is not dict or not all(map(_is_account, accounts.values())):
            raise UserMistake(f"{path} is damaged: it says of no host what was spent; {remedy}")
        return accounts

    def write_process(self, facts: Mapping[str, Any]) -> list[str]:
        """Note what a process that works on this run runs on; returns what differs from the one
        before, in words.
        """
        path = self.path / "processes.json"
        try:
            known: list[dict[str, Any]] = (files.read_object(path) or {"processes": []})[
                "processes"
            ]
        except UserMistake as error:
            files.replace(path, json.dumps({"processes": [facts]}, indent=1))
            return [f"{error}; what it said is lost"]
        before = known[-1] if known else facts
        files.replace(path, json.dumps({"processes": [*known, facts]}, indent=1))
        keys = [k for k in facts if k in before and k not in ("step", "changed")]
        return [
            f"{k} was {before.get(k)}, is {facts.get(k)}"
            for k in keys
            if before.get(k) != facts.get(k)
        ]

    def checkpoint(self) -> Path:
        """An empty folder for the next `commit`."""
        path = self.path / "checkpoints" / "new"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, step: int, best: int | None = None) -> None:
        """Seal the checkpoint after `step` steps and move the marker: everything so far is on disk.

        Older ones but the best go.
        """
        folder = self.path / "checkpoints" / f"step-{step}"
        for path in (*self._unsynced, self.path / "episodes", self.path / "metrics.jsonl"):
            files.sync(path)
        self._unsynced.clear()
        marker = {
            "step": step,
            "metrics_bytes": (self.path / "metrics.jsonl").stat().st_size,
            "best": best,
        }
        files.seal(folder.with_name("new"), marker)
        if folder.exists():  # beyond the marker, or damaged
            shutil.rmtree(folder)
        files.rename(folder.with_name("new"), folder)
        files.replace(self.path / "commit.json", json.dumps(marker))
        kept = {*sorted(self.steps_kept())[-KEEP:], best, *self.held()}
        for old in set(self.steps_kept()) - kept:
            shutil.rmtree(folder.with_name(f"step-{old}"))

    def steps_kept(self) -> list[int]:
        """Steps that have a checkpoint; whatever else lies beside them is somebody else's."""
        folders = (self.path / "checkpoints").glob("step-*")
        return [step for folder in folders if (step := _step_of(folder)) is not None]

    def hold(self, step: int, holder: Path) -> bool:
        """Have the checkpoint of a step kept while the run trains on, as long as the folder
        `holder` exists and does not `release` it; whether that could be noted (the run's folder may
        be somebody else's).
        """
        note = self._hold(step, holder)
        try:
            note.parent.mkdir(exist_ok=True)
            note.write_text(str(holder.resolve()), encoding="utf-8")
        except OSError:
            return False
        return True

    def release(self, step: int, holder: Path) -> None:
        """The inverse of `hold`: the next commit may remove the checkpoint."""
        with suppress(OSError):  # what remains costs room, nothing else
            self._hold(step, holder).unlink(missing_ok=True)

    def _hold(self, step: int, holder: Path) -> Path:
        digest = hashlib.sha256(
            str(holder.resolve()).encode("utf-8", "surrogateescape")
        ).hexdigest()[:12]
        return self.path / "held" / f"step-{step}.{digest}"

    def held(self) -> set[int]:
        """Steps whose checkpoints evaluations, and runs that started from them, still need."""
        steps: set[int] = set()
        for note in (self.path / "held").glob("step-*.*"):
            name = re.fullmatch(r"step-(\d+)\.[0-9a-f]{12}", note.name)
            holder = Path(note.read_text(encoding="utf-8", errors="replace"))
            if name and holder.is_absolute() and holder.is_dir():
                steps.add(int(name[1]))
        return steps

    def marker(self) -> dict[str, Any] | None:
        """The last commit: `step`, `metrics_bytes`, `best`; None before the first."""
        path = self.path / "commit.json"
        if not path.exists():
            # sealed folders say that there have been commits
            if max(self.steps_kept(), default=0) > 0:
                raise UserMistake(f"{path} is missing, although there are checkpoints")
            return None
        found = files.read_object(path)
        if not isinstance(found, dict) or any(
            type(found.get(key)) is not int for key in ("step", "metrics_bytes")
        ):
            raise UserMistake(f"{path} is damaged: it names no step")
        return found

    def intact(self, step: int | None = None) -> Path:
        """The checkpoint after `step` steps (None: of the marker); its policies are proved to be as
        they were written, its optimizers, two thirds of the bytes, are not read.
        """
        if step is None:
            if (marker := self.marker()) is None:
                self.config()  # where this is no run at all, that is the news
                raise UserMistake(
                    f"{self.path} was stopped before its first checkpoint: go on with"
                    f" {self.resuming()}"
                )
            step = marker["step"]
        folder = self.path / "checkpoints" / f"step-{step}"
        if not folder.is_dir():
            raise UserMistake(
                f"{self.path} has no checkpoint of step {step}: one of {sorted(self.steps_kept())}"
            )
        if wrong := files.damage(folder, without="optimizer.safetensors"):
            others = sorted(set(self.steps_kept()) - {step})
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

    def rewind(self) -> tuple[int, list[str]]:
        """Drop what lies beyond the last good checkpoint; returns the step to go on from, and what
        had to be passed over.
        """
        notes: list[str] = []
        good: dict[str, Any] | None = None
        try:
            marker = self.marker()
        except UserMistake as error:  # the checkpoints say as much
            notes.append(str(error))
            marker = {"step": max(self.steps_kept(), default=-1)}
        for step in sorted(self.steps_kept(), reverse=True) if marker else []:
            folder = self.path / "checkpoints" / f"step-{step}"
            if marker and step <= marker["step"]:
                found = files.facts(folder) or {}
                if not (wrong := files.damage(folder) or self._log_damage(found)):
                    good = {k: v for k, v in found.items() if k != "files"}
                    break
                notes.append(f"checkpoint of step {step} is damaged ({wrong})")
        if marker and good is None:
            raise UserMistake(
                f"{self.path} has no whole checkpoint: {'; '.join(notes) or 'none is left'}; start"
                " a new run"
            )
        if good and marker and marker["step"] == good["step"]:
            # an earlier rewind may have found it lost
            good["best"] = marker.get("best", good["best"])
        if good and (lost := self._lost(good["best"])):
            good["best"] = self.best_kept(good["step"])[1]
            instead = (
                "no other was validated"
                if good["best"] is None
                else f"{good['best']} is the best of those that there are"
            )
            notes.append(f"the best checkpoint, of step {lost[0]}, is {lost[1]} ({instead})")
        if good and good != marker:
            files.replace(self.path / "commit.json", json.dumps(good))
        start, size = (good["step"], good["metrics_bytes"]) if good else (0, 0)
        self._drop(start, size, fresh=good is None)
        return start, [f"{n}: going on from step {start}" for n in notes]

    def _lost(self, best: int | None) -> tuple[int, str] | None:
        """The step of the best checkpoint and what is wrong with it; None where nothing is."""
        if best is None:
            return None
        folder = self.path / "checkpoints" / f"step-{best}"
        if not folder.is_dir():
            return best, "gone"
        wrong = files.damage(folder, without="optimizer.safetensors")
        return (best, f"damaged: {wrong}") if wrong else None

    def best_kept(self, last: int) -> tuple[float, int | None]:
        """The highest accuracy on the validation split, and after how many steps: of whole
        checkpoints up to step `last`.
        """
        best: tuple[float, int | None] = (-1.0, None)
        kept = set(self.steps_kept())
        for metrics in itertools.islice(self.metrics(), last):
            step = metrics["step"] + 1
            validation = metrics.get("validation")
            if (
                validation
                and step in kept
                and validation["mean"] > best[0]
                and self._lost(step) is None
            ):
                best = (validation["mean"], step)
        return best

    def _drop(self, step: int, size: int, fresh: bool) -> None:
        """What was written after `step`; with `fresh` its checkpoint too."""
        files.truncate(self.path / "metrics.jsonl", size)
        self._unsynced.clear()
        for file in (self.path / "episodes").glob("*.jsonl"):
            if re.fullmatch(r"\d{6,}", file.stem) and int(file.stem) >= step:
                file.unlink()
        if (unfinished := self.path / "checkpoints" / "new").exists():
            shutil.rmtree(unfinished)
        for kept in self.steps_kept():
            if fresh or kept > step:
                shutil.rmtree(self.path / "checkpoints" / f"step-{kept}")

    def _log_damage(self, marker: Mapping[str, Any]) -> str | None:
        """What is wrong with the part of the log that a checkpoint stands on."""
        size = marker["metrics_bytes"]
        step = marker["step"]
        with (self.path / "metrics.jsonl").open("rb") as log:
            head = log.read(size)
        steps = head.count(b"\n")
        if len(head) < size or steps != step:
            return f"metrics.jsonl has {steps} steps in {len(head)} of {size} bytes"
        return None

    def metrics(self) -> Iterator[dict[str, Any]]:
        """An object per step; a last line that is still being written is left out."""
        yield from lines(self.path / "metrics.jsonl")

    def episodes(self, step: int) -> Iterator[dict[str, Any]]:
        """The recorded discussions of a step."""
        yield from lines(self.path / "episodes" / f"{step:06d}.jsonl")


def _is_account(found: Any) -> bool:
    """Whether this is what `spending.accounts` says of one host."""
    if not isinstance(found, dict):
        return False
    account = cast("dict[str, Any]", found)
    return (
        isinstance(account.get("spent"), dict)
        and isinstance(account.get("events"), dict)
        and "money" in account
    )


def _step_of(folder: Path) -> int | None:
    """N of a folder `step-N`, as `commit` names it; None of anything else, such as a user's copy
    `step-5-backup`.
    """
    name = re.fullmatch(r"step-(0|[1-9]\d*)", folder.name)
    return int(name[1]) if name and folder.is_dir() else None
