"""How accuracy grows with tokens per question, for ways of answering at several budgets: `python
benchmarks/budgets.py OUT [--systems seed,tiny-vote-0] [--limit 100] [--picture FILE] [--report]`.

One evaluation (`comas eval`) of every setup with the options of each budget, on the same held-out
questions; it goes on where it was stopped. Prints a row per setup and budget with its 95 % interval
over questions, and the cheapest setup that reaches each row's accuracy in the mean; `--json` ends
with one object. Leaves out: prompt tokens, which refining and debating need more of, and seconds
(both are in OUT/report.json).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from figures import save
from rich.console import Console
from rich.table import Table

from comas.evaluation.runner import PLAN, EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.installed import examine
from comas.sync import run_sync

FAMILIES = {
    "vote": ("single", "vote:votes=4", "vote:votes=16"),
    "debate": ("debate:revisions=1", "debate:revisions=3"),
    "refine": (
        "refine:chains=1:rounds=1",
        "refine:chains=4:rounds=1",
        "refine:chains=4:rounds=3",
    ),
    "steps": (
        "steps:votes=2:rounds=1",
        "steps:votes=6:rounds=1",
        "steps:votes=6:rounds=3",
    ),
}
"""Way of answering -> its budgets, from small to large; `single` is a vote of one."""
COLOURS = {"vote": "#4a6fa5", "debate": "#b08900", "refine": "#0b6e4f", "steps": "#c1121f"}


@dataclass(frozen=True)
class Row:
    """A setup at a budget."""

    system: str
    family: str
    setup: str
    tokens: float
    """Generated, per question."""
    accuracy: float
    low: float
    high: float
    n: int


def evaluated(out: Path, systems: Sequence[str], limit: int, seed: int) -> dict[str, Any]:
    """The report of the evaluation in `out`, begun or gone on with."""
    setups = [setup for budgets in FAMILIES.values() for setup in budgets]
    if (out / PLAN).exists():
        evaluation = EvaluationRun.open(out)
    else:
        evaluation = EvaluationRun.create(
            EvaluationPlan(systems, setups=setups, limit=limit, seed=seed), str(out)
        )
    return run_sync(evaluation.go())


def rows_of(report: dict[str, Any]) -> list[Row]:
    """A row per cell that was judged, in the order of systems, families and tokens."""
    family_of = {setup: name for name, budgets in FAMILIES.items() for setup in budgets}
    rows: list[Row] = []
    for cell in report["cells"]:
        if cell["accuracy"] is None:
            continue
        tokens = cell["tokens"] / (cell["right"] + cell["wrong"] + cell["failed"])
        figures = (tokens, cell["accuracy"], cell["low"], cell["high"], cell["judged"])
        rows.append(Row(cell["system"], family_of[cell["setup"]], cell["setup"], *figures))
    return rows


def cheapest(row: Row, rows: Sequence[Row]) -> Row:
    """The row of the same system with the fewest tokens that is at least as accurate."""
    able = [r for r in rows if r.system == row.system and r.accuracy >= row.accuracy]
    return min(able, key=lambda r: r.tokens)


def table(rows: Sequence[Row]) -> Table:
    drawn = Table("system", "setup", "tokens", "accuracy, 95 %", "as accurate for less")
    for row in rows:
        less = cheapest(row, rows)
        interval = f"{row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}]"
        cheaper = "" if less == row else f"{less.setup} ({less.tokens:.0f})"
        drawn.add_row(row.system, row.setup, f"{row.tokens:.0f}", interval, cheaper)
    return drawn


def draw(rows: Sequence[Row], target: Path) -> None:
    """A panel per system: accuracy over tokens per question, with intervals."""
    mpl.rcParams["svg.hashsalt"] = "comas"
    mpl.rcParams["svg.fonttype"] = "none"
    systems = list(dict.fromkeys(row.system for row in rows))
    figure, grid = plt.subplots(
        1, len(systems), figsize=(4.8 * len(systems), 3.2), sharey=True, squeeze=False
    )
    for axes, system in zip(grid[0], systems, strict=True):
        for family, colour in COLOURS.items():
            own = [row for row in rows if row.system == system and row.family == family]
            errors = [
                [row.accuracy - row.low for row in own],
                [row.high - row.accuracy for row in own],
            ]
            axes.errorbar(
                [row.tokens for row in own],
                [row.accuracy for row in own],
                errors,
                color=colour,
                label=family,
                marker="o",
                markersize=3.5,
                capsize=2,
                linewidth=1.4,
            )
        axes.set(title=system, xscale="log", ylim=(0, 1), xlabel="generated tokens per question")
        axes.grid(axis="y", color="grey", alpha=0.25, linewidth=0.6)
    grid[0][0].set(ylabel="share right, unseen puzzles")
    grid[0][0].legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    save(figure, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--systems", type=lambda s: s.split(","), default=["tiny"])
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="ask nothing")
    parser.add_argument("--picture", type=Path, help="also draw the curves, as SVG")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.report:
        report = json.loads((args.out / "report.json").read_text(encoding="utf-8"))
    else:
        report = evaluated(args.out, args.systems, args.limit, args.seed)
    rows = rows_of(report)
    Console(stderr=args.json, width=120).print(table(rows))
    if args.picture:
        draw(rows, args.picture)
    if args.json:
        found = {"rows": [asdict(row) for row in rows], "device": examine()["device = auto"]}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
