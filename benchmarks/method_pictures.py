"""A small learning curve per method of `family.py`, for its page: `python
benchmarks/method_pictures.py OUT [PICTURES]`.

`<method>.svg`: the share right on unseen puzzles over generated tokens, every finished seed a thin
line, their mean a thick one; text stays text, so that a file is a few kB. Leaves out: the methods
whose measure is of judges, which is taken before and after only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from family import FAMILY, SEEDS, curves
from figures import Curve, save

PICTURES = Path(__file__).parents[1] / "docs" / "pictures" / "methods"
COLOUR = "#0b6e4f"


def draw(runs: list[Curve], longest: float, target: Path, asked: str = "puzzles") -> None:
    """Draw one method; tokens in millions up to `longest` on the horizontal axis, the share of what
    was `asked` on the vertical one.
    """
    figure, axes = plt.subplots(figsize=(4.8, 2.6))
    for tokens, shares in runs:
        axes.plot(tokens, shares, color=COLOUR, alpha=0.3, linewidth=0.9)
    shared = np.linspace(0, min(tokens[-1] for tokens, _ in runs), 40)
    means = np.mean([np.interp(shared, tokens, shares) for tokens, shares in runs], 0)
    axes.plot(shared, means, color=COLOUR, linewidth=2.2)
    axes.set(
        xlabel="generated tokens, millions",
        ylabel=f"share right, unseen {asked}",
        ylim=(0, 1),
        xlim=(0, longest),
    )
    axes.grid(axis="y", color="grey", alpha=0.25, linewidth=0.6)
    save(figure, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pictures", type=Path, nargs="?", default=PICTURES)
    args = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "comas"
    mpl.rcParams["svg.fonttype"] = "none"
    args.pictures.mkdir(parents=True, exist_ok=True)
    measured = [name for name, system in FAMILY.items() if system.measure == "accuracy"]
    drawn = {name: runs for name, runs in curves(args.out, measured, SEEDS).items() if runs}
    longest = max(tokens[-1] for runs in drawn.values() for tokens, _ in runs)
    for name, runs in drawn.items():
        draw(runs, longest, args.pictures / f"{name}.svg")


if __name__ == "__main__":
    main()
