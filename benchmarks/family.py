"""Every method of the family on its own default team, and what its paper claims: `python
benchmarks/family.py OUT [--jobs 2] [--only mae,azr] [--seeds 101,102] [--report]`.

Each run is a process of its own at the same budget of generated tokens; runs and measures that are
there already are kept, so that an interrupted report goes on where it stopped. Prints a row per
method and a row per claim; `--json` ends with one object, `--write` makes a page, `--picture` the
learning curves. Thresholds were set before any counted run; claims that fail stay in the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import tables
from family_measures import START, learning_curve, measured
from learning import SEEDS, made_with_folders
from learning import run as run_training
from rich.console import Console
from tables import page_lines, show

from comas.stats import Interval, holm, interval_record, mean_interval
from comas.storage.run import Run

BUDGET = 600_000
"""Generated tokens of a system, measurements not counted."""
STEPS = 10_000
"""More than any run takes: tokens end it. Room on the disk is asked for by steps."""
LEVEL = 0.05


@dataclass(frozen=True)
class System:
    """Runs of one seed that share a budget."""

    parts: tuple[tuple[str, ...], ...]
    """The key=value pairs of each run."""
    paper: str = ""
    """What its paper claims; none of those that only claims need."""
    measure: str = "accuracy"
    """What its row shows before and after."""


def _alone(name: str, paper: str, measure: str = "accuracy") -> System:
    return System(((f"method={name}",),), paper, measure)


VOTERS = [f"agents.a{i}={{base='tiny-vote-{i}'}}" for i in range(4)]
FROZEN_GENERATOR = (
    "method=spc",
    "agents.solver={roles=['solution'], frozen=true}",
    "agents.generator={roles=['sabotage'], frozen=true}",
    "agents.critic={roles=['evaluation']}",
    "agents.past_critic={policy='critic', lag=20, roles=['evaluation']}",
)
FAMILY = {
    "comas": _alone("comas", "agents improve by discussing, without labels or a reward model"),
    "ttrl": _alone("ttrl", "majority votes are labels enough to learn from"),
    "rlvr": _alone("rlvr", "a true verifier teaches (the supervised bound)"),
    "rlccf": _alone("rlccf", "several models vote better labels than one alone"),
    "evol_rl": _alone("evol_rl", "novelty keeps the variety that majority votes lose"),
    "sppo": _alone("sppo", "self-play against itself wins against its start"),
    "spo": _alone("spo", "win shares among its own answers are a reward"),
    "srlm": _alone("srlm", "an author improves by judging its own answers"),
    "mae": _alone("mae", "proposer, solver and judge improve from zero questions"),
    "azr": _alone("azr", "proposer and solver improve from zero questions, by rules"),
    "r_zero": _alone("r_zero", "a challenger keeps to the frontier of a solver, who improves"),
    "spc": _alone("spc", "a critic improves by playing against a sneaky generator", "critic"),
    "rise": _alone("rise", "verifying one's own work is learnt beside solving"),
    "maporl": _alone("maporl", "trained debaters gain more from debating"),
    "eva": _alone("eva", "evolving the informative prompts teaches more"),
    "knowrl": _alone("knowrl", "agreeing with oneself teaches what one can solve", "assessment"),
}
"""Method -> its runs: the sixteen rows of the table."""


def _half_taught(method: str, *keys: str) -> System:
    """The game of CoMAS among judges who are right at about .70, and how they judge after it."""
    return System(((f"method={method}", "base=tiny-critic", *keys),), measure="critic")


JUDGES = {
    "comas half-taught": _half_taught("comas"),
    "comas paper half-taught": _half_taught("comas", "preset=paper"),
    "comas_agree half-taught": _half_taught("comas_agree"),
    "comas_rules half-taught": _half_taught("comas_rules"),
}
"""Ways to reward judges, beside the default, which holds them, and the paper's, which does not."""
BESIDE = {
    "ttrl of each voter": System(tuple(("method=ttrl", f"{a}") for a in VOTERS)),
    "ttrl of one voter": System((("method=ttrl", VOTERS[0]),)),
    "spc, frozen generator": System((FROZEN_GENERATOR,)),
}
"""Further systems that claims compare with; parts share the budget."""
ROWS = FAMILY | JUDGES
SYSTEMS = ROWS | BESIDE


class Figure(NamedTuple):
    """A measure of a system."""

    system: str
    measure: str


@dataclass(frozen=True)
class Claim:
    """That left minus right, over seeds, is at least `threshold` in the mean, and above `beyond` by
    the corrected test.
    """

    method: str
    says: str
    left: Figure
    right: Figure | None
    """None: nothing is subtracted."""
    threshold: float
    beyond: float = 0.0
    exact: bool = False
    """Left has to be the threshold in every run: no test."""


def _gain(
    method: str,
    says: str,
    measure: str = "accuracy",
    threshold: float = 0.0,
    beyond: float = 0.0,
) -> Claim:
    """A claim on what a measure is after training minus before."""
    start = Figure(method, measure + START)
    return Claim(method, says, Figure(method, measure), start, threshold, beyond)


def _versus(
    left: Figure, right: str, says: str, threshold: float = 0.0, beyond: float = 0.0
) -> Claim:
    """A claim on the same measure of two systems."""
    return Claim(left.system, says, left, Figure(right, left.measure), threshold, beyond)


def _none_posed(method: str) -> Claim:
    posed = Figure(method, "held-out posed")
    return Claim(method, "no held-out question is posed", posed, None, 0.0, exact=True)


def _judge_claims(method: str) -> list[Claim]:
    """That a way to reward judges teaches them, and better than the default holds them."""
    name = f"{method} half-taught"
    held = "comas half-taught"
    return [
        _gain(name, "judges' balanced accuracy gains .05", "critic", 0.05),
        _versus(Figure(name, "critic"), held, "judges end .05 above CoMAS's own", 0.05),
        _versus(
            Figure(name, "accuracy"),
            held,
            "solvers end no more than .02 below CoMAS's own",
            -0.02,
            -0.02,
        ),
    ]


CLAIMS = [
    _gain("comas", "it learns"),
    _gain("ttrl", "it learns"),
    Claim(
        "ttrl",
        "it collapses: pass@16 of one model falls",
        Figure("ttrl of one voter", "pass@16" + START),
        Figure("ttrl of one voter", "pass@16"),
        0.0,
    ),
    _gain("rlvr", "it learns"),
    _versus(
        Figure("rlccf", "accuracy"),
        "ttrl of each voter",
        "models that vote together end .15 above each model's own TTRL",
        0.15,
    ),
    _versus(Figure("evol_rl", "pass@16"), "ttrl of one voter", "pass@16 is .10 above TTRL's", 0.10),
    _versus(
        Figure("evol_rl", "pass@1"),
        "ttrl of one voter",
        "pass@1 is not below TTRL's by more than .02",
        -0.02,
        -0.02,
    ),
    Claim(
        "sppo",
        "it wins against its start at .70, by its judge",
        Figure("sppo", "win rate"),
        None,
        0.70,
        0.50,
    ),
    _gain("spo", "it learns"),
    _gain("srlm", "it learns"),
    _gain("mae", "it gains .15 from zero questions", threshold=0.15, beyond=0.15),
    _none_posed("mae"),
    _gain("azr", "it gains .30 from zero questions", threshold=0.30, beyond=0.30),
    _none_posed("azr"),
    _gain("r_zero", "the solver learns"),
    Claim(
        "r_zero",
        "questions stay at the frontier: the last quarter is not .10 below the first",
        Figure("r_zero", "frontier, last quarter"),
        Figure("r_zero", "frontier, first quarter"),
        -0.10,
        -0.10,
    ),
    _none_posed("r_zero"),
    _gain("spc", "the critic's balanced accuracy gains .10", "critic", 0.10),
    _versus(
        Figure("spc", "critic"),
        "spc, frozen generator",
        "a critic of live generators ends above one of frozen generators",
    ),
    _gain("rise", "the judge's balanced accuracy gains .05", "critic", 0.05),
    _gain("maporl", "a trained debate gains more from first to last turn", "debate gain"),
    _gain("eva", "it learns"),
    _none_posed("eva"),
    _gain("knowrl", "it knows better what can be solved", "assessment"),
    _none_posed("knowrl"),
    *_judge_claims("comas_rules"),
    *_judge_claims("comas_agree"),
]
"""What each system has to show, fixed before the counted runs."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    found: Interval | None
    """Over seeds; None where a run is missing."""
    p: float | None
    """One-sided, of a mean that is not above `beyond`, corrected after Holm."""
    holds: bool | None
    """None: not known yet, of one seed for instance."""


Values = dict[int, dict[Figure, float]]
"""Seed -> figures."""


def differences(claim: Claim, values: Values) -> list[float]:
    """Left minus right of each seed that has both, in the order of seeds."""
    found = []
    for _, figures in sorted(values.items()):
        left = figures.get(claim.left, math.nan)
        right = 0.0 if claim.right is None else figures.get(claim.right, math.nan)
        if not math.isnan(left - right):
            found.append(left - right)
    return found


def above(found: Sequence[float], beyond: float) -> float:
    """One-sided p of Student's t test that the mean is above `beyond`; where all values are equal,
    the chance that so many fair signs agree.
    """
    if len(found) < 2:
        return 1.0
    if max(found) - min(found) < 1e-12:
        return 0.5 ** len(found) if found[0] > beyond else 1.0
    from scipy import stats

    return float(stats.ttest_1samp(found, beyond, alternative="greater").pvalue)


def judge_claims(claims: Sequence[Claim], values: Values) -> list[Verdict]:
    """Each claim's verdict; those that are tested are corrected for their number, seeds that are
    missing or not.
    """
    seen = [differences(claim, values) for claim in claims]
    tested = [i for i, claim in enumerate(claims) if not claim.exact]
    raw = [above(seen[i], claims[i].beyond) for i in tested]
    corrected = dict(zip(tested, holm(raw), strict=True))
    verdicts = []
    for i, claim in enumerate(claims):
        if not seen[i]:
            verdicts.append(Verdict(claim, None, None, None))
            continue
        found = mean_interval(seen[i])
        if claim.exact:
            holds = all(value == claim.threshold for value in seen[i])
            verdicts.append(Verdict(claim, found, None, holds))
        elif found.n < 2:
            verdicts.append(Verdict(claim, found, None, None))
        else:
            holds = found.mean >= claim.threshold and corrected[i] < LEVEL
            verdicts.append(Verdict(claim, found, corrected[i], holds))
    return verdicts


def agrees(method: str, verdicts: Sequence[Verdict]) -> str:
    """Whether the small world agrees with the paper: all claims of the method hold, some, none."""
    own = [verdict for verdict in verdicts if verdict.claim.method == method]
    tested = [verdict.holds for verdict in own if not verdict.claim.exact]
    if None in tested or not tested:
        return "-"
    if not any(tested):
        return "no"
    return "yes" if all(verdict.holds for verdict in own) else "in part"


# --- runs


def folders(out: Path, name: str, seed: int) -> list[Path]:
    """The run of each part of a system."""
    parts = SYSTEMS[name].parts
    place = out / name.replace(",", "").replace(" ", "_")
    return [place / (f"{seed}" if len(parts) == 1 else f"{seed}-{i}") for i in range(len(parts))]


def commands(out: Path, name: str, seed: int, tokens: int) -> list[tuple[Path, list[str]]]:
    """Folder and command of every run of a system and seed."""
    parts = SYSTEMS[name].parts
    found = []
    for folder, keys in zip(folders(out, name, seed), parts, strict=True):
        fixed = [f"seed={seed}", f"steps={STEPS}", f"tokens={tokens // len(parts)}", "threads=1"]
        script = str(Path(__file__).with_name("learning.py"))
        command = [sys.executable, script, "--one", *fixed, f"out={folder}", *keys]
        found.append((folder, command))
    return found


def is_done(folder: Path) -> bool:
    """Whether a run has its last measurement."""
    return (folder / "eval" / "after.json").exists()


def systems_of(only: Sequence[str]) -> list[str]:
    """These methods, and the systems that their claims compare them with."""
    figures = [f for c in CLAIMS if c.method in only for f in (c.left, c.right) if f is not None]
    return list(dict.fromkeys([*only, *(figure.system for figure in figures)]))


def measures_of(name: str) -> list[str]:
    """All measures of a system that its row and the claims need."""
    of_claims = [f for claim in CLAIMS for f in (claim.left, claim.right) if f is not None]
    own = SYSTEMS[name].measure
    needed = ["accuracy", "accuracy" + START, own, own + START]
    needed += [figure.measure for figure in of_claims if figure.system == name]
    return list(dict.fromkeys(needed))


def work(job: tuple[str, Path, list[str]]) -> None:
    """Train one run and take its measures, each in a process of its own."""
    name, folder, command = job
    run_training((folder, command))
    if not is_done(folder):
        return
    measuring = [sys.executable, __file__, "--measure", str(folder), *measures_of(name)]
    with (folder.parent / f"{folder.name}.measures.log").open("w") as log:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(measuring, stdout=log, stderr=subprocess.STDOUT, env=env, check=False)
    if done.returncode != 0:
        print(f"FAILED to measure {folder}", file=sys.stderr, flush=True)


# --- the report


def collect(out: Path, names: Sequence[str], seeds: Sequence[int]) -> Values:
    """All figures of finished systems; means over the parts of a system."""
    values: Values = {}
    for seed in seeds:
        for name in names:
            parts = folders(out, name, seed)
            if not all(is_done(folder) for folder in parts):
                continue
            for measure in measures_of(name):
                each = [measured(folder, measure) for folder in parts]
                figure = Figure(name, measure)
                values.setdefault(seed, {})[figure] = sum(each) / len(each)
    return values


@dataclass(frozen=True)
class Row:
    """A method over its seeds."""

    method: str
    seeds: int
    before: float
    after: float
    gain: Interval
    tokens: float
    """Means over seeds."""
    seconds: float
    measure: str
    paper: str
    agrees: str


def rows_of(
    out: Path, only: Sequence[str], values: Values, verdicts: Sequence[Verdict]
) -> list[Row]:
    """A row per method with a finished seed."""
    rows = []
    for name in only:
        system = SYSTEMS[name]
        last = Figure(name, system.measure)
        first = Figure(name, system.measure + START)
        seeds = [seed for seed, figures in sorted(values.items()) if last in figures]
        if not seeds:
            continue
        befores = [values[seed][first] for seed in seeds]
        afters = [values[seed][last] for seed in seeds]
        gains = [after - before for after, before in zip(afters, befores, strict=True)]
        costs = [cost_of(folders(out, name, seed)) for seed in seeds]
        rows.append(
            Row(
                name,
                len(seeds),
                _mean(befores),
                _mean(afters),
                mean_interval(gains),
                _mean([tokens for tokens, _ in costs]),
                _mean([seconds for _, seconds in costs]),
                system.measure,
                system.paper,
                agrees(name, verdicts),
            )
        )
    return rows


def cost_of(parts: Sequence[Path]) -> tuple[float, float]:
    """Generated tokens and seconds of all steps of these runs."""
    metrics = [list(Run.open(folder).metrics()) for folder in parts]
    seconds = math.fsum(step["seconds"] for steps in metrics for step in steps)
    return float(sum(steps[-1]["tokens"] for steps in metrics if steps)), seconds


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def curves(
    out: Path, only: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[tuple[list[float], list[float]]]]:
    """Panel -> the learning curve of each finished seed."""
    found = {}
    for name in only:
        measure = SYSTEMS[name].measure
        runs = [folder for seed in seeds for folder in folders(out, name, seed) if is_done(folder)]
        title = name if measure == "accuracy" else f"{name} ({measure})"
        found[title] = [learning_curve(folder, measure) for folder in runs]
    return found


HEADINGS = (
    *("method", "measure", "before", "after", "gain, 95 %", "tokens", "seconds", "seeds"),
    *("the paper", "agrees"),
)
CLAIM_HEADINGS = ("method", "claim", "found, 95 %", "at least", "above", "p (Holm)", "holds")


def cells(row: Row) -> list[str]:
    """A row of the table of methods."""
    figures = [f"{row.before:.3f}", f"{row.after:.3f}", show(row.gain)]
    costs = [f"{row.tokens / 1e6:.2f}M", f"{row.seconds:.0f}", str(row.seeds)]
    return [row.method, row.measure, *figures, *costs, row.paper, row.agrees]


def on_page(row: Row) -> list[str]:
    """The same without costs."""
    found = cells(row)
    return found[:5] + found[8:]


def claim_cells(verdict: Verdict) -> list[str]:
    """A row of the table of claims."""
    claim = verdict.claim
    found = "-" if verdict.found is None else show(verdict.found)
    holds = tables.YES_OR_NO[verdict.holds]
    p = "-" if verdict.p is None else f"{verdict.p:.3f}"
    beyond = "-" if claim.exact else f"{claim.beyond:+.2f}"
    return [claim.method, claim.says, found, f"{claim.threshold:+.2f}", beyond, p, holds]


def markdown(rows: Sequence[Row], verdicts: Sequence[Verdict], made_with: str) -> str:
    """The report as a page."""
    page = [
        "# The family on the small world",
        "",
        "This page has each method's measurement and the verdict on each claim. Conclusions:"
        " [Results](results-methods.md#the-family-on-the-same-world).",
        "",
        "Made by `python benchmarks/family.py OUT --write PAGE`: each method's default team,"
        f" {BUDGET:,} generated tokens, {max((row.seeds for row in rows), default=0)} seeds, paired"
        " differences. The mean has to reach `at least` and to exceed `above` in a one-sided test"
        " (Holm).",
        "",
        f"Made with {made_with}.",
        "",
        *page_lines([*HEADINGS[:5], *HEADINGS[8:]], [on_page(row) for row in rows]),
        "",
        *page_lines(CLAIM_HEADINGS, [claim_cells(v) for v in verdicts if not kept_to(v)]),
        "",
        *sorted({f"Exact claims that hold: {_of(verdicts)}." for v in verdicts if kept_to(v)}),
    ]
    return "\n".join(page) + "\n"


def kept_to(verdict: Verdict) -> bool:
    """Whether this is a claim without exceptions, and there was none."""
    return verdict.claim.exact and bool(verdict.holds)


def _of(verdicts: Sequence[Verdict]) -> str:
    held = [v.claim for v in verdicts if kept_to(v)]
    by_words = {c.says: [d.method for d in held if d.says == c.says] for c in held}
    return "; ".join(f"{says} ({', '.join(methods)})" for says, methods in by_words.items())


def print_tables(console: Console, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
    """Both tables on a terminal."""
    tables.show_table(console, HEADINGS, [cells(row) for row in rows])
    tables.show_table(console, CLAIM_HEADINGS, [claim_cells(verdict) for verdict in verdicts])


def as_json(rows: Sequence[Row], verdicts: Sequence[Verdict], values: Values) -> str:
    """The report as JSON."""
    claims = [
        {**asdict(verdict), "found": verdict.found and interval_record(verdict.found)}
        for verdict in verdicts
    ]
    methods = [{**asdict(row), "gain": row.gain and interval_record(row.gain)} for row in rows]
    figures = [
        {"seed": seed, **figure._asdict(), "value": None if math.isnan(value) else value}
        for seed, of_seed in values.items()
        for figure, value in of_seed.items()
    ]
    return json.dumps({"rows": methods, "claims": claims, "figures": figures}, allow_nan=False)


def parser() -> argparse.ArgumentParser:
    found = tables.parser(__doc__, SEEDS)
    found.add_argument("--only", type=lambda s: s.split(","), default=list(ROWS))
    found.add_argument("--tokens", type=int, default=BUDGET, help="per system and seed")
    found.add_argument("--write", type=Path, help="also write the report as Markdown")
    found.add_argument("--picture", type=Path, help="also draw all learning curves, as SVG")
    found.add_argument("--json", action="store_true")
    return found


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        for name in sys.argv[3:]:
            print(name, measured(Path(sys.argv[2]), name), flush=True)
        return
    args = parser().parse_args()
    unknown = set(args.only) - set(ROWS)
    if unknown:
        sys.exit(f"--only: {', '.join(sorted(unknown))}: some of {', '.join(ROWS)}")
    names = systems_of(args.only)
    if not args.report:
        jobs = [
            (name, folder, command)
            for seed in args.seeds
            for name in names
            for folder, command in commands(args.out, name, seed, args.tokens)
        ]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(work, jobs))
    values = collect(args.out, names, args.seeds)
    # corrected for all claims, also where only some of them are shown
    verdicts = [v for v in judge_claims(CLAIMS, values) if v.claim.method in args.only]
    rows = rows_of(args.out, args.only, values, verdicts)
    done = [f for n in names for s in args.seeds for f in folders(args.out, n, s) if is_done(f)]
    if args.write:
        args.write.write_text(markdown(rows, verdicts, made_with_folders(done)), encoding="utf-8")
    if args.picture:
        from figures import family

        family(curves(args.out, args.only, args.seeds), args.picture)
    print_tables(Console(stderr=args.json, width=200), rows, verdicts)
    if args.json:
        print(as_json(rows, verdicts, values))


if __name__ == "__main__":
    main()
