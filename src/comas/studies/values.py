"""What was measured in each cell, read from its folder: nothing is computed anew, and nothing is
guessed where it is missing.

Leaves out: what is claimed of it (`studies.claims`), how it is shown (`studies.report`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from comas.evaluation.accuracy import by_agent
from comas.evaluation.folder import REPORT
from comas.storage import files
from comas.storage.run import Run
from comas.studies.cells import Cell
from comas.studies.file import LAST, Measure, StudyFile
from comas.training.result import result_of
from comas.types import UserMistake

Status = Literal["done", "failed", "missing"]
Curve = list[tuple[float, float]]
"""Generated tokens, and a figure there."""


@dataclass(frozen=True)
class Row:
    """What is known of a cell."""

    setting: str
    seed: int
    run: str
    """Its folder, from that of the study."""
    status: Status
    reason: str = ""
    """Why it is not done."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Measure -> its value, of those that could be taken."""
    curve: Curve = field(default_factory=list)
    """Validation accuracy."""
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """Of the measures that are figures of steps."""

    @property
    def accuracy(self) -> float | None:
        """Held-out, after training."""
        return self.values.get("accuracy")


def rows_of(study: StudyFile, cells: Sequence[Cell]) -> list[Row]:
    """A row for each cell in the order of settings, whether it has run or not."""
    order: dict[str, list[Cell]] = {}
    for cell in cells:
        order.setdefault(cell.setting.name, []).append(cell)
    return [_row(study, cell) for of_setting in order.values() for cell in of_setting]


def _row(study: StudyFile, cell: Cell) -> Row:
    place = cell.run.relative_to(cell.folder.parents[2]).as_posix()
    row = Row(cell.setting.name, cell.seed, place, "missing", "not run yet")
    failure = cell.failure
    reason = f"{failure['stage']}: {failure['reason']}" if failure else ""
    status: Status = "failed" if failure else "missing"
    if not cell.trained:
        half = "not finished" if cell.run.is_dir() else row.reason
        return Row(row.setting, row.seed, row.run, status, reason or half)
    try:
        run = Run.open(cell.run)
        values = _own_values(run)
        steps = list(run.metrics())
        curves = _curves(study, steps)
    except (UserMistake, OSError, ValueError, KeyError, TypeError) as error:
        return Row(row.setting, row.seed, row.run, "failed", f"damaged: {error}")
    values |= _figures(study, steps)
    values |= _evaluated(cell)
    missing = [name for name in cell.evaluations if name not in values]
    if not failure and not missing:
        status = "done"
    elif not failure:
        reason = f"{missing[0]} is not measured"
    curve = _curve(run, steps)
    return Row(row.setting, row.seed, row.run, status, reason, values, curve, curves)


def _own_values(run: Run) -> dict[str, float]:
    """The measures that every run has."""
    result = result_of(run, 0.0)
    values: dict[str, float] = {"steps": result.steps, "tokens": result.tokens}
    before = result.accuracy["before"]
    after = result.accuracy["after"]
    if before is not None:
        values["before"] = before.mean
    if after is not None:
        values["accuracy"] = after.mean
        answers = (run.read_eval("after") or {"answers": []})["answers"]
        values["lowest"] = min(by_agent(answers).values())
    if before is not None and after is not None:
        values["gain"] = after.mean - before.mean
    steps = list(run.metrics())
    values["seconds"] = math.fsum(step["seconds"] for step in steps)
    validated = [step["validation"]["mean"] for step in steps if step.get("validation")]
    if validated:
        values["best"] = max(validated)
    return values


def _evaluated(cell: Cell) -> dict[str, float]:
    """Accuracies of its evaluations; none of one that judged nothing."""
    values: dict[str, float] = {}
    for name in cell.evaluations:
        report = files.read_object(cell.evaluation(name) / REPORT)
        if report is None or not report["cells"]:
            continue
        if (accuracy := report["cells"][0]["accuracy"]) is not None:
            values[name] = accuracy
    return values


def _figures(study: StudyFile, steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of figures over the first or the last steps that have them."""
    values: dict[str, float] = {}
    for name, measure in study.measures.items():
        if measure.metric is None:
            continue
        figures = [figure_at(step, measure.metric) for step in _chosen(measure, steps)]
        known = [figure for figure in figures if figure is not None]
        if known:
            values[name] = math.fsum(known) / len(known)
    return values


def _chosen(measure: Measure, steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if measure.first is not None:
        return steps[: measure.first]
    return steps[-(measure.last or LAST) :]


def figure_at(step: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path of a step's metrics; None where there is none.

    In a list of rows, such as `cost`, a part names an agent or a role, and figures are added up:
    `cost.scoring.tokens`.
    """
    places: list[Any] = [step]
    for part in path.split("."):
        places = [below for place in places for below in _below(place, part)]
    numbers = [n for n in places if type(n) in (int, float) and math.isfinite(n)]
    return float(math.fsum(numbers)) if numbers else None


def _below(place: Any, part: str) -> list[Any]:
    if isinstance(place, Mapping):
        table = cast("Mapping[str, Any]", place)
        return [table[part]] if part in table else []
    if isinstance(place, list):
        listed = cast("list[Any]", place)
        rows = [cast("Mapping[str, Any]", row) for row in listed if isinstance(row, Mapping)]
        return [row for row in rows if part in (row.get("role"), row.get("agent"))]
    return []


def _curve(run: Run, steps: Sequence[Mapping[str, Any]]) -> Curve:
    """Validation accuracy over generated tokens, from the accuracy before training on."""
    curve = [(s["tokens"], s["validation"]["mean"]) for s in steps if s.get("validation")]
    before = result_of(run, 0.0).accuracy["before"]
    return [(0.0, before.mean), *curve] if before is not None and curve else curve


def _curves(study: StudyFile, steps: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Figures of steps over generated tokens; a measure of the same figure has the same curve."""
    found: dict[str, Curve] = {}
    for measure in study.measures.values():
        path = measure.metric
        if path is None or path in found:
            continue
        figures = [(step["tokens"], figure_at(step, path)) for step in steps]
        found[path] = [(tokens, figure) for tokens, figure in figures if figure is not None]
    return {path: curve for path, curve in found.items() if curve}


def over_seeds(
    rows: Sequence[Row], setting: str, value: Callable[[Row], float | None]
) -> list[float]:
    """The values of a setting, of the seeds that have one."""
    found = [value(row) for row in rows if row.setting == setting]
    return [number for number in found if number is not None]
