"""What was measured in each cell, read from its folder, and what became of the claims: paired
differences over seeds, tested, corrected for all claims of the file.

Nothing is computed anew, and nothing is guessed where it is missing. One-sided Student's t test of
the paired differences by seed; where all of them are equal, the chance that so many fair signs
agree. Corrected after Holm (1979) over every claim: one whose runs failed or are missing counts
with p = 1, and never holds. Leaves out: how it is shown (`studies.report`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from comas.config.mistakes import nearest
from comas.evaluation.accuracy import by_agent
from comas.stats import Interval, holm, seeds_interval
from comas.storage.run import Run
from comas.studies.cells import Cell
from comas.studies.file import LAST, Claim, StudyFile
from comas.studies.settings import taken_of
from comas.training.result import result_of
from comas.types import UserMistake

LEVEL = 0.05
Status = Literal["done", "failed", "missing"]
Word = Literal["holds", "not shown", "contradicted", "missing", "one seed"]
Curve = list[tuple[float, float]]
"""Generated tokens, and a figure there."""
Steps = Sequence[Mapping[str, Any]]
"""Lines of metrics.jsonl."""


# --- what was measured


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
    order = {cell.setting.name: place for place, cell in reversed(list(enumerate(cells)))}
    cells = sorted(cells, key=lambda cell: order[cell.setting.name])
    rows = [_row(study, cell) for cell in cells]
    for name, measure in study.measures.items():
        path = measure.metric
        if path is None or any(path in row.curves for row in rows):
            continue
        taken = [
            place
            for place, (cell, row) in enumerate(zip(cells, rows, strict=True))
            if row.status == "done" and taken_of(measure, [cell.setting])
        ]
        steps = [step for place in taken for step in Run.open(cells[place].run).metrics()]
        if not steps or has_figure(steps, path):
            continue
        above, _, last = path.rpartition(".")
        tables = [found for step in steps for found in _found(step, above)]
        known = {key for table in tables if isinstance(table, Mapping) for key in table}
        reason = f"{name} is not measured: no step has {path}: {nearest(last, known)}"
        for place in taken:
            rows[place] = replace(rows[place], status="missing", reason=reason)
    return rows


def _row(study: StudyFile, cell: Cell) -> Row:
    place = cell.run.relative_to(cell.folder.parents[2]).as_posix()
    names = (cell.setting.name, cell.seed, place)
    failure = cell.failure
    reason = f"{failure['stage']}: {failure['reason']}" if failure else ""
    status: Status = "failed" if failure else "missing"
    if not cell.trained:
        half = "not finished" if cell.run.is_dir() else "not run yet"
        return Row(*names, status, reason or half)
    try:
        run = Run.open(cell.run)
        steps = list(run.metrics())
        values = _own_values(run, steps)
        curve = [(s["tokens"], s["validation"]["mean"]) for s in steps if s.get("validation")]
        if curve and "before" in values:
            curve = [(0.0, values["before"]), *curve]
        curves: dict[str, Curve] = {}
        for path in {measure.metric for measure in study.measures.values() if measure.metric}:
            figures = [(step["tokens"], figure_at(step, path)) for step in steps]
            if known := [(tokens, figure) for tokens, figure in figures if figure is not None]:
                curves[path] = known
    except (UserMistake, OSError, ValueError, KeyError, TypeError) as error:
        return Row(*names, "failed", f"damaged: {error}")
    values |= _figures(study, steps)
    missing: list[str] = []
    for name in cell.evaluations:
        if why := cell.lacks(name):
            missing.append(why)
        elif report := cell.report(name):
            values[name] = report["cells"][0]["accuracy"]
    if not failure:
        status = "missing" if missing else "done"
        reason = missing[0] if missing else ""
    return Row(*names, status, reason, values, curve, curves)


def _own_values(run: Run, steps: Steps) -> dict[str, float]:
    """The measures that every run has, and those of its agents: `gain.a0`."""
    result = result_of(run, 0.0)
    values: dict[str, float] = {"steps": result.steps, "tokens": result.tokens}
    for measure, occasion in (("before", "before"), ("accuracy", "after")):
        found = result.accuracy[occasion]
        if found is None:
            continue
        values[measure] = found.mean
        shares = by_agent((run.read_eval(occasion) or {"answers": []})["answers"])
        values |= {f"{measure}.{agent}": share for agent, share in shares.items()}
        if occasion == "after":
            values["lowest"] = min(shares.values())
    for name in list(values):
        measure, dot, agent = name.partition(".")
        before = f"before{dot}{agent}"
        if measure == "accuracy" and before in values:
            values[f"gain{dot}{agent}"] = values[name] - values[before]
    values["seconds"] = math.fsum(step["seconds"] for step in steps)
    validated = [step["validation"]["mean"] for step in steps if step.get("validation")]
    if validated:
        values["best"] = max(validated)
    return values


def has_figure(steps: Iterable[Mapping[str, Any]], path: str) -> bool:
    """Whether there is anything at a dotted path in any step, a null included."""
    return any(_found(step, path) for step in steps)


def _figures(study: StudyFile, steps: Steps) -> dict[str, float]:
    """Means of figures over the first or the last steps that have them."""
    values: dict[str, float] = {}
    for name, measure in study.measures.items():
        if measure.metric is None:
            continue
        chosen = steps[: measure.first] if measure.first else steps[-(measure.last or LAST) :]
        figures = [figure_at(step, measure.metric) for step in chosen]
        known = [figure for figure in figures if figure is not None]
        if known:
            values[name] = math.fsum(known) / len(known)
    return values


def figure_at(step: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path of a step's metrics; None where there is none.

    In a list of rows, such as `cost`, a part names an agent or a role, and figures are added up:
    `cost.scoring.tokens`.
    """
    found = _found(step, path)
    numbers = [n for n in found if type(n) in (int, float) and math.isfinite(n)]
    return float(math.fsum(numbers)) if numbers else None


def _found(step: Mapping[str, Any], path: str) -> list[Any]:
    """What stands at a dotted path; the step itself where there is none."""
    places: list[Any] = [step]
    for part in path.split(".") if path else ():
        places = [below for place in places for below in _below(place, part)]
    return places


def _below(place: Any, part: str) -> list[Any]:
    if isinstance(place, Mapping):
        table = cast("Mapping[str, Any]", place)
        return [table[part]] if part in table else []
    if isinstance(place, list):
        listed = cast("list[Any]", place)
        rows = [cast("Mapping[str, Any]", row) for row in listed if isinstance(row, Mapping)]
        return [row for row in rows if part in (row.get("role"), row.get("agent"))]
    return []


def over_seeds(rows: Sequence[Row], setting: str, measure: str) -> list[float]:
    """The values of a setting, of the seeds that have one."""
    return [r.values[measure] for r in rows if r.setting == setting and measure in r.values]


# --- what became of the claims


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    difference: Interval | None
    """Left minus right over the seeds that have both; None where none has."""
    p: float
    """Corrected."""
    raw_p: float
    word: Word
    missing: tuple[str, ...] = ()
    """Cells without a value, in words."""

    @property
    def verdict(self) -> str:
        """In words."""
        return f"missing: {'; '.join(self.missing)}" if self.word == "missing" else self.word


def verdicts_of(study: StudyFile, rows: Sequence[Row]) -> list[Verdict]:
    """A verdict for every claim, in the order of the file."""
    cells = {(row.setting, row.seed): row for row in rows}
    paired: list[list[float]] = []
    gaps: list[tuple[str, ...]] = []
    for claim in study.claims:
        values = [_difference(claim, seed, cells) for seed in study.seeds]
        paired.append([value for value in values if isinstance(value, float)])
        gaps.append(tuple(value for value in values if isinstance(value, str)))
    raw = [
        1.0 if missing else p_of(differences, claim)
        for claim, differences, missing in zip(study.claims, paired, gaps, strict=True)
    ]
    corrected = holm(raw)
    return [
        _verdict(claim, paired[i], gaps[i], corrected[i], raw[i])
        for i, claim in enumerate(study.claims)
    ]


def _difference(claim: Claim, seed: int, cells: Mapping[tuple[str, int], Row]) -> float | str:
    """Left minus right of a seed, or what is missing."""
    values: list[float] = []
    for setting, measure in claim.sides:
        row = cells[setting, seed]
        if measure not in row.values:
            state = "failed" if row.status == "failed" else f"no {measure}"
            return f"{setting}, seed {seed}: {state}"
        values.append(row.values[measure])
    right = values[1] if isinstance(claim.right, str) else float(claim.right)
    return float(values[0] - right)


def p_of(differences: Sequence[float], claim: Claim) -> float:
    """One-sided p that the mean difference does not lie beyond the margin on the claimed side."""
    sign = 1.0 if claim.direction == "above" else -1.0
    beyond = [sign * difference - claim.margin for difference in differences]
    if len(beyond) < 2:
        return 1.0
    if max(beyond) - min(beyond) < 1e-12:
        return 0.5 ** len(beyond) if beyond[0] > 0 else 1.0
    from scipy import stats

    found: Any = stats.ttest_1samp(beyond, 0.0, alternative="greater")
    return float(found.pvalue)


def _verdict(
    claim: Claim, differences: Sequence[float], missing: tuple[str, ...], p: float, raw: float
) -> Verdict:
    interval = seeds_interval(differences) if differences else None
    word: Word = "not shown"
    if missing:
        word = "missing"
    elif interval is None or interval.n < 2:
        word = "one seed"
    elif p < LEVEL:
        word = "holds"
    else:
        above = claim.direction == "above"
        if interval.high < claim.margin if above else interval.low > -claim.margin:
            word = "contradicted"  # the whole interval lies on the other side of the margin
    return Verdict(claim, interval, p, raw, word, missing)
