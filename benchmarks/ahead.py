"""What it brings and costs to play a step while the one before is learnt: `python
benchmarks/ahead.py OUT [--seeds 611,612] [--tokens 600000] [--jobs 2] [--pairs 6] [--steps 12]
[--keys key=value ...] [--report] [--json]`.

Accuracy: `comas train` as it is, with `ahead` 0 and 1 from the same seeds to the same number of
tokens; what is there already is kept, what was cut short goes on. Times: short runs in pairs, one
behind the other in an order that changes, of which the first two steps do not count; the ratio is
of seconds and of processor seconds per step. One thread per process and torch thread unless
`--threads` says otherwise: a run that is ahead then works in two. Thresholds were fixed before the
runs: none was set for times; accuracy at equal tokens may lose .02 at most.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from comas.evaluation.accuracy import by_question
from comas.stats import mean_interval, two_level
from comas.storage.run import Run

AHEAD = (0, 1)
LOSS = 0.02
"""Accuracy that may be lost at equal tokens."""
SKIPPED = 2
"""Steps of a timed run that do not count: caches fill, and nothing is ahead in the first."""


def comas(*arguments: str, log: Path) -> float:
    """Run a command, and return the processor seconds that it took."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("a") as output:
        command = [sys.executable, "-m", "comas", *arguments]
        subprocess.run(
            command, check=True, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def train(folder: Path, keys: Sequence[str]) -> None:
    """One run to its end, unless it is there."""
    log = folder.with_suffix(".log")
    if (folder / "eval" / "after.json").exists():
        return
    if (folder / "config.toml").exists():
        comas("resume", str(folder), log=log)
    else:
        comas("train", *keys, f"out={folder}", log=log)


def cell(out: Path, seed: int, ahead: int) -> Path:
    return out / f"{seed}-{ahead}"


def shares(folder: Path, stage: str) -> dict[str, float] | None:
    """Question -> share of right answers; None where the run has not come so far."""
    record = Run.open(folder).read_eval(stage) if (folder / "config.toml").exists() else None
    return by_question(record["answers"]) if record else None


def accuracy_rows(out: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row per seed whose two runs have ended, and one of all."""
    rows: list[dict[str, Any]] = []
    differences_SQ: list[list[float]] = []
    for seed in seeds:
        before, after = (shares(cell(out, seed, 0), stage) for stage in ("before", "after"))
        ahead = shares(cell(out, seed, 1), "after")
        if before is None or after is None or ahead is None:
            continue
        questions = sorted(after.keys() & ahead.keys())
        differences = [ahead[q] - after[q] for q in questions]
        differences_SQ.append(differences)
        rows.append(
            {
                "seed": str(seed),
                "before": statistics.fmean(before.values()),
                "ahead=0": statistics.fmean(after.values()),
                "ahead=1": statistics.fmean(ahead.values()),
                "difference": statistics.fmean(differences),
            }
        )
    if len(rows) < 2:
        return rows
    of_seeds = mean_interval([row["difference"] for row in rows])
    crossed, p = two_level(differences_SQ)
    verdict = "met" if of_seeds.low > -LOSS else "failed" if of_seeds.high < -LOSS else "open"
    return [
        *rows,
        {
            "seed": f"all {len(rows)}",
            **{k: statistics.fmean(r[k] for r in rows) for k in ("before", "ahead=0", "ahead=1")},
            "difference": of_seeds.mean,
            "low": of_seeds.low,
            "high": of_seeds.high,
            "low, questions too": crossed.low,
            "high, questions too": crossed.high,
            "p": p,
            f"loses no more than {LOSS}": verdict,
        },
    ]


def seconds_per_step(folder: Path) -> float:
    """The median of a timed run's steps, the first apart."""
    seconds = [metrics["seconds"] for metrics in Run.open(folder).metrics()]
    # the last step of a run that is ahead has nothing to play
    return statistics.median(seconds[SKIPPED:-1])


def timed(out: Path, pair: int, keys: Sequence[str]) -> dict[str, float]:
    """One pair of short runs: seconds per step, and processor seconds in all, by `ahead`."""
    record = out / f"times-{pair}.json"
    if record.exists():
        return json.loads(record.read_text())
    times: dict[str, float] = {}
    for ahead in AHEAD if pair % 2 == 0 else AHEAD[::-1]:
        folder = out / f"times-{pair}-{ahead}"
        log = folder.with_suffix(".log")
        cpu = comas("train", *keys, f"seed={pair}", f"ahead={ahead}", f"out={folder}", log=log)
        times[f"seconds {ahead}"] = seconds_per_step(folder)
        times[f"cpu {ahead}"] = cpu
    record.write_text(json.dumps(times))
    return times


def times_rows(pairs: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """The ratio of a run that is ahead to one that is not: geometric means over pairs."""
    rows: list[dict[str, Any]] = []
    for what, key in (("seconds per step", "seconds"), ("processor seconds of the run", "cpu")):
        if not pairs:
            break
        found = mean_interval([math.log(pair[f"{key} 1"] / pair[f"{key} 0"]) for pair in pairs])
        rows.append(
            {
                "what": what,
                "pairs": len(pairs),
                "ahead=0": statistics.median(pair[f"{key} 0"] for pair in pairs),
                "ahead=1": statistics.median(pair[f"{key} 1"] for pair in pairs),
                "ratio": math.exp(found.mean),
                "low": math.exp(found.low),
                "high": math.exp(found.high),
            }
        )
    return rows


def show(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns, title=title)
    for row in rows:
        values = [row.get(column, "") for column in columns]
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in values))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--seeds",
        type=lambda s: [int(x) for x in s.split(",") if x],
        default=list(range(611, 616)),
        help='of accuracy; "": times alone',
    )
    parser.add_argument("--tokens", type=int, default=600_000)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, of accuracy only")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12, help="of a timed run")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--keys", nargs="*", default=[], help="key=value of every run")
    parser.add_argument("--report", action="store_true", help="no new runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    keys = [f"threads={args.threads}", *args.keys]
    if not args.report:
        with ThreadPoolExecutor(args.jobs) as pool:
            for seed in args.seeds:
                for ahead in AHEAD:
                    own = [*keys, f"seed={seed}", f"tokens={args.tokens}", f"ahead={ahead}"]
                    pool.submit(train, cell(args.out, seed, ahead), own)
    short = [f"steps={args.steps}", "test_questions=0", "eval_every=0", "checkpoint_every=1000"]
    pairs = range(args.pairs)
    if args.report:
        pairs = [pair for pair in pairs if (args.out / f"times-{pair}.json").exists()]
    measured = [timed(args.out, pair, [*keys, *short]) for pair in pairs]
    accuracy = accuracy_rows(args.out, args.seeds)
    times = times_rows(measured)
    console = Console(stderr=args.json, width=200)
    show(console, f"accuracy after {args.tokens:,} tokens", accuracy)
    show(console, "times", times)
    if args.json:
        print(json.dumps({"rows": [*accuracy, *times], "device": "cpu"}))


if __name__ == "__main__":
    main()
