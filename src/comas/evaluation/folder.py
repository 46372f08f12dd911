"""The folder of an evaluation, which survives whatever stops it.

`evaluation.json` says what is asked, `answers/*.jsonl` has a line per game, written when it ends,
`spent.json` what hosts behind an API have cost, `report.json` what it came to. Leaves out: playing
(`evaluation.runner`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import filelock
from pydantic import TypeAdapter, ValidationError

from comas.evaluation import spec
from comas.evaluation.spec import Plan
from comas.hosts.endpoint import BudgetSpent
from comas.models.sources import checkpoints
from comas.program import command
from comas.storage import files
from comas.storage.game_log import Log, logs_in
from comas.storage.out_folder import fresh
from comas.storage.run import hold, release
from comas.team import spending
from comas.types import Account, UserMistake

PLAN = "evaluation.json"
REPORT = "report.json"
SPENT = "spent.json"
LONGEST = 240
"""Bytes of the name of a file of answers before its digest."""


class Folder:
    """Where an evaluation is written; one process at a time."""

    def __init__(self, path: Path, plan: Plan, created: Sequence[Path] = ()) -> None:
        self.path = path
        self.plan = plan
        self.notes: list[str] = []
        """What its owner should know before it begins."""
        self._created = created
        """What this process created: the folder and those above it, from the inside out."""
        self._lock = filelock.FileLock(path / ".lock")

    @classmethod
    def create(cls, plan: Plan, out: str | None) -> Folder:
        """A new folder, `evals/<time>` unless `out` names one."""
        plan = spec.placed(plan)
        if out:
            path = Path(os.path.expanduser(out))
            created = [place for place in (path, *path.parents) if not place.exists()]
            _check_free(path, out)
        else:
            stem = Path("evals") / time.strftime("%Y%m%d-%H%M%S")
            above = [place for place in stem.parents if not place.exists()]
            path = fresh(stem)
            created = [path, *above]
        try:
            (path / "answers").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistake(f"--out {path}: {error.strerror}") from error
        folder = cls(path, plan, created)
        folder.write_plan()
        folder.notes += hold(checkpoints(plan.places.values()), path)
        return folder

    @classmethod
    def open(cls, path: str | Path, changes: Sequence[str] = ()) -> Folder:
        """One that exists; `changes` are pairs of keys in `spending.CHANGEABLE`, which are written
        down when it goes on.
        """
        path = Path(path)
        try:
            written = (path / PLAN).read_bytes()
            plan = TypeAdapter(Plan).validate_json(written, strict=True)
            (path / "answers").mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise UserMistake(f"{path} is not an evaluation: it has no {PLAN}") from error
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise UserMistake(f"{path}/{PLAN} is damaged: {key}: {first['msg']}") from error
        return cls(path, spec.changed(plan, changes) if changes else plan)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out; a mistake before anything was asked leaves no folder behind."""
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserMistake(
                f"{self.path}: another process is working on this evaluation; wait for it or"
                " stop it"
            ) from None
        try:
            yield
        except BudgetSpent:  # there is something to go on with
            raise
        except UserMistake:
            self._forget()
            raise
        finally:
            self._lock.release()

    def _forget(self) -> None:
        if self._created and not any((self.path / "answers").iterdir()):
            shutil.rmtree(self.path)
            for above in self._created[1:]:
                with suppress(OSError):  # others use it by now
                    above.rmdir()

    def change_plan(self, plan: Plan) -> None:
        """Ask this from now on."""
        if plan is not self.plan:
            self.plan = plan
            self.write_plan()

    def write_plan(self) -> None:
        """Write down what is asked."""
        text = json.dumps(asdict(self.plan), indent=1)
        files.replace(self.path / PLAN, text)

    def check_unchanged(self, what: str, digest: str) -> None:
        """Note the digest of what is asked, or an error where it is no longer what it was."""
        known = self.plan.digests.get(what)
        if known is None:
            digests = {**self.plan.digests, what: digest}
            self.change_plan(replace(self.plan, digests=digests))
        elif known != digest:
            raise UserMistake(
                f"{self.path}: the {what} are not what they were when this evaluation began"
                " (SHA-256 differs): bring them back, or start a new evaluation"
            )

    def log(self, run: str, task: str, setup: str) -> Log:
        """Read the games that one run has played of a task in a setup."""
        name = f"{Path(run).name}.{task}.{setup}"
        slug = re.sub(r"[^\w.=-]+", "-", name)
        slug = slug.encode()[:LONGEST].decode(errors="ignore")
        names = f"{run} {task} {setup}"
        digest = hashlib.sha256(names.encode()).hexdigest()[:8]
        return Log(self.path / "answers" / f"{slug}.{digest}.jsonl")

    def games(self) -> int:
        """Count the games that are written down."""
        paths = logs_in(self.path / "answers")
        return sum(len(Log(path).found) for path in paths)

    def read_accounts(self) -> dict[str, dict[str, Account]]:
        """What hosts behind an API have cost, per run or model."""
        return spending.read(self.path / SPENT)

    def write_accounts(self, accounts: Mapping[str, Mapping[str, Account]]) -> None:
        """Write down what hosts have cost."""
        files.replace(self.path / SPENT, files.as_json(accounts, indent=1))

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write down what it came to."""
        files.replace(self.path / REPORT, files.as_json(report, indent=1))

    def release_checkpoints(self) -> None:
        """Let runs remove the checkpoints that were asked: nothing is left to ask."""
        release(checkpoints(self.plan.places.values()), self.path)


def _check_free(path: Path, out: str) -> None:
    """An error where there is something in the folder that `out` names."""
    if (path / PLAN).exists():
        going_on = f"`{command()} resume {shlex.quote(str(path))}`"
        raise UserMistake(
            f"--out {out}: there is an evaluation already; go on with {going_on} or choose another"
        )
    # a process that died before it wrote its plan has left these
    if path.is_dir() and any(file.name not in ("answers", ".lock") for file in path.iterdir()):
        raise UserMistake(f"--out {out}: there is something else in this folder; choose another")
