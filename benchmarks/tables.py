"""What reports of several seeds share: the options of their scripts, intervals in words, tables and
claims on a terminal or in a page.

Leaves out: what is measured and claimed (`family.py`, `red_team.py`, `repairs.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy import stats

from comas.stats import Interval, holm, mean_interval

Figures = Mapping[str, Mapping[str, Sequence[float]]]
"""Row -> column -> a value per seed."""
CLAIMS = ("claim", "found, 95 %", "p (Holm)", "holds")
YES_OR_NO = {None: "-", True: "yes", False: "no"}
LEVEL = 0.05
"""Of all claims of a table together."""


def parser(doc: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The options of a script whose runs are there after one seed or another."""
    found = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    found.add_argument("out", type=Path)
    found.add_argument("--jobs", type=int, default=2)
    found.add_argument("--seeds", type=_numbers, default=list(seeds))
    found.add_argument("--report", action="store_true", help="no new runs")
    return found


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def show(found: Interval, sign: str = "+") -> str:
    """A mean with its interval over seeds, where there are several."""
    if found.n < 2:
        return f"{found.mean:{sign}.3f}"
    return f"{found.mean:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def show_figures(console: Console, title: str, figures: Figures) -> None:
    """A table of means over seeds with their intervals; all rows have the same columns."""
    columns = list(next(iter(figures.values())))
    rows = [
        [name, *(show(mean_interval(row[column]), "") for column in columns)]
        for name, row in figures.items()
    ]
    show_table(console, (title, *columns), rows)


def show_claims(console: Console, claims: Sequence[tuple[str, Sequence[float], float]]) -> None:
    """A table of claims that the mean of a value per seed is above a threshold: one-sided t tests,
    corrected after Holm for all of them. One seed shows nothing.
    """
    ps = holm([_p_above(values, least) for _, values, least in claims])
    rows = [
        [says, show(mean_interval(values)), f"{p:.4f}", "yes" if p < LEVEL else "no"]
        for (says, values, _), p in zip(claims, ps, strict=True)
    ]
    show_table(console, CLAIMS, rows)


def _p_above(values: Sequence[float], least: float) -> float:
    """One-sided p of a mean of at most `least`; 1 where values do not differ, or there is one."""
    if len(set(values)) < 2:
        return 1.0
    return float(stats.ttest_1samp(values, least, alternative="greater").pvalue)


def show_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def page_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same in Markdown."""
    rule = "|".join("---" for _ in headings)
    return [f"| {' | '.join(headings)} |", f"|{rule}|", *(f"| {' | '.join(r)} |" for r in rows)]
