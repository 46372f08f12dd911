"""Pictures of a report made by `learning.py`: `python benchmarks/figures.py OUT PICTURES`.

`learning.svg`: validation accuracy over generated tokens, every seed a thin line, their mean a
thick one. `judges.svg`: reward precision and recall, and what evaluators say of right and wrong
work, against ground truth. `teams.svg`: held-out accuracy before and after, per setup, every seed a
dot, the mean with its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from learning import SETUPS, commands, judges, summary

from comas.stats import mean_interval
from comas.storage.run import Run

COLOURS = {
    "default": "#0b6e4f",
    "rlvr": "#4a6fa5",
    "paper": "#c1121f",
    "ttrl": "#b08900",
    "no evaluation": "#6d597a",
    "judged by peers": "#0b6e4f",
    "judged by themselves": "#c1121f",
}
LABELS = {
    "default": "comas",
    "rlvr": "true verifier (supervised)",
    "paper": "comas as published",
    "ttrl": "majority vote (TTRL)",
    "no evaluation": "comas without evaluation",
    "judged by peers": "judged by peers\n(half the tokens)",
    "judged by themselves": "judged by themselves\n(half the tokens)",
}


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Generated tokens and validation accuracy, starting with the accuracy before training."""
    run = Run.open(folder)
    before = run.read_eval("before")
    points = [(m["tokens"], m["validation"]["mean"]) for m in run.metrics() if m.get("validation")]
    return [0.0, *(p[0] / 1e6 for p in points)], [
        before["accuracy"]["mean"] if before else float("nan"),
        *(p[1] for p in points),
    ]


def finished(out: Path, name: str, seeds: list[int]) -> list[Path]:
    return [f for f, _ in commands(out, [name], seeds) if (f / "eval" / "after.json").exists()]


def learning(out: Path, seeds: list[int], target: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    for name in ("rlvr", "default", "no evaluation", "ttrl", "paper"):
        curves = [curve(f) for f in finished(out, name, seeds)]
        if not curves:
            continue
        for x, y in curves:
            axes.plot(x, y, color=COLOURS[name], alpha=0.22, linewidth=0.9)
        grid = np.linspace(0, min(c[0][-1] for c in curves), 60)
        axes.plot(
            grid,
            np.mean([np.interp(grid, x, y) for x, y in curves], 0),
            color=COLOURS[name],
            linewidth=2.4,
            label=f"{LABELS[name]} ({len(curves)} seeds)",
        )
    axes.axhline(0.25, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="generated tokens, millions",
        ylabel="accuracy on unseen puzzles",
        ylim=(0, 1),
        xlim=(0, None),
    )
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    save(figure, target / "learning.svg")


def over_training(out: Path, seeds: list[int], target: Path) -> None:
    names = [n for n in ("default", "paper") if finished(out, n, seeds)]
    figure, grid = plt.subplots(
        1, max(1, len(names)), figsize=(4.4 * max(1, len(names)), 3.6), sharey=True, squeeze=False
    )
    shown = {
        "precision": "#0b6e4f",
        "recall": "#4a6fa5",
        "accepts right": "#b08900",
        "accepts wrong": "#c1121f",
    }
    for axes, name in zip(grid[0], names, strict=True):
        windows = [judges(f) for f in finished(out, name, seeds)]
        for key, colour in shown.items():
            for i, run in enumerate(windows):
                axes.plot(
                    [w["step"] for w in run],
                    [w.get(key, np.nan) for w in run],
                    color=colour,
                    alpha=0.3,
                    linewidth=0.9,
                    label=None if i else key,
                )
            shortest = min(map(len, windows))
            mean = [
                np.nanmean([run[i].get(key, np.nan) for run in windows]) for i in range(shortest)
            ]
            axes.plot([w["step"] for w in windows[0][:shortest]], mean, color=colour, linewidth=2)
        axes.set(title=LABELS[name], xlabel="step", ylim=(-0.02, 1.02))
    handles = [mpl.lines.Line2D([], [], color=c, linewidth=2, label=k) for k, c in shown.items()]
    grid[0][0].legend(handles=handles, frameon=False, fontsize=8)
    save(figure, target / "judges.svg")


def teams(out: Path, seeds: list[int], target: Path) -> None:
    rows = summary(
        out, ["default", "no evaluation", "judged by peers", "judged by themselves"], seeds
    )
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    for i, (name, runs) in enumerate(rows.items()):
        for shift, key, face in ((-0.12, "before", "none"), (0.12, "after", COLOURS[name])):
            values = [r[key]["mean"] for r in runs]
            axes.scatter(
                [i + shift] * len(values), values, facecolors=face, edgecolors=COLOURS[name], s=22
            )
            if len(values) > 1:
                found = mean_interval(values)
                axes.errorbar(
                    i + shift * 2,
                    found.mean,
                    [[found.mean - found.low], [found.high - found.mean]],
                    color="black",
                    marker="_",
                    capsize=3,
                    linewidth=1,
                )
    axes.set_xticks(range(len(rows)), [LABELS.get(n, n) for n in rows])
    axes.axhline(0.25, color="grey", linewidth=0.8, linestyle=":")
    axes.set(ylabel="held-out accuracy", ylim=(0, 1))
    save(figure, target / "teams.svg")


Curve = tuple[list[float], list[float]]
"""Generated tokens in millions, and a share at each."""


def family(curves_of: dict[str, list[Curve]], target: Path) -> None:
    """A panel per method of `family.py`, by its title: every seed a thin line, their mean a thick
    one.
    """
    mpl.rcParams["svg.hashsalt"] = "comas"
    drawn = {title: curves for title, curves in curves_of.items() if curves}
    rows = max(1, math.ceil(len(drawn) / 4))
    longest = max((x[-1] for curves in drawn.values() for x, _ in curves), default=1.0)
    figure, grid = plt.subplots(
        rows, 4, figsize=(9.6, 2.2 * rows), sharex=True, sharey=True, squeeze=False
    )
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, (title, curves) in zip(grid.flat, drawn.items(), strict=False):
        for x, y in curves:
            axes.plot(x, y, color="#0b6e4f", alpha=0.25, linewidth=0.9)
        shared = np.linspace(0, min(x[-1] for x, _ in curves), 40)
        means = np.mean([np.interp(shared, x, y) for x, y in curves], 0)
        axes.plot(shared, means, color="#0b6e4f", linewidth=2.2)
        axes.set(ylim=(0, 1), xlim=(0, longest))
        axes.grid(axis="y", color="grey", alpha=0.25, linewidth=0.6)
        axes.set_title(title, fontsize=9)
    figure.supxlabel("generated tokens, millions", fontsize=9)
    figure.supylabel("share right on unseen puzzles", fontsize=9)
    target.parent.mkdir(parents=True, exist_ok=True)
    save(figure, target)


def save(figure: plt.Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument(
        "--seeds", type=lambda s: [int(x) for x in s.split(",")], default=[101, 102, 103, 104, 105]
    )
    args = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "comas"
    args.pictures.mkdir(parents=True, exist_ok=True)
    assert set(LABELS) <= set(SETUPS)
    for draw in (learning, over_training, teams):
        draw(args.out, args.seeds, args.pictures)


if __name__ == "__main__":
    main()
