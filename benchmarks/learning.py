"""Every published learning number, rerun by one command: `python benchmarks/learning.py OUT [--jobs
2] [--only default,ttrl]`.

Each cell is a training run in a process of its own, on fresh seeds, at the same budget of generated
tokens, measured on the same held-out questions. Runs that are finished are kept, so that an
interrupted report goes on where it stopped. Prints a table; `--json` ends with one object;
`figures.py` draws the pictures from the same folder.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from comas.config.schema import read
from comas.hooks import Hook
from comas.stats import Interval, accuracy_interval, mean_interval
from comas.storage.records import episode_of
from comas.storage.run import Run
from comas.tasks.pick import task
from comas.team.build import run_sync
from comas.training.metrics import StepRecord, pay
from comas.training.start import resume_async, train_async

BUDGET = 1_000_000
"""Generated tokens per run, measurements not counted."""
SEEDS = (101, 102, 103, 104, 105)
"""Fresh: no choice was made on them."""
BASES = ("tiny", "tiny-b", "tiny-c", "tiny-hole")
"""Four different warm starts; the last was taught that only the sum counts."""

_TEAM = [f"agents.a{i}={{host='home', base='{base}'}}" for i, base in enumerate(BASES)]
# half a budget is enough to tell forms of credit, and teams, apart
SETUPS: dict[str, list[list[str]]] = {
    "default": [[]],
    "paper": [["preset=paper"]],
    "ttrl": [["method=ttrl"]],
    "rlvr": [["method=rlvr"]],
    "no evaluation": [["options.evaluate=false"]],
    "default at half": [["tokens=500000"]],
    "KL 0": [["kl={}", "tokens=500000"]],
    "one normalisation": [["credit.normalise=all", "tokens=500000"]],
    "judged by peers": [[*_TEAM, "tokens=500000"]],
    "judged by themselves": [
        [_TEAM[i], "questions=32", "tokens=125000"] for i in range(len(BASES))
    ],
    "two": [["task_options.form=two", "hosts.home.base=tiny-two", "tokens=360000", "questions=64"]],
}
"""Name -> the key=value lists of its runs: one, or one per agent where agents train apart and share
the budget.
"""


def commands(out: Path, only: list[str], seeds: list[int]) -> list[tuple[Path, list[str]]]:
    """Folder and command of every run."""
    found = []
    for name in only:
        parts = SETUPS[name]
        for seed in seeds:
            for i, extra in enumerate(parts):
                folder = (
                    out
                    / name.replace(" ", "_").replace(",", "")
                    / (f"{seed}" if len(parts) == 1 else f"{seed}-{i}")
                )
                fixed = [
                    f"seed={seed}",
                    "steps=100000",
                    f"tokens={BUDGET // len(parts)}",
                    "threads=1",
                    f"out={folder}",
                ]
                found.append((folder, [sys.executable, __file__, "--one", *fixed, *extra]))
    return found


def run(job: tuple[Path, list[str]]) -> None:
    """One run, unless it is there already."""
    folder, command = job
    if (folder / "eval" / "after.json").exists():
        return
    if (folder / "commit.json").exists():
        command = [sys.executable, __file__, "--one", str(folder)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=env, check=False)
    print(f"{'done' if done.returncode == 0 else 'FAILED'} {folder}", file=sys.stderr, flush=True)


def shares(folder: Path, name: str) -> dict[str, dict[str, float]]:
    """Agent -> question -> 1.0 if right, of a measurement."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for answer in (Run.open(folder).read_eval(name) or {"answers": []})["answers"]:
        if answer["verdict"] != "failed":
            found[answer["agent"]][answer["question"]] = float(answer["verdict"] == "right")
    return found


def seed_row(folders: list[Path]) -> dict[str, Interval | float]:
    """Before, after and paired gain of one seed, clustered by question, over all agents of its
    runs.
    """
    means = {}
    for name in ("before", "after"):
        per_question = defaultdict(list)
        for folder in folders:
            for answers in shares(folder, name).values():
                for question, right in answers.items():
                    per_question[question].append(right)
        means[name] = {q: sum(v) / len(v) for q, v in per_question.items()}
    common = sorted(means["before"].keys() & means["after"].keys())
    row: dict[str, Interval | float] = {
        n: accuracy_interval([m[q] for q in common]) for n, m in means.items()
    }
    row["gain"] = mean_interval([means["after"][q] - means["before"][q] for q in common])
    metrics = [list(Run.open(f).metrics()) for f in folders]
    row["tokens"] = sum(m[-1]["tokens"] for m in metrics)
    row["seconds"] = sum(s["seconds"] for m in metrics for s in m)
    row["best"] = max(
        (s["validation"]["mean"] for m in metrics for s in m if s.get("validation")),
        default=float("nan"),
    )
    return row


def judges(folder: Path, every: int = 20) -> list[dict[str, float]]:
    """Over training, against ground truth: precision and recall of paying a solution, and how often
    evaluators accept right and wrong work; per window of `every` steps. None of it was seen by the
    agents.
    """
    run_ = Run.open(folder)
    windows = []
    last = max(int(p.stem) for p in (folder / "episodes").glob("*.jsonl")) + 1
    for start in range(0, last, every):
        steps = range(start, min(start + every, last))
        episodes = [episode_of(record) for step in steps for record in run_.episodes(step)]
        window = StepRecord(episodes, {}, task)
        figures = {k: v for k, v in pay(window).items() if v is not None}
        del figures["n"]
        windows.append({"step": start, **figures, **_accepted(window)})
    return windows


def _accepted(window: StepRecord) -> dict[str, float]:
    """Shares of right and of wrong work whose evaluation ends with `right`."""
    found: dict[str, list[bool]] = defaultdict(list)
    for turn in window.turns:
        if turn.role == "evaluation":
            work = "right" if window.labels[turn.about or ""] else "wrong"
            found[f"accepts {work}"].append(turn.text.endswith("right"))
    return {name: sum(accepted) / len(accepted) for name, accepted in found.items()}


def summary(out: Path, only: list[str], seeds: list[int]) -> dict[str, list[dict]]:
    """Setup -> a row per seed whose runs are all finished."""
    rows: dict[str, list[dict]] = {}
    for name in only:
        for seed in seeds:
            folders = [f for f, _ in commands(out, [name], [seed])]
            if all((f / "eval" / "after.json").exists() for f in folders):
                row = {
                    k: v._asdict() if isinstance(v, Interval) else v
                    for k, v in seed_row(folders).items()
                }
                rows.setdefault(name, []).append({"seed": seed, **row})
    return rows


def table(rows: dict[str, list[dict]]) -> Table:
    """Per setup and seed, then over seeds."""
    found = Table(
        "setup", "seed", "before", "after", "gain, 95 %", "best validation", "tokens", "seconds"
    )
    show = lambda v: f"{v['mean']:.3f} [{v['low']:.3f}, {v['high']:.3f}]"  # noqa: E731
    for name, runs in rows.items():
        for r in runs:
            found.add_row(
                name,
                str(r["seed"]),
                show(r["before"]),
                show(r["after"]),
                show(r["gain"]),
                f"{r['best']:.3f}",
                f"{r['tokens'] / 1e6:.2f}M",
                f"{r['seconds']:.0f}",
            )
        if len(runs) > 1:
            over = [
                mean_interval([r[k]["mean"] for r in runs])._asdict()
                for k in ("before", "after", "gain")
            ]
            found.add_row(name, "all", *map(show, over), "", "", "", end_section=True, style="bold")
    return found


def figures(out: Path, rows: dict[str, list[dict]]) -> str:
    """The report as CSV, a figure a line: of every seed and over seeds, and per quarter of the
    runs the judges against ground truth, as means over seeds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setup", "seed", "quarter", "figure", "value", "low", "high"])
    for name, runs in rows.items():
        for r in runs:
            for key in MEASURED:
                writer.writerow([name, r["seed"], "", key, *_spelt(r[key])])
            writer.writerow([name, r["seed"], "", "best validation", f"{r['best']:.3f}", "", ""])
            tokens = f"{r['tokens'] / 1e6:.2f}"
            writer.writerow([name, r["seed"], "", "million tokens", tokens, "", ""])
        if len(runs) > 1:
            for key in MEASURED:
                over = mean_interval([r[key]["mean"] for r in runs])._asdict()
                writer.writerow([name, "all", "", key, *_spelt(over)])
    for name in rows:
        folders = [f for r in rows[name] for f, _ in commands(out, [name], [r["seed"]])]
        for i, quarter in enumerate(quarters(folders)):
            for key in (key for key in OF_JUDGES if key in quarter):
                writer.writerow([name, "all", i + 1, key, f"{quarter[key]:.2f}", "", ""])
    return text.getvalue()


def foreign(page: Path, ours: set[str]) -> str:
    """The lines of a file about other setups than these, such as those of studies."""
    lines = page.read_text(encoding="utf-8").splitlines(True)[1:] if page.exists() else []
    return "".join(line for line in lines if line.partition(",")[0] not in ours)


MEASURED = ("before", "after", "gain")
OF_JUDGES = ("accuracy", "precision", "recall", "accepts right", "accepts wrong")


def _spelt(interval: dict[str, float]) -> list[str]:
    return [f"{interval[key]:.3f}" for key in ("mean", "low", "high")]


def made_with(out: Path, rows: dict[str, list[dict]]) -> str:
    """Commit, processor, torch and threads of all runs behind the report, as they recorded them."""
    folders = [
        f for name in rows for r in rows[name] for f, _ in commands(out, [name], [r["seed"]])
    ]
    return made_with_folders(folders)


def made_with_folders(folders: list[Path]) -> str:
    """The same of these runs."""
    processes = [
        process
        for folder in folders
        for process in json.loads((folder / "processes.json").read_text())["processes"]
    ]
    parts = []
    for key in ("commit", "processor", "torch", "python", "threads"):
        values = sorted({str(process.get(key, "unknown")) for process in processes})
        parts.append(f"{key} {', '.join(values)}")
    return "; ".join(parts)


def quarters(folders: list[Path]) -> list[dict[str, float]]:
    """Means of `judges` over runs, per quarter of each run."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(4)]
    for folder in folders:
        windows = judges(folder)
        for i, window in enumerate(windows):
            for key, value in window.items():
                found[4 * i // len(windows)][key].append(value)
    return [{k: sum(v) / len(v) for k, v in quarter.items()} for quarter in found]


def one(arguments: list[str]) -> None:
    """A single run in this process: key=value pairs, or the folder of an interrupted run."""
    if len(arguments) == 1:
        run_sync(resume_async(arguments[0], Hook()))
    else:
        run_sync(train_async(read(None, arguments), Hook()))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        return one(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(SETUPS))
    parser.add_argument(
        "--seeds", type=lambda s: [int(x) for x in s.split(",")], default=list(SEEDS)
    )
    parser.add_argument("--report", action="store_true", help="no new runs")
    parser.add_argument("--write", type=Path, help="also write every figure as CSV")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.report:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(run, commands(args.out, args.only, args.seeds)))
    rows = summary(args.out, args.only, args.seeds)
    if args.write:
        others = foreign(args.write, set(rows))
        args.write.write_text(figures(args.out, rows) + others, encoding="utf-8")
        print(f"made with {made_with(args.out, rows)}", file=sys.stderr)
    Console(stderr=args.json, width=160).print(table(rows))
    if args.json:
        device = f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
        print(
            json.dumps(
                {
                    "rows": [{"setup": n, **r} for n, rs in rows.items() for r in rs],
                    "device": device,
                }
            )
        )


if __name__ == "__main__":
    main()
