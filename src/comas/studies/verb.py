"""A study from its file to its report: check, estimate, run what is left, write.

Leaves out: what is printed (`cli.study`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from comas.studies.cells import Cell, cells_of
from comas.studies.checks import check_claims, check_measures
from comas.studies.cost import Cost, cost_of
from comas.studies.file import StudyFile, read_file
from comas.studies.here import Here, Place
from comas.studies.ledger import Ledger, declaration
from comas.studies.named_files import located
from comas.studies.report import Report, report_of, write_report
from comas.studies.running import Ended, run_cells
from comas.studies.settings import Setting, settings_of
from comas.studies.values import rows_of
from comas.types import UserMistake


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
        try:
            described = located(described, path.parent)
        except UserMistake as error:
            raise UserMistake(f"{path}: {error}") from error
        settings = settings_of(described, path)
        check_measures(described, settings, path)
        check_claims(described, settings, path)
        out = Path(described.out or Path("studies") / path.stem).expanduser().absolute()
        if odd := [sign for sign in "=,@" if sign in str(out)]:
            raise UserMistake(f"{path}: out = {str(out)!r}: a folder without {odd[0]} is wanted")
        return cls(path, described, settings, out, cells_of(described, settings, out))

    def begun(self) -> int:
        """Cells of which anything was tried, those that the file no longer has included."""
        places = {*self.out.glob("cells/*/*/run"), *self.out.glob("cells/*/*/failed.json")}
        return len({place.parent for place in places})

    def left(self) -> list[Cell]:
        """Cells that are not done."""
        return [cell for cell in self.cells if cell.stages()]

    def cost(self, jobs: int | None) -> Cost:
        """Sum up what is left."""
        return cost_of(self.cells, self.out, jobs)

    def declare(self) -> Ledger:
        """Write down what is declared; an error where cells have run under something else."""
        ledger = Ledger(self.out, self.file)
        ledger.declare(declaration(self.described, self.settings), self.begun())
        return ledger

    def run(self, jobs: int, tell: Callable[[Ended], None], place: Place | None = None) -> None:
        """Run what is left."""
        run_cells(self.left(), jobs, place or Here(), tell)

    def report(self, ledger: Ledger) -> Report:
        """Write the report of what there is."""
        rows = rows_of(self.described, self.cells)
        report = report_of(self.file, self.described, self.settings, rows, ledger)
        write_report(report, self.out)
        return report

    def alone(self) -> filelock.FileLock:
        """Keep other processes from working on this study, inside of a `with`."""
        self.out.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.out / ".lock", timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise UserMistake(
                f"{self.out}: another process is working on this study; wait for it or stop it"
            ) from None
        return lock


def study(file: str | Path, jobs: int | None = None, report: bool = False) -> Report:
    """Run what is left of a study file, and write its report; with `report` nothing is run.

    `jobs` are runs at once; None is as many as cores and memory bear. Raises UserMistake where the
    file is not sound, before anything runs.
    """
    found = Study.read(file)
    with found.alone():
        ledger = found.declare()
        if found.left() and not report:
            cost = found.cost(jobs)
            cost.check(found.file)
            found.run(cost.jobs, lambda _: None)
        return found.report(ledger)
