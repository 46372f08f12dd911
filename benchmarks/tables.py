"""What reports share: the options of their scripts, intervals in words, tables on a terminal or in
a page.

Leaves out: what is measured and claimed (`family.py`, `default_runs.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from comas.stats import Interval

YES_OR_NO = {None: "-", True: "yes", False: "no"}


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
