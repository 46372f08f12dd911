"""A cell is a setting with a seed: a run and its evaluations in a folder of their own.

`cell.toml` is its config, `run` the run, `evals/<measure>` an evaluation, `trained.json` says that
the run has ended, `failed.json` why the last try did not. Leaves out: processes
(`studies.running`), what was measured (`studies.values`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from comas.evaluation.folder import PLAN, REPORT
from comas.storage import files
from comas.storage.out_folder import check_free
from comas.storage.records import without_none
from comas.studies.checks import taken_of
from comas.studies.file import Measure, StudyFile
from comas.studies.grid import slug
from comas.studies.settings import Setting
from comas.types import UserMistake


@dataclass(frozen=True)
class Stage:
    """One command of a cell."""

    name: str
    """`train`, or the evaluation's measure."""
    arguments: tuple[str, ...]
    folder: Path
    """Which it works on."""


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    setting: Setting
    seed: int
    folder: Path
    evaluations: dict[str, Measure]

    def __str__(self) -> str:
        return f"{self.setting.name}, seed {self.seed}"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        """What its commands wrote."""
        return self.folder / "log.txt"

    def evaluation(self, measure: str) -> Path:
        """The folder of an evaluation."""
        return self.folder / "evals" / slug(measure)

    @property
    def trained(self) -> bool:
        """Whether its run has ended."""
        return (self.folder / "trained.json").is_file()

    @property
    def failure(self) -> dict[str, Any] | None:
        """`stage` and `reason` of the last try, where that failed."""
        return files.read_object(self.folder / "failed.json")

    def stages(self) -> list[Stage]:
        """The commands that are left, in order."""
        left = [] if self.trained else [self._training()]
        for name, measure in self.evaluations.items():
            if not (self.evaluation(name) / REPORT).is_file():
                left.append(self._evaluating(name, measure))
        return left

    def _training(self) -> Stage:
        config = self.folder / "cell.toml"
        if _has_begun(self.run):
            return Stage("train", ("resume", str(self.run)), self.run)
        return Stage("train", ("train", str(config)), self.run)

    def _evaluating(self, name: str, measure: Measure) -> Stage:
        out = self.evaluation(name)
        if (out / PLAN).is_file():
            return Stage(name, ("resume", str(out)), out)
        assert measure.setup is not None
        arguments = ["eval", str(self.run), "--setups", measure.setup]
        arguments += ["--limit", str(measure.games), "--seed", str(self.seed), "--out", str(out)]
        if measure.task is not None:
            arguments += ["--tasks", measure.task]
        if measure.data is not None:
            arguments += ["--data", measure.data]
        return Stage(name, tuple(arguments), out)

    def write_config(self) -> None:
        """Write the config of the run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.setting.config(self.seed, self.run)
        files.replace(self.folder / "cell.toml", tomli_w.dumps(without_none(config)))

    def write_trained(self) -> None:
        """Note that the run has ended."""
        files.replace(self.folder / "trained.json", json.dumps({"run": self.run.name}))

    def write_failure(self, stage: str, reason: str) -> None:
        """Note why a try failed."""
        record = {"stage": stage, "reason": reason}
        files.replace(self.folder / "failed.json", files.as_json(record))

    def forget_failure(self) -> None:
        """Before another try."""
        (self.folder / "failed.json").unlink(missing_ok=True)


def _has_begun(run: Path) -> bool:
    """Whether there is a run to go on with, damaged or not: it is never begun anew."""
    try:
        check_free(str(run))
    except UserMistake:
        return (run / "config.toml").is_file()
    return False


def cells_of(study: StudyFile, settings: Sequence[Setting], out: Path) -> list[Cell]:
    """All cells, seed by seed, so that what is there first can be compared."""
    found: list[Cell] = []
    for seed in study.seeds:
        for setting in settings:
            evaluations = {
                name: measure
                for name, measure in study.measures.items()
                if measure.setup is not None and setting in taken_of(measure, settings)
            }
            folder = out / "cells" / slug(setting.name) / str(seed)
            found.append(Cell(setting, seed, folder, evaluations))
    return found
