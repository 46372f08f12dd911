"""The report of a study in Markdown: settings, measures, claims with their verdicts; what failed or
is missing stands in it as such.

The same cells give the same bytes: there are no clocks in it but in `rows.csv` and `study.json`,
which have the seconds of each run. Leaves out: testing (`studies.claims`), curves, which
`comas view` draws of runs.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from comas.program import VERSION
from comas.stats import Interval, finite, seeds_interval, spelt
from comas.storage import files
from comas.studies.claims import Row, Verdict, over_seeds
from comas.studies.file import LAST, OWN, Measure, StudyFile
from comas.studies.settings import Setting, with_plugin

STATES = ("done", "failed", "missing")
NONE = "-"
"""In a table, where there is nothing to say."""
MARKUP = re.compile(r"([\\`*_|<>\[\]])")
"""What Markdown would take for markup; `|` would end a cell of a table."""


class Declared(NamedTuple):
    """What a study had declared, and what was added after cells had run."""

    digest: str
    """SHA-256 of the study file, and of the one that it extends behind it."""
    additions: Sequence[str] = ()
    """In words, in the order in which they were made."""


@dataclass(frozen=True, repr=False)
class Report:
    """What a study came to so far: `rows` of its cells, `verdicts` on its claims."""

    title: str
    study: StudyFile
    settings: Sequence[Setting]
    rows: Sequence[Row]
    verdicts: Sequence[Verdict]
    declared: Declared

    def __repr__(self) -> str:
        told = [f"{verdict.claim.says}: {verdict.verdict}" for verdict in self.verdicts]
        return "\n  ".join([f"Report({self.title!r}: cells {self.states()})", *told])

    def count(self, status: str) -> int:
        """Cells of this status."""
        return sum(row.status == status for row in self.rows)

    def states(self) -> str:
        """How many cells there are of each status, in words."""
        return ", ".join(f"{self.count(status)} {status}" for status in STATES)

    def interval(self, setting: str, measure: str) -> Interval | None:
        """Mean over seeds; None where no cell has a value."""
        values = over_seeds(self.rows, setting, measure)
        return seeds_interval(values) if values else None

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        rows = [{**asdict(row), "accuracy": row.accuracy} for row in self.rows]
        return {
            "title": self.title,
            "version": VERSION,
            "sha256": self.declared.digest,
            "additions": list(self.declared.additions),
            "rows": rows,
            "claims": [_claim_data(verdict) for verdict in self.verdicts],
        }

    def write(self, out: Path) -> None:
        """Write all of its files."""
        parts = [f"# {plain(self.title)}", *_parts(self)]
        files.replace(out / "report.md", "\n\n".join(parts) + "\n")
        files.replace(out / "rows.csv", _csv(self))
        files.replace(out / "study.json", files.as_json(self.data(), indent=1))


def _claim_data(verdict: Verdict) -> dict[str, Any]:
    found = verdict.difference
    return {
        **verdict.claim.model_dump(),
        "n": found.n if found else 0,
        "difference": found.mean if found else None,
        "low": finite(found.low) if found else None,
        "high": finite(found.high) if found else None,
        "p": verdict.p,
        "raw_p": verdict.raw_p,
        "verdict": verdict.word,
        "missing": list(verdict.missing),
    }


def _csv(report: Report) -> str:
    names = [*OWN, *report.study.claimed_of_agents, *report.study.measures]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", "seed", "run", "status", "reason", *names])
    for row in report.rows:
        values = [row.values.get(name, "") for name in names]
        writer.writerow([row.setting, row.seed, row.run, row.status, row.reason, *values])
    return text.getvalue()


# --- Markdown


def plain(text: str) -> str:
    """A text on one line, in which Markdown finds no markup."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts under headings, in Markdown."""
    lines = [f"| {' | '.join(map(plain, cells))} |" for cells in (headings, *rows)]
    rule = "|".join("---" for _ in headings)
    return "\n".join([f"{plain(title)}:\n", lines[0], f"|{rule}|", *lines[1:]])


def _parts(report: Report) -> Iterator[str]:
    """Paragraphs, headings and tables."""
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
    if incomplete := [row for row in report.rows if row.status != "done"]:
        rows = [(row.setting, str(row.seed), row.status, row.reason) for row in incomplete]
        headings = ("setting", "seed", "status", "why")
        yield table("Cells that failed or are missing", headings, rows)
    if report.verdicts:
        yield "## Claims"
        yield plain(
            "Declared before the runs. p is of a one-sided t test of the paired differences,"
            f" corrected after Holm for all {len(report.verdicts)} claims; a claim with missing"
            " cells counts with p = 1. A claim holds where p is below .05; it is contradicted"
            " where the whole interval lies on the other side."
        )
        yield _claims_table(report)
    yield "## Accuracy"
    yield _settings_table(report)
    if of_agents := study.claimed_of_agents:
        means = [(name, *(_mean(report, name, measure) for measure in of_agents)) for name in names]
        yield table("Of single agents, 95 %", ("setting", *of_agents), means)
    if study.measures:
        yield "## Measures"
        means = [
            (name, *(_mean(report, name, measure) for measure in study.measures)) for name in names
        ]
        told = [f"{name} ({_told(measure)})" for name, measure in study.measures.items()]
        yield table(f"Measures: {'; '.join(told)}", ("setting", *study.measures), means)


def _told(measure: Measure) -> str:
    """What a measure is, in words."""
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
        lowest, tokens, steps = (
            report.interval(name, measure) for measure in ("lowest", "tokens", "steps")
        )
        rows.append(
            [
                name,
                f"{len(done)} of {len(report.study.seeds)}",
                _mean(report, name, "before"),
                _mean(report, name, "accuracy"),
                _signed(report.interval(name, "gain") if setting.trained else None),
                NONE if lowest is None else f"{lowest.mean:.3f}",
                NONE if tokens is None else f"{tokens.mean:,.0f}",
                NONE if steps is None else f"{steps.mean:,.0f}",
            ]
        )
    headings = ("setting", "cells", "before", "after, 95 %", "gain, 95 %", "lowest agent")
    return table("Held-out accuracy", (*headings, "tokens", "steps"), rows)


def _mean(report: Report, setting: str, measure: str) -> str:
    found = report.interval(setting, measure)
    if found is None:
        return NONE
    return _spelt(found, ",.3f" if abs(found.mean) < 10 else ",.1f")


def _signed(found: Interval | None) -> str:
    return NONE if found is None else _spelt(found, "+.3f")


def _spelt(found: Interval, form: str) -> str:
    if not math.isfinite(found.low):  # one seed, or equal values: their spread says nothing
        return f"{found.mean:{form}}"
    return spelt(*found[:3], form)
