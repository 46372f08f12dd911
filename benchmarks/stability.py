"""The map of stability: `python benchmarks/stability.py STUDY [PICTURE]`.

Reads the cells of `comas study studies/stability.toml` (STUDY is the folder with `cells`), prints
where teams learn, stall and collapse and what a setting is worth, and draws the map. A run
*collapsed* where the share of right work of its last tenth of steps is more than .1 below that of
its best tenth, or held-out accuracy fell by more than .1; otherwise it *learnt* where held-out
accuracy rose by more than .1, and *stalled* where it did not.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from figures import save
from tables import page_lines

from comas.stats import mean_interval
from comas.storage.run import Run

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "stability.svg"
CLEAR = 0.1
"""Of accuracy: less is neither a rise nor a fall."""
NORMALISED = ("role", "all", "none")
PLACE = ("kl", "normalise", "lr", "questions")
"""What makes a cell of the map."""
CONTRASTS = (
    *(("kl", 0.1, 0.0), ("kl", 0.1, 0.02), ("kl", 0.1, 0.5)),
    *(("normalise", "none", "role"), ("normalise", "none", "all")),
)


@dataclass(frozen=True)
class Cell:
    """One run of the map."""

    kl: float
    normalise: str
    lr: float
    questions: int
    seed: int
    before: float
    after: float
    best: float
    """Share of right work in the best tenth of its steps."""
    last: float
    """The same in its last tenth."""
    alarmed: int | None
    """The first step at which a monitor alarmed; None where none did."""

    @property
    def outcome(self) -> str:
        """`collapsed`, `learnt` or `stalled`."""
        if self.last < self.best - CLEAR or self.after < self.before - CLEAR:
            return "collapsed"
        return "learnt" if self.after > self.before + CLEAR else "stalled"


def tenths(metrics: Path) -> list[float]:
    """Share of right work in each tenth of a run's steps."""
    lines = metrics.read_text(encoding="utf-8").splitlines()
    shares = [json.loads(line)["pay"]["accuracy"] for line in lines]
    return [float(np.mean(part)) for part in np.array_split(shares, min(10, len(shares)))]


def read(run: Path) -> Cell | None:
    """The cell of a run; None where it has not ended."""
    found = Run(run)
    before, after = (found.read_eval(stage) for stage in ("before", "after"))
    if before is None or after is None:
        return None
    config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    kls = set(config["kl"].values()) or {0.0}
    if len(kls) > 1:  # the default, which is no cell of the grid
        return None
    parts = tenths(run / "metrics.jsonl")
    alarms = run / "alarms.jsonl"
    lines = alarms.read_text(encoding="utf-8").splitlines() if alarms.is_file() else []
    steps = [json.loads(line)["step"] for line in lines]
    return Cell(
        kl=kls.pop(),
        normalise=config["credit"]["normalise"],
        lr=config["lr"],
        questions=config["questions"],
        seed=config["seed"],
        before=before["accuracy"]["mean"],
        after=after["accuracy"]["mean"],
        best=max(parts),
        last=parts[-1],
        alarmed=min(steps, default=None),
    )


def counted(cells: Sequence[Cell], key: str) -> list[dict[str, Any]]:
    """How many cells learnt, stalled and collapsed, by one of the four settings."""
    rows: list[dict[str, Any]] = []
    for value in sorted({getattr(cell, key) for cell in cells}, key=str):
        chosen = [cell for cell in cells if getattr(cell, key) == value]
        outcomes = [cell.outcome for cell in chosen]
        row: dict[str, Any] = {key: value, "runs": len(chosen)}
        row |= {name: outcomes.count(name) for name in ("learnt", "stalled", "collapsed")}
        row["accuracy, mean"] = round(float(np.mean([cell.after for cell in chosen])), 3)
        row["best run"] = round(max(cell.after for cell in chosen), 3)
        rows.append(row)
    return rows


def contrast(cells: Sequence[Cell], key: str, one: Any, other: Any) -> str:
    """How much higher runs end with one value of a setting than with another: over the values of
    the other settings, each the mean of its seeds.
    """
    rest = [name for name in PLACE if name != key]
    after: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    for cell in cells:
        values = after.setdefault(tuple(getattr(cell, name) for name in rest), {})
        values.setdefault(getattr(cell, key), []).append(cell.after)
    both = [values for values in after.values() if one in values and other in values]
    if not both:
        return f"{key} {one} - {other}: no cells"
    found = mean_interval([fmean(values[one]) - fmean(values[other]) for values in both])
    span = f"{found.mean:+.3f} [{found.low:.3f}, {found.high:.3f}]"
    return f"{key} {one} - {other}: {span}, {found.n} pairs of cells"


def agreement(cells: Sequence[Cell]) -> str:
    """How alike two seeds of a cell are, over all cells that have two."""
    by_place: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        place = tuple(getattr(cell, name) for name in PLACE)
        by_place.setdefault(place, []).append(cell)
    pairs = [sorted(found, key=lambda c: c.seed) for found in by_place.values() if len(found) == 2]
    if len(pairs) < 3:
        return "fewer than three cells have two seeds"
    after = np.array([[one.after, other.after] for one, other in pairs])
    between = float(np.corrcoef(after.T)[0, 1])
    differences = after[:, 0] - after[:, 1]
    spread = float(np.sqrt(np.mean(differences**2) / 2))
    same = sum(one.outcome == other.outcome for one, other in pairs)
    return (
        f"two seeds of {len(pairs)} cells: correlation {between:.2f}, standard deviation of a run"
        f" {spread:.3f}, greatest difference {np.abs(differences).max():.3f}, mean difference"
        f" {differences.mean():+.3f}, the same outcome in {same}"
    )


def draw(cells: Sequence[Cell], target: Path) -> None:
    """The map: a row per KL and normalisation, a column per questions and learning rate."""
    rates = sorted({cell.lr for cell in cells})
    sizes = sorted({cell.questions for cell in cells})
    kls = sorted({cell.kl for cell in cells})
    rows = [(kl, how) for kl in kls for how in NORMALISED]
    columns = [(size, rate) for size in sizes for rate in rates]
    places: Mapping[tuple[Any, ...], list[Cell]] = {
        (*row, *column): [] for row in rows for column in columns
    }
    for cell in cells:
        places[cell.kl, cell.normalise, cell.questions, cell.lr].append(cell)
    figure, axes = plt.subplots(figsize=(7.2, 6.4))
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            found = places[*row, *column]
            if found:
                _square(axes, x, y, found)
    labels = [f"lr {rate:g}" for _, rate in columns]
    axes.set_xticks(range(len(columns)), labels)
    axes.set_yticks(range(len(rows)), [f"KL {kl:g}, {how}" for kl, how in rows])
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    for place, size in enumerate(sizes):
        middle = (place + 0.5) * len(rates) - 0.5
        axes.text(middle, -0.75, f"{size} questions per step", ha="center")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    save(figure, target)


def _square(axes: Any, x: int, y: int, found: Sequence[Cell]) -> None:
    """A cell of the map: its mean accuracy, a cross for each run that collapsed, a ring for each
    that was alarmed.
    """
    accuracy = float(np.mean([cell.after for cell in found]))
    colour = plt.get_cmap("YlGn")(0.1 + 0.8 * accuracy)
    axes.add_patch(plt.Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=colour))
    collapsed = sum(cell.outcome == "collapsed" for cell in found)
    alarmed = sum(cell.alarmed is not None for cell in found)
    mark = "×" * collapsed + "°" * alarmed
    text = f"{accuracy:.2f}".removeprefix("0") + (f" {mark}" if mark else "")
    axes.text(x, y, text, ha="center", va="center", fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("picture", type=Path, nargs="?", default=PICTURE)
    args = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "comas"
    mpl.rcParams["svg.fonttype"] = "none"
    found = [read(run) for run in sorted(args.study.glob("cells/*/*/run"))]
    cells = [cell for cell in found if cell is not None]
    for key in PLACE:
        rows = counted(cells, key)
        texts = [[str(value) for value in row.values()] for row in rows]
        print("\n".join(page_lines(list(rows[0]), texts)), end="\n\n")
    for key, one, other in CONTRASTS:
        print(contrast(cells, key, one, other))
    for outcome in ("collapsed", "stalled", "learnt"):
        own = [cell for cell in cells if cell.outcome == outcome]
        alarmed = sum(cell.alarmed is not None for cell in own)
        print(f"{outcome}: {len(own)} of {len(cells)} runs, {alarmed} of these alarmed")
    print(agreement(cells))
    draw(cells, args.picture)


if __name__ == "__main__":
    main()
