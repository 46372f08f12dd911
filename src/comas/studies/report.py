"""The report of a study in Markdown: settings, measures, claims with their verdicts, pictures; what
failed or is missing stands in it as such.

The same cells give the same bytes: there are no clocks in it but in `rows.csv` and `studies.json`,
which have the seconds of each run. Leaves out: drawing (`studies.charts`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from comas.program import VERSION
from comas.stats import Interval, finite, seeds_interval
from comas.storage import files
from comas.studies import charts
from comas.studies.claims import Verdict, verdicts_of
from comas.studies.file import OWN, StudyFile
from comas.studies.ledger import Ledger
from comas.studies.named_files import setup_told
from comas.studies.settings import Setting
from comas.studies.values import Row, over_seeds

NONE = "-"
"""In a table, where there is nothing to say."""
MARKUP = re.compile(r"([\\`*_|<>\[\]])")
"""What Markdown would take for markup; `|` would end a cell of a table."""
WITHOUT_PICTURES = """Pictures need matplotlib: `pip install "comas[plot]"`."""


@dataclass(frozen=True, repr=False)
class Report:
    """What a study came to so far: `rows` of its cells, `verdicts` on its claims."""

    title: str
    study: StudyFile
    settings: Sequence[Setting]
    rows: Sequence[Row]
    verdicts: Sequence[Verdict]
    ledger: Ledger

    def __repr__(self) -> str:
        states = [f"{self.count(status)} {status}" for status in ("done", "failed", "missing")]
        told = [f"{verdict.claim.says}: {verdict.verdict}" for verdict in self.verdicts]
        return "\n  ".join([f"Report({self.title!r}: cells {', '.join(states)})", *told])

    def count(self, status: str) -> int:
        """Cells of this status."""
        return sum(row.status == status for row in self.rows)


def report_of(
    file: Path, study: StudyFile, settings: Sequence[Setting], rows: Sequence[Row], ledger: Ledger
) -> Report:
    """Test the claims on what there is."""
    title = study.says or file.stem
    return Report(title, study, settings, rows, verdicts_of(study, rows), ledger)


def write_report(report: Report, out: Path) -> None:
    """Write all of its files."""
    parts = [f"# {plain(report.title)}", *_parts(report, out)]
    files.replace(out / "report.md", "\n\n".join(parts) + "\n")
    files.replace(out / "rows.csv", _csv(report))
    files.replace(out / "study.json", files.as_json(as_data(report), indent=1))


def plain(text: str) -> str:
    """A text on one line, in which Markdown finds no markup."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts under headings, in Markdown."""
    lines = [f"| {' | '.join(map(plain, cells))} |" for cells in (headings, *rows)]
    rule = "|".join("---" for _ in headings)
    return "\n".join([f"{plain(title)}:\n", lines[0], f"|{rule}|", *lines[1:]])


def _parts(report: Report, out: Path) -> Iterator[str]:
    """Paragraphs, headings, tables and pictures, which are drawn below `out`."""
    yield from map(plain, _introduction(report))
    if not charts.can_draw():
        yield WITHOUT_PICTURES
    if incomplete := [row for row in report.rows if row.status != "done"]:
        rows = [(row.setting, str(row.seed), row.status, row.reason) for row in incomplete]
        headings = ("setting", "seed", "status", "why")
        yield table("Cells that failed or are missing", headings, rows)
    if report.verdicts:
        yield "## Claims"
        yield plain(_about_claims(report))
        yield _claims_table(report)
    yield "## Accuracy"
    yield _settings_table(report)
    yield from _accuracy_pictures(report, out)
    yield _seeds_table(report)
    if report.study.measures:
        yield "## Measures"
        yield _measures_table(report)
        yield from _measure_pictures(report, out)


def _picture(out: Path, name: str, caption: str, draw: Callable[[Path], None]) -> Iterator[str]:
    """Draw a picture, where that is possible, and yield its place in the report."""
    if charts.can_draw():
        (out / "pictures").mkdir(parents=True, exist_ok=True)
        draw(out / "pictures" / f"{name}.svg")
        yield f"![{plain(caption)}](pictures/{name}.svg)"


def _introduction(report: Report) -> Iterator[str]:
    study = report.study
    seeds = ", ".join(map(str, study.seeds))
    budgets = []
    if study.tokens is not None:
        budgets.append(f"{study.tokens:,} generated tokens")
    if study.steps is not None:
        budgets.append(f"{study.steps:,} steps")
    yield (
        f"{len(report.settings)} settings, seeds {seeds}, {' or '.join(budgets)} per run; the"
        " questions of a seed are the same in all settings. Means over seeds with their 95 %"
        " intervals (Student's t); differences are paired by seed."
    )
    states = [f"{report.count(status)} {status}" for status in ("done", "failed", "missing")]
    yield (
        f"Cells: {', '.join(states)}. comas {VERSION}; SHA-256 of the study file:"
        f" {report.ledger.digest}."
    )
    if report.ledger.additions:
        yield f"After cells had run: {'; '.join(report.ledger.additions)}."


def _about_claims(report: Report) -> str:
    return (
        "Declared before the runs. p is of a one-sided t test of the paired differences, corrected"
        f" after Holm for all {len(report.verdicts)} claims; a claim with missing cells counts with"
        " p = 1. A claim holds where p is below .05; it is contradicted where the whole interval"
        " lies on the other side."
    )


def _claims_table(report: Report) -> str:
    rows: list[tuple[str, ...]] = []
    for number, verdict in enumerate(report.verdicts, 1):
        claim = verdict.claim
        left_measure, right_measure = claim.measures
        right = claim.right if isinstance(claim.right, str) else f"{claim.right:g}"
        compared = f"{claim.left} - {right}"
        measure = left_measure
        if right_measure != left_measure and isinstance(claim.right, str):
            measure = f"{left_measure} - {right_measure}"
        claimed = f"{claim.direction} {_bound(claim.direction, claim.margin)}"
        found = _signed(verdict.difference)
        rows.append(
            (
                *(str(number), claim.says, compared, measure, claimed),
                *(found, _p(verdict.p), verdict.verdict),
            )
        )
    headings = (
        *("", "claim", "difference of", "measure", "claimed", "found, 95 %", "p (Holm)"),
        "verdict",
    )
    return table("Left minus right, paired by seed", headings, rows)


def _bound(direction: str, margin: float) -> str:
    bound = margin if direction == "above" else -margin
    return f"{bound:+g}" if bound else "0"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "< .001"


def _settings_table(report: Report) -> str:
    rows: list[tuple[str, ...]] = []
    for setting in report.settings:
        name = setting.name
        done = [row for row in report.rows if row.setting == name and row.status == "done"]
        means = [_mean(report, name, measure) for measure in ("before", "accuracy")]
        gain = _interval(report, name, "gain") if setting.trained else None
        lowest = _interval(report, name, "lowest")
        tokens = _interval(report, name, "tokens")
        steps = _interval(report, name, "steps")
        rows.append(
            (
                *(name, f"{len(done)} of {len(report.study.seeds)}", *means, _signed(gain)),
                NONE if lowest is None else f"{lowest.mean:.3f}",
                NONE if tokens is None else f"{tokens.mean:,.0f}",
                NONE if steps is None else f"{steps.mean:,.0f}",
            )
        )
    headings = (
        *("setting", "cells", "before", "after, 95 %", "gain, 95 %", "lowest agent", "tokens"),
        "steps",
    )
    return table("Held-out accuracy", headings, rows)


def _seeds_table(report: Report) -> str:
    cells = {(row.setting, row.seed): row for row in report.rows}
    rows: list[tuple[str, ...]] = []
    for setting in report.settings:
        of_setting = [cells[setting.name, seed] for seed in report.study.seeds]
        rows.append((setting.name, *map(_accuracy, of_setting)))
    headings = ("setting", *(f"seed {seed}" for seed in report.study.seeds))
    return table("Accuracy after training, by seed", headings, rows)


def _accuracy(row: Row) -> str:
    return row.status if row.accuracy is None else f"{row.accuracy:.3f}"


def _measures_table(report: Report) -> str:
    names = list(report.study.measures)
    rows = [
        (setting.name, *(_mean(report, setting.name, name) for name in names))
        for setting in report.settings
    ]
    told = [f"{name} ({what})" for name, what in _measures_told(report.study)]
    return table(f"Measures: {'; '.join(told)}", ("setting", *names), rows)


def _measures_told(study: StudyFile) -> Iterator[tuple[str, str]]:
    for name, measure in study.measures.items():
        if measure.metric is None:
            assert measure.setup is not None
            what = f"{setup_told(measure.setup)}, {measure.games} questions"
            what += "" if measure.task is None else f" of {Path(measure.task).name}"
        else:
            end = "first" if measure.first is not None else "last"
            what = f"{measure.metric}, {end} {measure.first or measure.last or 20} steps"
        yield name, f"{measure.says}: {what}" if measure.says else what


def _interval(report: Report, setting: str, measure: str) -> Interval | None:
    values = over_seeds(report.rows, setting, lambda row: row.values.get(measure))
    return seeds_interval(values) if values else None


def _mean(report: Report, setting: str, measure: str) -> str:
    found = _interval(report, setting, measure)
    if found is None:
        return NONE
    digits = 3 if abs(found.mean) < 10 else 1
    if found.n < 2:
        return f"{found.mean:,.{digits}f}"
    ends = f"[{found.low:,.{digits}f}, {found.high:,.{digits}f}]"
    return f"{found.mean:,.{digits}f} {ends}"


def _signed(found: Interval | None) -> str:
    if found is None:
        return NONE
    if found.n < 2:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _accuracy_pictures(report: Report, out: Path) -> Iterator[str]:
    trained = [setting.name for setting in report.settings if setting.trained]
    shown = [charts.Panel(name, _curves(report, name)) for name in trained]
    if any(panel.curves for panel in shown):
        caption = (
            "Validation accuracy over generated tokens: seeds, their mean and its 95 % interval;"
            " grey: the first setting"
        )
        draw = partial(charts.panels, y_label="validation accuracy", shown=shown, highest=1.0)
        yield from _picture(out, "learning", caption, draw)
    values = [
        (setting.name, over_seeds(report.rows, setting.name, lambda row: row.accuracy))
        for setting in report.settings
    ]
    caption = "Held-out accuracy after training: seeds, their mean and its 95 % interval"
    yield from _picture(out, "accuracy", caption, partial(charts.finals, rows=values))


def _curves(report: Report, setting: str) -> list[Any]:
    return [row.curve for row in report.rows if row.setting == setting and row.curve]


def _measure_pictures(report: Report, out: Path) -> Iterator[str]:
    """A picture of each figure of steps; measures of the same figure share one."""
    paths = [measure.metric for measure in report.study.measures.values()]
    for number, path in enumerate(dict.fromkeys(path for path in paths if path is not None), 1):
        curves = {
            setting.name: [
                row.curves[path]
                for row in report.rows
                if row.setting == setting.name and path in row.curves
            ]
            for setting in report.settings
        }
        shown = [charts.Panel(name, found) for name, found in curves.items() if found]
        if not shown:
            continue
        most = max(y for panel in shown for curve in panel.curves for _, y in curve)
        highest = 1.0 if 0.2 < most <= 1.0 else None
        draw = partial(charts.panels, y_label=path, shown=shown, highest=highest)
        yield from _picture(out, f"measure-{number}", f"{path} over generated tokens", draw)


def _csv(report: Report) -> str:
    names = [*OWN, *report.study.measures]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", "seed", "run", "status", "reason", *names])
    for row in report.rows:
        values = [row.values.get(name, "") for name in names]
        writer.writerow([row.setting, row.seed, row.run, row.status, row.reason, *values])
    return text.getvalue()


def as_data(report: Report) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "title": report.title,
        "version": VERSION,
        "sha256": report.ledger.digest,
        "additions": report.ledger.additions,
        "rows": [_row_data(row) for row in report.rows],
        "claims": [_claim_data(verdict) for verdict in report.verdicts],
    }


def _row_data(row: Row) -> dict[str, Any]:
    data = asdict(row)
    del data["curves"]
    return {**data, "accuracy": row.accuracy}


def _claim_data(verdict: Verdict) -> dict[str, Any]:
    found = verdict.difference
    interval: dict[str, float | None] = {"n": 0, "difference": None, "low": None, "high": None}
    if found is not None:
        interval |= {"n": found.n, "difference": found.mean}
    if found is not None and found.n > 1:
        interval |= {"low": finite(found.low), "high": finite(found.high)}
    return {
        **verdict.claim.model_dump(),
        **interval,
        "p": verdict.p,
        "raw_p": verdict.raw_p,
        "verdict": verdict.word,
        "missing": list(verdict.missing),
    }
