"""A study from its file to its report: check, declare, run what is left, write.

Claims are fixed before the runs: a copy of the file lies in the study's folder, and `declared.json`
is what it says, in plain values. What is changed or removed after cells have run is an error, but
for a setting of which no cell has a step, and for a measure of what no step has; what is added and
changed is noted as such. Leaves out: what is printed
(`cli.study`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comas import memory
from comas.questions.checked import of_run
from comas.storage import files
from comas.studies.cells import (
    Cell,
    Forecast,
    Place,
    Watch,
    cells_of,
    forecast,
    has_figure,
    here,
    jobs_for,
    rows_of,
    run_cells,
)
from comas.studies.file import (
    Setting,
    StudyFile,
    check_claims,
    check_measures,
    locate,
    naming,
    parts_of,
    pinned,
    read_file,
    settings_of,
)
from comas.studies.report import Declared, Report, verdicts_of
from comas.sync import run_sync
from comas.types import UserMistake

DECLARED = "declared.json"


@dataclass(frozen=True)
class Study:
    """A study file that was checked, and its cells."""

    file: Path
    described: StudyFile
    settings: Sequence[Setting]
    out: Path
    cells: Sequence[Cell]

    @classmethod
    def read(cls, file: str | Path) -> Study:
        """Read and check everything that can be known without models."""
        path = Path(file)
        described = read_file(path)
        with naming(str(path)):
            locate(described, path.parent)
            settings = settings_of(described, path.parent)
            check_measures(described, settings)
            check_claims(described, settings)
        out = Path(described.out or Path("studies") / path.stem).expanduser().absolute()
        if odd := [sign for sign in "=,@" if sign in str(out)]:
            raise UserMistake(f"{path}: out = {str(out)!r}: a folder without {odd[0]} is wanted")
        return cls(path, described, settings, out, cells_of(described, settings, out))

    def begun(self) -> int:
        """Cells of which anything was tried, those that the file no longer has included."""
        places = {*self.out.glob("cells/*/*/run"), *self.out.glob("cells/*/*/failed.json")}
        return len({path.parent for path in places})

    def left(self) -> list[Cell]:
        """Cells that are not done."""
        return [cell for cell in self.cells if cell.stages()]

    def declaration(self) -> dict[str, Any]:
        """Return what the results depend on, and what is claimed, as plain values."""
        study = self.described
        measures = {
            name: pinned(table.model_dump(exclude={"says", "settings"}))
            for name, table in study.measures.items()
        }
        return {
            "budget": {"tokens": study.tokens, "steps": study.steps},
            "settings": {setting.name: setting.essence for setting in self.settings},
            "seeds": list(study.seeds),
            "measures": measures,
            "claims": [claim.model_dump() for claim in study.claims],
        }

    def declare(self, write: bool = True) -> Declared:
        """Write down what is declared; an error where cells have run under something else. Without
        `write` only that is looked at.
        """
        plain = json.loads(json.dumps(self.declaration()))
        declared = files.read_object(self.out / DECLARED)
        additions: list[str] = []
        if declared is not None and (begun := self.begun()):
            additions = [*declared["additions"], *self._added(declared, plain, begun)]
        parts = parts_of(self.file)
        digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
        record = {**plain, "additions": additions, "sha256": digest}
        if write and record != declared:
            if declared is not None:
                self._drop_changed(declared["settings"], plain["settings"])
            self.out.mkdir(parents=True, exist_ok=True)
            for part in parts:
                files.replace(self.out / part.name, part.read_text(encoding="utf-8-sig"))
            files.replace(self.out / DECLARED, files.as_json(record, indent=1))
        return Declared(digest, additions)

    def _added(self, earlier: Mapping[str, Any], plain: Mapping[str, Any], begun: int) -> list[str]:
        """Say what is new, in words; an error for anything that is no longer what it was."""
        changed: list[str] = []
        if earlier["budget"] != plain["budget"]:
            changed.append("the budget is another")
        added: list[str] = []
        if _without_words(earlier["claims"]) != _without_words(plain["claims"]):
            changed.append("the claims are others")
        elif earlier["claims"] != plain["claims"]:
            added.append("claims: reworded")
        for kind in ("setting", "measure"):
            before, now = (record[f"{kind}s"] for record in (earlier, plain))
            for name, facts in before.items():
                if name not in now:
                    changed.append(f"{kind} {name} is gone")
                elif now[name] != facts:
                    keys = {**facts, **now[name]}
                    keys = [key for key in keys if facts.get(key) != now[name].get(key)]
                    of = f"({', '.join(keys[:3])})"
                    if self._has_steps(name) if kind == "setting" else self._is_measured(facts):
                        changed.append(f"{kind} {name} is another {of}")
                    else:
                        added.append(f"{kind} {name}: changed {of}")
            added += [f"{kind} {name}: added" for name in now if name not in before]
        changed += [
            f"seed {seed} is gone" for seed in earlier["seeds"] if seed not in plain["seeds"]
        ]
        added += [f"seed {seed}: added" for seed in plain["seeds"] if seed not in earlier["seeds"]]
        have_run = "1 cell has run" if begun == 1 else f"{begun} cells have run"
        if changed:
            raise UserMistake(
                f"{self.file}: {changed[0]}, and {have_run}: what is claimed is fixed before the"
                f" runs; bring back what {self.out / self.file.name} says, or set another out"
            )
        after = "1 cell" if begun == 1 else f"{begun} cells"
        return [f"{what} after {after} had run" for what in added]

    def _drop_changed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Remove the cells of settings that are others now, none of which has a step."""
        for cell in self.cells:
            name = cell.setting.name
            if name in before and before[name] != now[name]:
                shutil.rmtree(cell.folder, ignore_errors=True)

    def _has_steps(self, setting: str) -> bool:
        """Whether a cell of this setting has a step, or was measured without any."""
        cells = [cell for cell in self.cells if cell.setting.name == setting]
        return any(cell.trained or cell.has_steps() for cell in cells)

    def _is_measured(self, measure: Mapping[str, Any]) -> bool:
        """Whether anything was found of a declared measure; an evaluation counts once it began."""
        if measure.get("metric") is None:
            return True
        return any(has_figure(cell, measure["metric"]) for cell in self.cells)

    def check_left(
        self, jobs: int | None = None, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """An error for a setting with something left that training would refuse; a note for the
        largest of which `jobs` runs at once may not fit.
        """
        left = self.left()
        at_once = min(self.jobs(jobs), len(left))
        crowding: list[tuple[int, str]] = []
        for setting in {cell.setting.name: cell.setting for cell in left}.values():
            plan = setting.plan
            with naming(f"{self.file}: setting {setting.name}"):
                of_run(plan.config, plan.task, note=lambda _: None)
                _, needed = memory.bounds_of_new(plan, note=lambda _: None)
            crowding += needed.crowding(at_once)
        if crowding:
            note(min(crowding)[1])

    def jobs(self, jobs: int | None) -> int:
        """Cells that run at once: by default as many as cores bear."""
        return jobs or jobs_for(self.left())

    def forecast(self, place: Place | None = None) -> Forecast | None:
        """Measure how long the training takes that is left."""
        return run_sync(forecast(self.cells, place or here))

    def run(self, jobs: int | None, watch: Watch | None = None, place: Place | None = None) -> None:
        """Run what is left, so many cells at once; KeyboardInterrupt where it was stopped."""
        run_sync(run_cells(self.left(), self.jobs(jobs), place or here, watch or Watch()))

    def report(self, declared: Declared) -> Report:
        """Test the claims on what there is, and write the report."""
        rows = rows_of(self.described, self.cells)
        title = self.described.says or self.file.stem
        verdicts = verdicts_of(self.described, rows)
        report = Report(title, self.described, self.settings, rows, verdicts, declared)
        report.write(self.out)
        return report

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from working on this study."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = f"{self.file}: out = {str(self.out)!r}"
            raise UserMistake(f"{where}: {error.strerror}; choose another") from error
        lock = files.lock(self.out, "study")
        try:
            yield
        finally:
            lock.release()


def _without_words(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Claims as they are tested."""
    return [{key: value for key, value in claim.items() if key != "says"} for claim in claims]


def study(file: str | Path, jobs: int | None = None, report: bool = False) -> Report:
    """Run what is left of a study file, and write its report; with `report` nothing is run.

    `jobs` are runs at once; None is as many as cores bear. Raises UserMistake where the
    file is not sound, before anything runs.
    """
    grid = Study.read(file)
    with grid.alone():
        declared = grid.declare()
        if grid.left() and not report:
            grid.check_left()
            grid.run(jobs)
        return grid.report(declared)
