"""What SSR's checks are good for: `python benchmarks/repairs.py OUT [--jobs 2] [--seeds 101,102]
[--report]`.

Two runs of `ssr` per seed at the same budget of generated tokens, with its consistency checks and
without. Repair is the share of held-out faults that single answers mend, before and after; a fault
is fake where its tests do not hold for the working program, or do not fail for the changed one.
Runs that are there already are kept. The claims and thresholds were set before any counted run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tables
from family_measures import recorded_accuracy
from learning import run as run_training
from rich.console import Console

from comas.storage.run import Run

SEEDS = (101, 102, 103, 104, 105)
BUDGET = 250_000
"""Generated tokens of a run."""
KINDS = {"checks": [], "no checks": ["options.checks=false"]}
"""Kind of training -> its keys."""


def folder_of(out: Path, kind: str, seed: int) -> Path:
    return out / kind.replace(" ", "_") / str(seed)


def command(out: Path, kind: str, seed: int, more: list[str]) -> tuple[Path, list[str]]:
    """Folder and command of a run."""
    folder = folder_of(out, kind, seed)
    script = str(Path(__file__).with_name("learning.py"))
    fixed = ["method=ssr", f"seed={seed}", "steps=10000", f"tokens={BUDGET}", "threads=1"]
    keys = [*fixed, f"out={folder}", *KINDS[kind], *more]
    return folder, [sys.executable, script, "--one", *keys]


def fakes(folder: Path, quarter: int) -> float:
    """The share of injected faults that are fake, over a quarter (0 to 3) of the steps."""
    shares = [step["facts"]["inject"]["fake"] for step in Run.open(folder).metrics()]
    part = shares[len(shares) * quarter // 4 : len(shares) * (quarter + 1) // 4]
    return sum(part) / len(part)


MEASURES: dict[str, Callable[[Path], float]] = {
    "repair before": lambda folder: recorded_accuracy(folder, "before"),
    "repair after": lambda folder: recorded_accuracy(folder, "after"),
    "fake faults, first quarter": lambda folder: fakes(folder, 0),
    "fake faults, last quarter": lambda folder: fakes(folder, 3),
}


def figures(out: Path, kind: str, seeds: list[int]) -> dict[str, list[float]]:
    """Each measure, and the gain in repair, of each seed."""
    folders = [folder_of(out, kind, seed) for seed in seeds]
    found = {name: [measure(folder) for folder in folders] for name, measure in MEASURES.items()}
    pairs = zip(found["repair after"], found["repair before"], strict=True)
    return {**found, "gain in repair": [after - before for after, before in pairs]}


def main() -> None:
    parser = tables.parser(__doc__, SEEDS)
    parser.add_argument("keys", nargs="*", help="key=value pairs for all runs")
    args = parser.parse_intermixed_args()
    if not args.report:
        jobs = [command(args.out, kind, seed, args.keys) for seed in args.seeds for kind in KINDS]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(run_training, jobs))
    done = [
        seed
        for seed in args.seeds
        if all((folder_of(args.out, k, seed) / "eval" / "after.json").exists() for k in KINDS)
    ]
    if not done:
        sys.exit("no seed has both runs")
    found = {kind: figures(args.out, kind, done) for kind in KINDS}
    console = Console(width=200)
    tables.show_figures(console, f"seeds {', '.join(map(str, done))}", found)
    few = found["checks"]["fake faults, last quarter"]
    many = found["no checks"]["fake faults, last quarter"]
    more = [without - with_checks for without, with_checks in zip(many, few, strict=True)]
    claims = [
        ("the gain in repair is above .20", found["checks"]["gain in repair"], 0.2),
        ("fake faults: at most .02 with the checks (.02 less theirs)", [0.02 - x for x in few], 0),
        ("fake faults: more without them", more, 0),
    ]
    tables.show_claims(console, claims)


if __name__ == "__main__":
    main()
