"""Outcome of the claims of a study, and its report in Markdown: settings, measures, claims with
their verdicts, pictures; what failed or is missing stands in it as such.

Claims are about differences paired by seed: one-sided Student's t test; where all differences are
equal, the chance that so many fair signs agree. Corrected after Holm (1979) over every claim of the
file: one whose runs failed or are missing counts with p = 1, and never holds.

The same cells give the same bytes: there are no clocks in it but in `rows.csv` and `study.json`,
which have the seconds of each run. Pictures are drawn by matplotlib (extra `plot`): curves with
bands over seeds, a panel per setting, and final values with intervals. Leaves out: reading what was
measured (`studies.cells`).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from comas.program import VERSION
from comas.stats import Interval, finite, holm, seeds_interval, spelt
from comas.storage import files
from comas.studies.cells import CellResult, Curve
from comas.studies.file import LAST, OWN, Claim, Measure, Setting, StudyFile, with_plugin

# --- what became of the claims

LEVEL = 0.05
Word = Literal["holds", "not shown", "contradicted", "missing", "not tested, one seed"]


@dataclass(frozen=True)
class ClaimVerdict:
    """Outcome of a claim."""

    claim: Claim
    difference: Interval | None
    """Left minus right over the seeds that have both; None where none has."""
    missing: tuple[str, ...]
    """Cells without a value, in words."""
    raw_p: float
    other_p: float
    """That of the claim turned round: that the mean lies on the other side of the margin."""
    p: float = 1.0
    """Corrected, as `other_p` is."""

    @property
    def word(self) -> Word:
        """In a word or two."""
        interval = self.difference
        if self.missing:
            return "missing"
        if interval is None or interval.n < 2:
            return "not tested, one seed"
        if self.p < LEVEL:
            return "holds"
        return "contradicted" if self.other_p < LEVEL / 2 else "not shown"

    @property
    def verdict(self) -> str:
        """In words."""
        return f"missing: {'; '.join(self.missing)}" if self.word == "missing" else self.word

    def data(self) -> dict[str, Any]:
        """Return the claim and what became of it as JSON."""
        interval = self.difference
        return {
            **self.claim.model_dump(),
            "n": interval.n if interval else 0,
            "difference": interval.mean if interval else None,
            "low": finite(interval.low) if interval else None,
            "high": finite(interval.high) if interval else None,
            "p": self.p,
            "raw_p": self.raw_p,
            "verdict": self.word,
            "missing": list(self.missing),
        }


def verdicts_of(study: StudyFile, rows: Sequence[CellResult]) -> list[ClaimVerdict]:
    """A verdict for every claim, in the order of the file."""
    cells = {(row.setting, row.seed): row for row in rows}
    verdicts: list[ClaimVerdict] = []
    for claim in study.claims:
        differences: list[float] = []
        missing: list[str] = []
        for seed in study.seeds:
            sides = [(cells[setting, seed], measure) for setting, measure in claim.sides]
            lacking = [side for side in sides if side[1] not in side[0].values]
            if lacking:
                row, measure = lacking[0]
                state = "failed" if row.status == "failed" else f"no {measure}"
                missing.append(f"{row.setting}, seed {seed}: {state}")
                continue
            left, *right = (row.values[measure] for row, measure in sides)
            differences.append(left - (right[0] if right else float(claim.right)))
        raw = 1.0 if missing else p_of(differences, claim)
        other = 1.0 if missing else other_p_of(differences, claim)
        interval = seeds_interval(differences) if differences else None
        verdicts.append(ClaimVerdict(claim, interval, tuple(missing), raw, other))
    corrected = holm([verdict.raw_p for verdict in verdicts])
    others = holm([verdict.other_p for verdict in verdicts])
    return [
        replace(verdict, p=p, other_p=other)
        for verdict, p, other in zip(verdicts, corrected, others, strict=True)
    ]


def p_of(differences: Sequence[float], claim: Claim) -> float:
    """One-sided p that the mean difference does not lie beyond the margin on the claimed side."""
    return _p_above(_beyond(differences, claim))


def other_p_of(differences: Sequence[float], claim: Claim) -> float:
    """One-sided p that the mean difference does not lie short of the margin."""
    return _p_above([-each for each in _beyond(differences, claim)])


def _beyond(differences: Sequence[float], claim: Claim) -> list[float]:
    """By how much each difference is beyond the margin, on the claimed side."""
    sign = 1.0 if claim.direction == "above" else -1.0
    return [sign * difference - claim.margin for difference in differences]


def _p_above(beyond: Sequence[float]) -> float:
    """One-sided p that the mean is not above 0."""
    if len(beyond) < 2:
        return 1.0
    if max(beyond) - min(beyond) < 1e-12:
        return 0.5 ** len(beyond) if beyond[0] > 1e-12 else 1.0
    from scipy import stats

    test: Any = stats.ttest_1samp(beyond, 0.0, alternative="greater")
    return float(test.pvalue)


# --- the report

STATES = ("done", "failed", "missing")
NONE = "-"
"""In a table, where there is nothing to say."""
MARKUP = re.compile(r"([\\`*_|<>\[\]])")
"""Signs that Markdown would take for markup; `|` would end a cell of a table."""
WITHOUT_PICTURES = """Pictures need matplotlib: `pip install "comas[plot]"`."""


class Declared(NamedTuple):
    """Declaration of a study, and what was added or changed after cells had run."""

    digest: str
    """SHA-256 of the study file, and of the one that it extends behind it."""
    additions: Sequence[str] = ()
    """In words, in the order in which they were made."""


@dataclass(frozen=True, repr=False)
class Report:
    """Report of a study so far: `rows` of its cells, `verdicts` on its claims."""

    title: str
    study: StudyFile
    settings: Sequence[Setting]
    rows: Sequence[CellResult]
    verdicts: Sequence[ClaimVerdict]
    declared: Declared

    def __repr__(self) -> str:
        lines = [f"{verdict.claim.says}: {verdict.verdict}" for verdict in self.verdicts]
        return "\n  ".join([f"Report({self.title!r}: cells {self.states()})", *lines])

    def count(self, status: str) -> int:
        """Cells of this status."""
        return sum(row.status == status for row in self.rows)

    def states(self) -> str:
        """How many cells there are of each status, in words."""
        return ", ".join(f"{self.count(status)} {status}" for status in STATES)

    def interval(self, setting: str, measure: str) -> Interval | None:
        """Mean over seeds; None where no cell has a value."""
        values = self.values(setting, measure)
        return seeds_interval(values) if values else None

    def values(self, setting: str, measure: str) -> list[float]:
        """The values of a setting, of the seeds that have one."""
        rows = [row for row in self.rows if row.setting == setting]
        return [row.values[measure] for row in rows if measure in row.values]

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "title": self.title,
            "version": VERSION,
            "sha256": self.declared.digest,
            "additions": list(self.declared.additions),
            "rows": [{**asdict(row), "accuracy": row.accuracy} for row in self.rows],
            "claims": [verdict.data() for verdict in self.verdicts],
        }

    def write(self, out: Path) -> None:
        """Write all of its files."""
        parts = [f"# {plain(self.title)}", *_parts(self, out)]
        files.replace(out / "report.md", "\n\n".join(parts) + "\n")
        files.replace(out / "study.json", files.as_json(self.data(), indent=1))
        names = [*OWN, *self.study.claimed_of_agents, *self.study.measures]
        facts = ["setting", "seed", "run", "status", "reason"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*facts, *names])
        for row in self.rows:
            values = [row.values.get(name, "") for name in names]
            writer.writerow([*(getattr(row, fact) for fact in facts), *values])
        files.replace(out / "rows.csv", text.getvalue())


# --- Markdown


def plain(text: str) -> str:
    """A text on one line, in which Markdown finds no markup."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts under headings, in Markdown."""
    lines = [f"| {' | '.join(map(plain, cells))} |" for cells in (headings, *rows)]
    rule = "|".join("---" for _ in headings)
    return "\n".join([f"{plain(title)}:\n", lines[0], f"|{rule}|", *lines[1:]])


def _mixed_versions(rows: Sequence[CellResult]) -> str:
    """Say which cells which versions of comas ran; nothing where all ran under one."""
    ran: dict[str, list[str]] = {}
    for row in rows:
        if row.versions:
            versions = " then ".join(row.versions)
            ran.setdefault(versions, []).append(f"{row.setting} {row.seed}")
    if len(ran) < 2:
        return ""
    parts = [f"{versions}: {', '.join(cells)}" for versions, cells in ran.items()]
    return (
        "Cells ran under several versions of comas, which may differ in what they do:"
        f" {'; '.join(parts)}."
    )


def _parts(report: Report, out: Path) -> Iterator[str]:
    """Paragraphs, headings, tables and pictures, which are drawn below `out`."""
    study = report.study
    names = [setting.name for setting in report.settings]
    budgets = [] if study.tokens is None else [f"{study.tokens:,} generated tokens"]
    budgets += [] if study.steps is None else [f"{study.steps:,} steps"]
    yield plain(
        f"{len(names)} settings, seeds {', '.join(map(str, study.seeds))},"
        f" {' or '.join(budgets)} per run; the questions of a seed are the same in all settings."
        " Means over seeds with their 95 % intervals (Student's t); differences are paired by seed."
    )
    yield plain(
        f"Cells: {report.states()}. comas {VERSION}; SHA-256 of the study file:"
        f" {report.declared.digest}."
    )
    if report.declared.additions:
        yield plain(f"After cells had run: {'; '.join(report.declared.additions)}.")
    if mixed := _mixed_versions(report.rows):
        yield plain(mixed)
    if not can_draw():
        yield WITHOUT_PICTURES
    if incomplete := [row for row in report.rows if row.status != "done"]:
        rows = [(row.setting, str(row.seed), row.status, row.reason) for row in incomplete]
        headings = ("setting", "seed", "status", "why")
        yield table("Cells that failed or are missing", headings, rows)
    if report.verdicts:
        yield "## Claims"
        yield plain(
            "Declared before the runs. p is of a one-sided t test of the paired differences,"
            f" corrected after Holm for all {len(report.verdicts)} claims; a claim with missing"
            " cells counts with p = 1. A claim holds where p is below .05 (intervals are"
            " two-sided, so that one may hold whose interval reaches across the margin). It is"
            " contradicted where the claim turned round has a corrected p below .025."
        )
        yield _claims_table(report)
    yield from _accuracy(report, out)
    if study.claimed_of_agents:
        yield _means_table(report, "Of single agents, 95 %", study.claimed_of_agents)
    if study.measures:
        yield "## Measures"
        measures = [f"{name} ({_told(measure)})" for name, measure in study.measures.items()]
        yield _means_table(report, f"Measures: {'; '.join(measures)}", list(study.measures))


def _accuracy(report: Report, out: Path) -> Iterator[str]:
    """Tables and pictures of what was measured on held-out questions, as far as anything was."""
    measured = any(row.values.keys() & {"before", "accuracy"} for row in report.rows)
    if measured or any(row.curve for row in report.rows):
        yield "## Accuracy"
    if measured:
        yield _settings_table(report)
    if can_draw():
        yield from _accuracy_pictures(report, out)
    if not measured:
        return
    states = {
        (row.setting, row.seed): row.status if row.accuracy is None else f"{row.accuracy:.3f}"
        for row in report.rows
    }
    seeds = report.study.seeds
    by_seed = [
        (setting.name, *(states[setting.name, seed] for seed in seeds))
        for setting in report.settings
    ]
    headings = ("setting", *(f"seed {seed}" for seed in seeds))
    yield table("Accuracy after training, by seed", headings, by_seed)


def _means_table(report: Report, title: str, measures: Sequence[str]) -> str:
    names = [setting.name for setting in report.settings]
    rows = [(name, *(_mean(report, name, measure) for measure in measures)) for name in names]
    return table(title, ("setting", *measures), rows)


def _told(measure: Measure) -> str:
    """Describe a measure in words."""
    if measure.setup is not None:
        setup = with_plugin(measure.setup, lambda plugin: Path(plugin).name)
        what = f"{setup}, {measure.games} questions"
        what += "" if measure.task is None else f" of {Path(measure.task).name}"
    else:
        end = "first" if measure.first is not None else "last"
        what = f"{measure.metric}, {end} {measure.first or measure.last or LAST} steps"
    return f"{measure.says}: {what}" if measure.says else what


def _claims_table(report: Report) -> str:
    rows: list[Sequence[str]] = []
    for number, verdict in enumerate(report.verdicts, 1):
        claim = verdict.claim
        right = claim.right if isinstance(claim.right, str) else f"{claim.right:g}"
        measures = dict.fromkeys(measure for _, measure in claim.sides)
        bound = claim.margin if claim.direction == "above" else -claim.margin
        rows.append(
            [
                str(number),
                claim.says,
                f"{claim.left} - {right}",
                " - ".join(measures),
                f"{claim.direction} {bound:+g}" if bound else f"{claim.direction} 0",
                _signed(verdict.difference),
                f"{verdict.p:.3f}" if verdict.p >= 0.001 else "< .001",
                verdict.verdict,
            ]
        )
    headings = ("", "claim", "difference of", "measure", "claimed", "found, 95 %", "p (Holm)")
    return table("Left minus right, paired by seed", (*headings, "verdict"), rows)


def _settings_table(report: Report) -> str:
    rows: list[Sequence[str]] = []
    for setting in report.settings:
        name = setting.name
        done = [row for row in report.rows if row.setting == name and row.status == "done"]
        means: list[str] = []
        for measure, form in (("lowest", ".3f"), ("tokens", ",.0f"), ("steps", ",.0f")):
            interval = report.interval(name, measure)
            means.append(NONE if interval is None else f"{interval.mean:{form}}")
        rows.append(
            [
                name,
                f"{len(done)} of {len(report.study.seeds)}",
                _mean(report, name, "before"),
                _mean(report, name, "accuracy"),
                _signed(report.interval(name, "gain") if setting.trained else None),
                *means,
            ]
        )
    headings = ("setting", "cells", "before", "after, 95 %", "gain, 95 %", "lowest agent")
    return table("Held-out accuracy", (*headings, "tokens", "steps"), rows)


def _mean(report: Report, setting: str, measure: str) -> str:
    interval = report.interval(setting, measure)
    if interval is None:
        return NONE
    return _spelt(interval, ",.3f" if abs(interval.mean) < 10 else ",.1f")


def _signed(interval: Interval | None) -> str:
    return NONE if interval is None else _spelt(interval, "+.3f")


def _spelt(interval: Interval, form: str) -> str:
    if not math.isfinite(interval.low):  # one seed, or equal values: their spread says nothing
        return f"{interval.mean:{form}}"
    return spelt(*interval[:3], form)


# --- pictures

INK = "#0b6e4f"
GREY = "#888888"
POINTS = 40
"""Places of a curve at which its seeds are averaged."""
COLUMNS = 4
LETTERS = 32
"""Characters of a name, above a panel."""
RC: Any = {"svg.hashsalt": "comas", "text.parse_math": False, "font.size": 8}
"""Settings of matplotlib: the same numbers give the same bytes, and no name is read as a
formula.
"""
LEAST = 0.1
"""Range of accuracy on an axis, at least."""
Panel = tuple[str, Sequence[Curve]]
"""A setting, and its curves, one per seed."""


class Line(NamedTuple):
    """A setting, and what each of its seeds came to."""

    name: str
    values: Sequence[float]
    is_control: bool
    """Whether it was only measured."""


def fitted(values: Iterable[float]) -> tuple[float, float]:
    """Fit an axis to accuracies, with space on both sides, within 0 and 1."""
    accuracies = list(values)
    low, high = min(accuracies), max(accuracies)
    room = max((high - low) / 10, LEAST / 2)
    # a line at an end is seen whole
    return max(low - room, -0.01), min(high + room, 1.01)


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _accuracy_pictures(report: Report, out: Path) -> Iterator[str]:
    shown: list[Panel] = [
        (setting.name, [r.curve for r in report.rows if r.setting == setting.name and r.curve])
        for setting in report.settings
        if setting.trained
    ]
    if any(curves for _, curves in shown):
        panels(out / "pictures" / "learning.svg", shown)
        yield (
            "![Validation accuracy over generated tokens: seeds, their mean and its 95 % interval;"
            " grey: the first setting](pictures/learning.svg)"
        )
    lines = [
        Line(setting.name, report.values(setting.name, "accuracy"), not setting.trained)
        for setting in report.settings
    ]
    if any(line.values for line in lines):
        finals(out / "pictures" / "accuracy.svg", lines)
        yield (
            "![Held-out accuracy after training: seeds, their mean and its 95 % interval; grey and"
            " hollow: not trained](pictures/accuracy.svg)"
        )


def band_of(curves: Sequence[Curve]) -> tuple[list[float], list[Interval]] | None:
    """Places between the latest start and the earliest end of some curves, and their mean with its
    95 % interval there, values between points lying on a line; None where there is no such place.
    """
    if not curves:
        return None
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    if last < first:
        return None
    xs = np.linspace(first, last, POINTS)
    each = [np.interp(xs, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    intervals = [seeds_interval([float(values[i]) for values in each]) for i in range(POINTS)]
    return [float(x) for x in xs], intervals


def panels(path: Path, shown: Sequence[Panel]) -> None:
    """Draw a panel per setting with the same axes: every seed a thin line, their mean a thick one
    within its interval, the mean of the first setting again in grey.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = min(COLUMNS, max(1, len(shown)))
    rows = math.ceil(len(shown) / columns)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(0.6 + 2.4 * columns, 0.4 + 1.8 * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        bands = [band_of(curves) for _, curves in shown]
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for (title, curves), band, axes in zip(shown, bands, grid.flat, strict=False):
            axes.set_title(_short(title), loc="left", fontsize=8)
            axes.grid(axis="y", linewidth=0.4)
            if band is None:
                axes.text(0.1, 0.5, "not measured", color=GREY, transform=axes.transAxes)
                continue
            if band is not bands[0] and bands[0] is not None:
                xs, means = bands[0]
                axes.plot(xs, [i.mean for i in means], GREY, linewidth=1)
            xs, means = band
            if means[0].n > 1:
                low, high = ([getattr(i, end) for i in means] for end in ("low", "high"))
                axes.fill_between(xs, low, high, color=INK, alpha=0.15, linewidth=0)
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), color=INK, alpha=0.5, linewidth=0.6)
            axes.plot(xs, [i.mean for i in means], INK, linewidth=2)
        accuracies = [y for _, curves in shown for curve in curves for _, y in curve]
        grid[0, 0].set_ylim(*fitted(accuracies or [0.0, 1.0]))
        figure.supxlabel("generated tokens", fontsize=8)
        figure.supylabel("validation accuracy", fontsize=8)
        figure.savefig(path, metadata={"Date": None})


def finals(path: Path, lines: Sequence[Line]) -> None:
    """Draw a line per setting: its seeds as dots, their mean with its 95 % interval; of those that
    were only measured grey and hollow.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7, 1.0 + 0.25 * len(lines)), layout="constrained")
        axes = figure.subplots()
        for y, (_, values, is_control) in enumerate(lines):
            colour, face = (GREY, "white") if is_control else (INK, INK)
            if not values:
                across: Any = axes.get_yaxis_transform()  # x counts the width of the picture
                text_style: Any = {"transform": across, "verticalalignment": "center"}
                axes.text(0.02, y, "not measured", color=GREY, **text_style)
                continue
            interval = seeds_interval(values)
            axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.4, markersize=3)
            if interval.n > 1:
                axes.hlines(y, interval.low, interval.high, color=colour, linewidth=1.6)
            axes.plot([interval.mean], [y], "o", color=colour, mfc=face, markersize=6)
        axes.set_yticks(range(len(lines)), [_short(line.name) for line in lines])
        axes.set_xlim(*fitted(value for line in lines for value in line.values))
        axes.set_xlabel("held-out accuracy after training")
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.grid(axis="x", linewidth=0.4)
        figure.savefig(path, metadata={"Date": None})


def _short(title: str) -> str:
    return title if len(title) <= LETTERS else f"{title[: LETTERS - 1]}…"
