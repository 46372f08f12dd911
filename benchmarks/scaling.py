"""What more agents and larger models bring per generated token: `python benchmarks/scaling.py OUT
[--sizes 0.06M,0.23M] [--seeds 541,542] [--jobs 2] [--tokens 400000] [--picture FILE] [--report]`.

Teaches two seed models besides the shipped one, with the same demonstrations (half as wide and
twice as wide), then trains teams of 1, 2, 4, 8 and 16 copies of each by CoMAS, and a single copy by
a true verifier: a study per size (`OUT/SIZE.toml`, with claims that were declared before the runs)
that goes on where it was cut off. Settings are those of the default, whatever the size: a learning
rate for each size might change what comes out.

Of each run: accuracy on held-out puzzles, and the tokens that were generated until half of the work
in training was right. Of each size and seed: the exponent e of `tokens to half = c agents ** e`,
fitted to the teams that came so far. Where e is 1, twice as many agents need twice as many tokens:
each learns from its own share alone, and what the others do is worth nothing to it. Where e is
below 0, teams pay.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import tables
import tomli_w
from figures import save
from rich.console import Console

from comas.config.plan import OPTIMIZER, OURS, tiny_recipe
from comas.hosts.table import MAX_ROWS, TOKENS_PER_PASS
from comas.stats import mean_interval
from comas.storage.run import Run
from tools.seed.teach import WIDTH

SEEDS = (541, 542)
SIZES = {"0.06M": 48, "0.23M": WIDTH, "0.9M": 192}
"""Parameters -> the width of a seed model."""
TEAMS = (1, 2, 4, 8, 16)
TOKENS = 400_000
HALF = 0.5
"""Of the work of a step: what counts as half way."""
WINDOW = 5
"""Steps that a share of right work is a mean of."""
FEWEST = 3
"""Teams that an exponent is fitted to."""
VERIFIER = "verifier"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "scaling.svg"


@dataclass(frozen=True)
class Cell:
    """One run."""

    size: str
    team: str
    """How many agents, or `VERIFIER`."""
    seed: int
    before: float
    after: float
    tokens_N: np.ndarray
    """Generated until the end of each step of training."""
    right_N: np.ndarray
    """Share of right work, a mean over `WINDOW` steps."""

    @property
    def to_half(self) -> float | None:
        """Tokens until half of the work is right, between two steps by the straight line; None
        where it never was.
        """
        there = np.flatnonzero(self.right_N >= HALF)
        if not len(there):
            return None
        first = int(there[0])
        if first == 0:
            return float(self.tokens_N[0])
        pair = slice(first - 1, first + 1)
        return float(np.interp(HALF, self.right_N[pair], self.tokens_N[pair]))


def teach(size: str, models: Path) -> str:
    """The base of a size's agents; where the model is missing, it is taught."""
    width = SIZES[size]
    if width == WIDTH:  # it is shipped
        return "seed"
    base = (models / f"seed-{width}").absolute()
    if not (base / "tokenizer.json").is_file():
        models.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tools.seed.teach", "seed", str(base)]
        with (models / f"seed-{width}.log").open("w") as log:
            subprocess.run([*command, "--width", str(width)], stdout=log, check=True)
    return str(base)


def study(base: str, seeds: Sequence[int], tokens: int, out: Path) -> dict[str, object]:
    """The study file: what is the default of seed models is written out, for the others too."""
    host = {
        "base": base,
        "learner": "full",
        "checkpointing": False,
        "tokens_per_pass": TOKENS_PER_PASS,
        "max_rows": MAX_ROWS,
    }
    settings: dict[str, object] = {str(count): {"agents": count} for count in TEAMS}
    settings[VERIFIER] = {"method": "rlvr", "agents": 1}
    claims = [
        {
            "says": "four agents learn more than one, per token",
            "left": "4",
            "right": "1",
            "measure": "accuracy",
        },
        {
            "says": "one agent that judges itself is at most .05 below the verifier",
            "left": "1",
            "right": VERIFIER,
            "measure": "accuracy",
            "margin": -0.05,
        },
    ]
    config = {
        "hosts": {"home": host},
        "eval_every": 0,
        "lr": tiny_recipe()["lr"]["full"],
        "test_questions": tiny_recipe()["run"]["test_questions"] // 2,
        "max_tokens": 256,
        "threads": 1,
        **{key: list(v) if isinstance(v := OURS[key], tuple) else v for key in OPTIMIZER},
    }
    return {
        "says": "What more agents and larger models bring per generated token",
        "out": str(out.absolute()),
        "seeds": list(seeds),
        "tokens": tokens,
        "steps": 10_000,
        "config": config,
        "settings": settings,
        "claims": claims,
    }


def read(run: Path, size: str, team: str) -> Cell | None:
    """The cell of a run; None where it has not ended."""
    found = Run(run)
    before, after = (found.read_eval(stage) for stage in ("before", "after"))
    if before is None or after is None:
        return None
    metrics = list(found.metrics())
    right_N = np.array([step["pay"]["accuracy"] for step in metrics])
    window = np.ones(WINDOW)
    counted = np.convolve(np.ones(len(right_N)), window, mode="same")
    return Cell(
        size=size,
        team=team,
        seed=int(run.parent.name),
        before=before["accuracy"]["mean"],
        after=after["accuracy"]["mean"],
        tokens_N=np.array([step["tokens"] for step in metrics]),
        right_N=np.convolve(right_N, window, mode="same") / counted,
    )


def cells_of(out: Path) -> list[Cell]:
    """All runs that have ended, found by their settings' folders."""
    found = []
    for size in SIZES:
        for team in (*map(str, TEAMS), VERIFIER):
            runs = sorted((out / size).glob(f"cells/{team}/*/run"))
            found += [read(run, size, team) for run in runs]
    return [cell for cell in found if cell is not None]


def exponents(cells: Sequence[Cell], size: str) -> list[float]:
    """The exponent of each seed whose teams came so far in at least `FEWEST` sizes."""
    found = []
    for seed in sorted({cell.seed for cell in cells}):
        own = [c for c in cells if (c.size, c.seed) == (size, seed) and c.team != VERIFIER]
        points = [(int(c.team), c.to_half) for c in own if c.to_half is not None]
        if len(points) >= FEWEST:
            agents, tokens = np.log2(np.array(points, dtype=float)).T
            found.append(float(np.polyfit(agents, tokens, 1)[0]))
    return found


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A row per size and team: accuracy, and tokens to half way."""
    found = []
    for size in SIZES:
        for team in (*map(str, TEAMS), VERIFIER):
            own = [c for c in cells if (c.size, c.team) == (size, team)]
            if not own:
                continue
            halves = [c.to_half for c in own]
            there = [half for half in halves if half is not None]
            tokens = ", ".join(f"{round(half / 1000):d}k" for half in there)
            missing = len(halves) - len(there)
            never = f"{missing} of {len(halves)} never" if missing else ""
            found.append(
                [
                    size,
                    team,
                    f"{np.mean([c.before for c in own]):.3f}",
                    tables.show(mean_interval([c.after for c in own]), ""),
                    "; ".join(part for part in (tokens, never) if part),
                ]
            )
    return found


def draw(cells: Sequence[Cell], target: Path) -> None:
    """Share of right work over generated tokens, a panel per size, a line per run."""
    sizes = [size for size in SIZES if any(cell.size == size for cell in cells)]
    figure, panels_1S = plt.subplots(
        1, len(sizes), figsize=(3.6 * len(sizes), 3.2), sharey=True, squeeze=False
    )
    panels = panels_1S[0]
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(TEAMS)))
    named = min(cell.seed for cell in cells)  # the lines of one seed stand for those of all
    for axes, size in zip(panels, sizes, strict=True):
        for cell in [c for c in cells if c.size == size]:
            by_rule = cell.team == VERIFIER
            axes.plot(
                cell.tokens_N / 1000,
                cell.right_N,
                "--" if by_rule else "-",
                color="black" if by_rule else colours[TEAMS.index(int(cell.team))],
                linewidth=1.2,
                label=_named(cell.team) if cell.seed == named else None,
            )
        axes.set(title=size, xlabel="generated tokens, thousands", ylim=(0, 1))
    panels[0].set_ylabel("share of right work")
    panels[-1].legend(frameon=False, fontsize=8)
    save(figure, target)


def _named(team: str) -> str:
    if team == VERIFIER:
        return "one, true verifier"
    return "1 agent" if team == "1" else f"{team} agents"


def report(out: Path, picture: Path) -> None:
    """Print the tables and draw the picture of what is there."""
    cells = cells_of(out)
    if not cells:
        sys.exit(f"{out}: no run has ended")
    console = Console(width=140)
    headings = ("model", "agents", "before", "accuracy", "tokens to half, each seed")
    tables.show_table(console, headings, rows(cells))
    fitted = []
    for size in SIZES:
        found = exponents(cells, size)
        shown = tables.show(mean_interval(found)) if found else "-"
        fitted.append([size, shown, str(len(found))])
    tables.show_table(console, ("model", "exponent of agents", "seeds"), fitted)
    draw(cells, picture)


def main() -> None:
    parser = tables.parser(__doc__, SEEDS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=list(SIZES))
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "comas"
    mpl.rcParams["svg.fonttype"] = "none"
    if not args.report:
        for size in args.sizes:
            base = teach(size, args.out / "models")
            file = args.out / f"{size}.toml"
            declared = study(base, args.seeds, args.tokens, args.out / size)
            file.write_text(tomli_w.dumps(declared), encoding="utf-8")
            command = ["study", str(file), f"--jobs={args.jobs}"]
            subprocess.run([sys.executable, "-m", "comas", *command], check=False)
    report(args.out, args.picture)


if __name__ == "__main__":
    main()
