"""What SSR's checks are good for: `python benchmarks/repairs.py OUT [--jobs 2] [--seeds 101,102]
[--report]`.

Two runs of `ssr` per seed at the same budget of generated tokens, with its consistency checks and
without. Repair is the share of held-out faults that single answers mend, before and after; a fault
is fake where its tests do not hold for the working program, or do not fail for the changed one.
Runs that are there already are kept. The claims and thresholds were set before any counted run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from family_measures import recorded_accuracy
from learning import run as run_training

from comas.stats import Interval, mean_interval
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


def figures(out: Path, kind: str, seeds: list[int]) -> dict[str, Interval]:
    """Each measure, and the gain in repair, over seeds."""
    folders = [folder_of(out, kind, seed) for seed in seeds]
    found = {name: [measure(folder) for folder in folders] for name, measure in MEASURES.items()}
    pairs = zip(found["repair after"], found["repair before"], strict=True)
    found["gain in repair"] = [after - before for after, before in pairs]
    return {name: mean_interval(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("keys", nargs="*", help="key=value pairs for all runs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=lambda s: [int(x) for x in s.split(",")], default=SEEDS)
    parser.add_argument("--report", action="store_true", help="no new runs")
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
    for kind, row in found.items():
        for name, interval in row.items():
            print(f"{kind:10} {name:28} {interval}")
    gain = found["checks"]["gain in repair"]
    few = found["checks"]["fake faults, last quarter"].mean
    more = found["no checks"]["fake faults, last quarter"].mean
    print("seeds:", *done)
    print("the gain in repair is above .20 (lower bound):", "yes" if gain.low > 0.2 else "no")
    print("fake faults: at most .02 with the checks:", "yes" if few <= 0.02 else "no")
    print("fake faults: more without them:", "yes" if more > few else "no")


if __name__ == "__main__":
    main()
