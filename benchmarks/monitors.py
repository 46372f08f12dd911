"""Which alarm comes in time, and which comes for nothing: `python benchmarks/monitors.py OUT
[--only paper,default] [--jobs 1] [--report] [--json] [--write PAGE]`.

Runs that are healthy and runs that collapse, each watched by every monitor that is shipped. A run
has collapsed where its validation accuracy falls by a tenth below the best before it, or below the
accuracy on 512 held-out questions at its start, since a fast one falls before anything is
validated; it is judged by that alone, whatever it was meant to be. For every hypothesis: in how
many collapsed runs its alarm came before the fall, by how many steps, and in how many healthy runs
it came at all.
Finished runs are kept, so that an interrupted report goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from learning import run as run_training
from rich.console import Console
from rich.table import Table

from comas.config.plan import OURS
from comas.config.plugins import plugin_names
from comas.monitors.evidence import Evidence
from comas.stats import wilson
from comas.storage.alarms import read_alarms
from comas.storage.run import Run

FALL = 0.1
"""Of accuracy, below the best measurement before: a tenth."""
EVERY = 10
"""Steps between measurements."""
FAST = "eval_every=5"
"""For runs that fall in twenty steps."""
FIRST_SEED = 401
"""Fresh: margins were chosen on seeds below 100 and on seed 301."""


@dataclass(frozen=True)
class Kind:
    """Runs of one config, over several seeds."""

    keys: tuple[str, ...]
    seeds: int
    says: str


KINDS = {
    "default": Kind(("steps=120",), 20, "the default"),
    "slow": Kind(("lr=2e-4", "steps=120"), 3, "the default at two fifths of its learning rate"),
    "pair": Kind(("agents=2", "steps=120"), 3, "two agents"),
    "adapters": Kind(("learner=adapters", "steps=120"), 3, "adapters on one base"),
    "rules": Kind(("method=comas_rules", "steps=120"), 3, "judges that are rewarded by rules"),
    "labels": Kind(("method=rlvr", "steps=120"), 3, "rewards of the true verifier"),
    "paper": Kind(("preset=paper", "steps=120"), 5, "as published: all-wrong critics"),
    "free": Kind(
        ("kl={}", "credit.normalise=all", "questions=32", "steps=150"), 5, "no KL, small steps"
    ),
    "small": Kind(("questions=12", "lr=2e-3", "steps=60", FAST), 5, "small batches at a high rate"),
    "habit": Kind(("method=evol_rl", "steps=60", FAST), 5, "majority votes: one habit"),
    "self": Kind(("method=srlm", "steps=60", FAST), 5, "an author that judges itself"),
}


def folder_of(out: Path, kind: str, seed: int) -> Path:
    """The run of a kind and seed."""
    return out / kind / f"{seed}"


def work(job: tuple[Path, str, int]) -> None:
    """Train one run."""
    out, kind, seed = job
    folder = folder_of(out, kind, seed)
    names = plugin_names("monitor")
    keys = [f"seed={seed}", "threads=1", f"eval_every={EVERY}", "test_questions=512"]
    keys += [f"monitors={json.dumps(names)}", f"out={folder}", *KINDS[kind].keys]
    script = str(Path(__file__).with_name("learning.py"))
    run_training((folder, [sys.executable, script, "--one", *keys]))


def is_done(folder: Path) -> bool:
    """Whether a run has its last measurement."""
    return (folder / "eval" / "after.json").exists()


# --- what became of a run


@dataclass(frozen=True)
class Outcome:
    """One run: when it fell, and what was alarmed when."""

    kind: str
    seed: int
    fell: int | None
    """The step, counted from 1, after which accuracy was first measured a tenth below its best."""
    alarms: Mapping[str, int]
    """Hypothesis -> the step, counted from 1, of its alarm."""
    watched: Sequence[str]
    """Hypotheses of which anything was seen."""
    best: float
    last: float


def outcome(out: Path, kind: str, seed: int) -> Outcome:
    """Read a run."""
    run = Run.open(folder_of(out, kind, seed))
    before = (run.read_eval("before") or {})["accuracy"]["mean"]
    best = before
    last = before
    fell = None
    watched: dict[str, None] = {}
    for metrics in run.metrics():
        for name, figures in metrics["monitors"].items():
            watched |= {f"{name}.{hypothesis}": None for hypothesis in figures}
        found = metrics.get("validation")
        if not found:
            continue
        last = found["mean"]
        if fell is None and last <= best - FALL:
            fell = metrics["step"] + 1
        best = max(best, last)
    alarms = {alarm["kind"]: alarm["step"] + 1 for alarm in read_alarms(run.path)}
    return Outcome(kind, seed, fell, alarms, list(watched), best, last)


@dataclass(frozen=True)
class Row:
    """A hypothesis over all runs in which it could be tested."""

    hypothesis: str
    collapsed: int
    in_time: int
    """Collapsed runs in which it was alarmed before the fall was measured."""
    leads: list[int]
    """Steps from the alarm to the fall, of every collapsed run with an alarm; negative: too late.
    """
    healthy: int
    false: int
    """Healthy runs in which it was alarmed."""


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row per hypothesis, and one for the default set as a whole."""
    names = sorted({name for one in outcomes for name in one.watched})
    rows = [_row(name, outcomes, [name]) for name in names]
    default = [name for name in names if name.split(".")[0] in DEFAULT]
    return [*rows, _row("any of the default set", outcomes, default)]


DEFAULT = OURS["monitors"]


def _row(title: str, outcomes: Sequence[Outcome], names: Sequence[str]) -> Row:
    could = [one for one in outcomes if set(names) & set(one.watched)]
    leads: list[int] = []
    in_time = 0
    false = 0
    for one in could:
        spoken = [one.alarms[name] for name in names if name in one.alarms]
        if one.fell is None:
            false += bool(spoken)
        elif spoken:
            lead = one.fell - min(spoken)
            leads.append(lead)
            in_time += lead > 0
    collapsed = sum(one.fell is not None for one in could)
    return Row(title, collapsed, in_time, leads, len(could) - collapsed, false)


HEADINGS = (
    *("hypothesis", "collapsed runs alarmed before the fall", "steps before it, median (range)"),
    "healthy runs alarmed",
)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    lead = "-"
    if row.leads:
        middle = statistics.median_low(row.leads)
        lead = f"{middle} ({min(row.leads)} to {max(row.leads)})"
    return [
        row.hypothesis,
        _share(row.in_time, row.collapsed),
        lead,
        _share(row.false, row.healthy),
    ]


def _share(part: int, whole: int) -> str:
    if whole == 0:
        return "-"
    found = wilson(part, whole)
    return f"{part} of {whole} [{found.low:.2f}, {found.high:.2f}]"


# --- the error of the test, by simulation

SIMULATED = 1000
"""Runs per setting."""
SETTINGS = ((1, 0.3), (6, 0.2), (128, 0.3), (512, 0.05))
"""Values per step, and the bound that they lie at."""


def coverage(alpha: float = 0.01, steps: int = 180, seed: int = 1) -> list[dict[str, Any]]:
    """How often a run is alarmed whose values lie exactly at the bound, where errors are most
    frequent.
    """
    rng = np.random.default_rng(seed)
    found = []
    for count, bound in SETTINGS:
        alarms = sum(_is_alarmed(rng, count, bound, alpha, steps) for _ in range(SIMULATED))
        share = wilson(alarms, SIMULATED)
        setting = {"values": count, "bound": bound, "alpha": alpha, "alarms": alarms}
        found.append({**setting, "runs": SIMULATED, "low": share.low, "high": share.high})
    return found


def _is_alarmed(
    rng: np.random.Generator, count: int, bound: float, alpha: float, steps: int
) -> bool:
    evidence = Evidence()
    for _ in range(steps):
        evidence.add([float(value) for value in rng.random(count) < bound], bound)
        if evidence.log >= -math.log(alpha):
            return True
    return False


# --- what watching costs

COST_STEPS = 12
COST_PAIRS = 10


def cost(out: Path) -> dict[str, Any]:
    """Seconds of a step with the default set over those without monitors, in pairs of short runs
    that follow each other.
    """
    ratios: list[float] = []
    for pair in range(COST_PAIRS):
        seconds: dict[str, float] = {}
        for name, names in (("watched", DEFAULT), ("alone", ())):
            folder = out / "cost" / f"{name}-{pair}"
            keys = [f"seed={FIRST_SEED + pair}", "threads=1", f"steps={COST_STEPS}", "eval_every=0"]
            keys += ["test_questions=0", f"monitors={json.dumps(list(names))}", f"out={folder}"]
            script = str(Path(__file__).with_name("learning.py"))
            run_training((folder, [sys.executable, script, "--one", *keys]))
            steps = list(Run.open(folder).metrics())
            # the first steps warm up
            seconds[name] = statistics.median(step["seconds"] for step in steps[2:])
        ratios.append(seconds["watched"] / seconds["alone"])
    return {"pairs": COST_PAIRS, "ratios": ratios, "median": statistics.median(ratios)}


# --- the report


def table_of(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def runs_table(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Per kind: how many fell, from what to what, and how many the default set alarmed."""
    lines: list[list[str]] = []
    for kind in dict.fromkeys(one.kind for one in outcomes):
        own = [one for one in outcomes if one.kind == kind]
        fell = [one.fell for one in own if one.fell is not None]
        alarmed = [one for one in own if _spoken(one)]
        at = f"after step {min(fell)} to {max(fell)}" if fell else "-"
        best = statistics.fmean(one.best for one in own)
        last = statistics.fmean(one.last for one in own)
        lines.append(
            [
                kind,
                KINDS[kind].says,
                f"{len(own)}",
                f"{best:.3f}",
                f"{last:.3f}",
                f"{len(fell)} {at}",
                f"{len(alarmed)}",
            ]
        )
    return lines


def _spoken(one: Outcome) -> bool:
    return any(name.split(".")[0] in DEFAULT for name in one.alarms)


RUN_HEADINGS = ("kind", "", "runs", "best", "last", "fell by a tenth", "alarmed by the default set")


def main() -> None:
    parser = argparse.ArgumentParser(description="Which alarm comes in time?")
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(KINDS))
    parser.add_argument("--report", action="store_true", help="no new runs")
    parser.add_argument("--simulate", action="store_true", help="also the error by simulation")
    parser.add_argument("--cost", action="store_true", help="only what watching costs")
    parser.add_argument("--write", type=Path, help="also write the tables as Markdown")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = set(args.only) - set(KINDS)
    if unknown:
        sys.exit(f"--only: {', '.join(sorted(unknown))}: some of {', '.join(KINDS)}")
    if args.cost:
        print(json.dumps(cost(args.out)))
        return
    jobs = [
        (args.out, kind, FIRST_SEED + place)
        for place in range(max(kind.seeds for kind in KINDS.values()))
        for kind in args.only
        if place < KINDS[kind].seeds
    ]
    if not args.report:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(work, jobs))
    done = [(kind, seed) for _, kind, seed in jobs if is_done(folder_of(args.out, kind, seed))]
    order = list(KINDS)
    done.sort(key=lambda job: (order.index(job[0]), job[1]))
    outcomes = [outcome(args.out, kind, seed) for kind, seed in done]
    rows = rows_of(outcomes)
    parts = [(RUN_HEADINGS, runs_table(outcomes)), (HEADINGS, [cells(row) for row in rows])]
    simulated = coverage() if args.simulate else []
    if simulated:
        headings = ("values a step", "bound", "alpha", "runs", "alarmed")
        lines = [
            [
                f"{one['values']}",
                f"{one['bound']}",
                f"{one['alpha']}",
                f"{one['runs']}",
                _share(one["alarms"], one["runs"]),
            ]
            for one in simulated
        ]
        parts.append((headings, lines))
    console = Console(stderr=args.json, width=200)
    for headings, lines in parts:
        table = Table(*headings)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    missing = len(jobs) - len(done)
    if missing:
        console.print(f"{missing} of {len(jobs)} runs are missing")
    if args.write:
        args.write.write_text("\n".join(table_of(*part) for part in parts), encoding="utf-8")
    if args.json:
        found = {"rows": [asdict(row) for row in rows], "runs": [asdict(o) for o in outcomes]}
        print(json.dumps({**found, "coverage": simulated, "missing": missing, "device": "cpu"}))


if __name__ == "__main__":
    main()
