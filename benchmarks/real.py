"""What a pretrained model learns on a laptop: `python benchmarks/real.py OUT [--only rlvr,ttrl]
[--seeds 201,202,203] [--jobs 1] [--report] [--json] [--write PAGE]`.

SmolLM2-135M-Instruct on generated arithmetic (`task=sums base=smollm2`), each system at the same
budget of generated tokens, measured on the same held-out questions before and after. Systems whose
agents judge begin from an adapter that was taught to judge, by supervised steps on demonstrations
which this script makes from the model's own samples: `format` teaches how a judge writes, with
verdicts from the model's own second try, and no label; `check` teaches verdicts of the verifier.
Finished runs are kept, so that an interrupted report goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from learning import made_with_folders
from learning import run as run_training
from rich.console import Console
from rich.table import Table

from comas.evaluation.systems import team_of
from comas.game.play import play_all
from comas.stats import Interval, holm, mean_interval
from comas.storage import files
from comas.storage.run import Run
from comas.tasks.sums import task as sums
from comas.team.build import Team, run_sync
from comas.types import Question

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import judges  # an example, used as it stands

BASE = "smollm2"
TASK = "sums"
SEEDS = (201, 202, 203)
"""Fresh: difficulty and rates were chosen on seeds below 100."""
BUDGET = 20_000
"""Generated tokens of a run, measurements not counted."""
WARM_STEPS = 12
"""Supervised steps of 32 demonstrations."""
STEPS = 200
"""More than any run takes: tokens end it. Room on the disk is asked for by steps."""
LEVEL = 0.05
_teaching = Lock()
"""Systems share warm starts: one is made at a time."""


@dataclass(frozen=True)
class System:
    """A training run, and what its agents were taught before."""

    keys: tuple[str, ...]
    says: str
    """In a few words, for the table."""
    warm: tuple[str, ...] = ()
    """Kinds of warm starts, one per agent where there are several; none: the model as it is."""


TWO = ("agents=2", "questions=48")
SYSTEMS = {
    "rlvr": System(("method=rlvr", "agents=1", "questions=24"), "true verifier: the bound"),
    "ttrl": System(("method=ttrl", "agents=1", "questions=24", "options.votes=8"), "majority vote"),
    "evol_rl": System(
        (f"hosts.home.base={BASE}", "method=evol_rl", "questions=24", "options.votes=8"),
        "majority and novelty",
    ),
    "comas": System(("method=comas", "preset=stable", *TWO), "CoMAS, judges taught nothing"),
    "comas format": System(
        ("method=comas", "preset=stable", *TWO), "CoMAS, judges taught the format", ("format",)
    ),
    "comas check": System(
        ("method=comas", "preset=stable", *TWO), "CoMAS, judges taught to check", ("check",)
    ),
    "twins check": System(
        ("method=comas", "preset=stable", "questions=48"),
        "CoMAS, two warm starts judge each other",
        ("check", "check-2"),
    ),
}


@dataclass(frozen=True)
class Claim:
    """That the gain of a system is at least `threshold`, and above `beyond` by a corrected test."""

    system: str
    says: str
    threshold: float
    beyond: float


CLAIMS = [
    Claim("rlvr", "it gains .45 (.35 to .80)", 0.45, 0.0),
    Claim("ttrl", "it learns without a label", 0.0, 0.0),
    Claim("evol_rl", "it learns without a label", 0.0, 0.0),
    Claim("comas format", "it gains .15", 0.15, 0.0),
    Claim("comas check", "it gains .15", 0.15, 0.0),
    Claim("twins check", "it gains .15", 0.15, 0.0),
]
"""Fixed before the counted runs."""


# --- warm starts


def demonstrate(file: Path, kind: str, seed: int) -> None:
    """Write demonstrations of criticism and scores, as many of right work as of wrong.

    A critic names the answer that it gets: the model's own at another try (`format`), or the true
    one (`check`).
    """
    keys: dict[str, Any] = {"options.votes": judges.SAMPLES, "hosts.home.base": BASE, "seed": seed}
    with closing(team_of(task=TASK, method="ttrl", agents=1, lr=1e-5, **keys)) as team:
        questions = team.task.load("train", limit=judges.QUESTIONS, seed=seed)
        rng = random.Random(seed)
        make = judges.demonstrations if kind == "format" else checked
        rows = make(team, questions, rng)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.replace(file, "".join(json.dumps(row) + "\n" for row in rows))


def checked(team: Team, questions: Sequence[Question], rng: random.Random) -> list[dict[str, str]]:
    """What judges say who know the true answer, of the model's own work."""
    task = team.task
    of_kind: dict[bool, list[list[dict[str, str]]]] = {True: [], False: []}
    for episode in run_sync(play_all(team.context(keep=False), questions, "judges")):
        for work in episode.turns:
            if work.finished and task.extract(episode.question, work.text) is not None:
                truth = str(episode.question.answer)
                right, rows = judges.judgements(task, episode.question, work, truth)
                of_kind[right].append(rows)
    count = min(judges.ROWS // 4, *map(len, of_kind.values()))
    chosen = [rows for kind in of_kind.values() for rows in rng.sample(kind, count)]
    rng.shuffle(chosen)
    return [row for rows in chosen for row in rows]


def warm_start(out: Path, kind: str, seed: int) -> Path:
    """The adapter of judges of this kind; taught where it is not there yet."""
    folder = out / "warm" / kind / f"{seed}"
    file = folder.parent / f"{seed}.jsonl"
    if not file.exists():
        demonstrate(file, kind.partition("-")[0], seed + 1000 * kind.endswith("-2"))
    if not is_whole(folder, WARM_STEPS):
        keys = ["method=sft", "task=demonstrations", f"data={file}", f"hosts.home.base={BASE}"]
        keys += ["agents=1", "lr=3e-4", f"steps={WARM_STEPS}", "questions=32", f"seed={seed}"]
        run_training((folder, _command([*keys, f"out={folder}"])))
    return folder / "checkpoints" / f"step-{WARM_STEPS}" / "a0"


def is_whole(folder: Path, steps: int) -> bool:
    """Whether a run without measurements has all its steps."""
    return folder.exists() and len(list(Run.open(folder).metrics())) == steps


def _command(keys: Sequence[str]) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("learning.py")), "--one", *keys]


# --- runs


def work(job: tuple[Path, str, int, int]) -> None:
    """Train one system at one seed."""
    out, name, seed, tokens = job
    system = SYSTEMS[name]
    with _teaching:
        bases = [warm_start(out, kind, seed) for kind in system.warm]
    keys = [f"task={TASK}", *system.keys, f"seed={seed}", f"steps={STEPS}", f"tokens={tokens}"]
    if len(bases) > 1:
        keys += [f"agents.a{i}={{host='home', base='{base}'}}" for i, base in enumerate(bases)]
        bases = bases[:1]
    keys += [f"hosts.home.base={base}" for base in [*bases, BASE][:1]]
    folder = folder_of(out, name, seed)
    run_training((folder, _command([*dict.fromkeys(keys), f"out={folder}"])))


def folder_of(out: Path, name: str, seed: int) -> Path:
    """The run of a system and seed."""
    return out / name.replace(" ", "_") / f"{seed}"


def is_done(folder: Path) -> bool:
    """Whether a run has its last measurement."""
    return (folder / "eval" / "after.json").exists()


# --- the report

GETS = re.compile(r"\bI get (-?[\d,.]*\d)")
"""What a critic says that it gets."""


def accuracy(folder: Path, stage: str) -> float:
    """The share of right single answers, `before` or `after`, over all agents."""
    record = Run.open(folder).read_eval(stage) or {"answers": []}
    known = [a["verdict"] == "right" for a in record["answers"] if a["verdict"] != "failed"]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Judging:
    """How the critics of a few steps judge, against the labels that they never saw."""

    own: float
    """The share of their own answers that are right; not a number where they name none."""
    wrong: float
    """The share of criticisms that end in `wrong.`"""
    balanced: float
    """The mean of the shares of right work and of wrong work that is called so."""


def judging(folder: Path, *, last: bool) -> Judging:
    """Of the first or the last three steps."""
    run = Run.open(folder)
    steps = [number for number, _ in enumerate(run.metrics())]
    chosen = steps[-3:] if last else steps[:3]
    own: list[bool] = []
    wrong: list[bool] = []
    called: dict[bool, list[bool]] = {True: [], False: []}
    for episode in [episode for step in chosen for episode in run.episodes(step)]:
        question = Question(**episode["question"])
        turns = {turn["id"]: turn for turn in episode["turns"]}
        for turn in episode["turns"]:
            if turn["role"] != "evaluation":
                continue
            work_right = sums.verify(question, turns[turn["about"]]["text"]) == "right"
            says_wrong = turn["text"].rstrip(" .").endswith("wrong")
            wrong.append(says_wrong)
            called[work_right].append(says_wrong is not work_right)
            if match := GETS.search(turn["text"]):
                own.append(sums.verify(question, match[1]) == "right")
    shares = [_share(found) for found in called.values()]
    return Judging(_share(own), _share(wrong), sum(shares) / 2)


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else math.nan


@dataclass(frozen=True)
class Row:
    """A system over its seeds."""

    system: str
    says: str
    seeds: list[int]
    before: list[float]
    after: list[float]
    gain: Interval
    tokens: float
    """Means over seeds."""
    steps: float
    seconds: float
    first: Judging | None
    """None where nobody criticises."""
    last: Judging | None
    holds: str


def rows_of(out: Path, only: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """A row per system with a finished run."""
    found = []
    for name in only:
        done = [seed for seed in seeds if is_done(folder_of(out, name, seed))]
        if done:
            found.append(_row(out, name, done))
    return _with_verdicts(found)


def _row(out: Path, name: str, seeds: list[int]) -> Row:
    folders = [folder_of(out, name, seed) for seed in seeds]
    before = [accuracy(folder, "before") for folder in folders]
    after = [accuracy(folder, "after") for folder in folders]
    gains = [last - first for first, last in zip(before, after, strict=True)]
    metrics = [list(Run.open(folder).metrics()) for folder in folders]
    tokens = [steps[-1]["tokens"] for steps in metrics]
    seconds = [math.fsum(step["seconds"] for step in steps) for steps in metrics]
    first = last = None
    if "comas" in name or "check" in name:
        first = _mean_judging([judging(folder, last=False) for folder in folders])
        last = _mean_judging([judging(folder, last=True) for folder in folders])
    return Row(
        name,
        SYSTEMS[name].says,
        seeds,
        before,
        after,
        mean_interval(gains),
        _mean(tokens),
        _mean([len(steps) for steps in metrics]),
        _mean(seconds),
        first,
        last,
        "-",
    )


def _mean_judging(found: Sequence[Judging]) -> Judging:
    return Judging(
        _mean([one.own for one in found]),
        _mean([one.wrong for one in found]),
        _mean([one.balanced for one in found]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _with_verdicts(rows: Sequence[Row]) -> list[Row]:
    """Rows with what became of their claims, corrected for all claims (Holm)."""
    by_name = {row.system: row for row in rows}
    raw = [_p(by_name.get(claim.system), claim.beyond) for claim in CLAIMS]
    holds = dict.fromkeys(by_name, "-")
    for claim, p in zip(CLAIMS, holm(raw), strict=True):
        row = by_name.get(claim.system)
        if row is not None and len(row.seeds) > 1:
            true = row.gain.mean >= claim.threshold and p < LEVEL
            holds[row.system] = f"{claim.says}: {'yes' if true else 'no'} (p {p:.3f})"
    return [Row(**{**row.__dict__, "holds": holds[row.system]}) for row in rows]


def _p(row: Row | None, beyond: float) -> float:
    """One-sided p of Student's t test over seeds."""
    if row is None or len(row.seeds) < 2:
        return 1.0
    from scipy import stats

    gains = [last - first for first, last in zip(row.before, row.after, strict=True)]
    return float(stats.ttest_1samp(gains, beyond, alternative="greater").pvalue)


HEADINGS = (
    *("system", "", "before", "after, each seed", "gain, 95 %", "tokens", "steps", "minutes"),
    *("critics' own answers right", "say wrong", "balanced accuracy", "claim"),
)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    after = " ".join(f"{value:.3f}" for value in row.after)
    gain = f"{row.gain.mean:+.3f}"
    if row.gain.n > 1:
        gain += f" [{row.gain.low:+.3f}, {row.gain.high:+.3f}]"
    judged = ["", "", ""]
    if row.first is not None and row.last is not None:
        judged = [
            f"{row.first.own:.2f} to {row.last.own:.2f}",
            f"{row.first.wrong:.2f} to {row.last.wrong:.2f}",
            f"{row.first.balanced:.2f} to {row.last.balanced:.2f}",
        ]
    costs = [f"{row.tokens:,.0f}", f"{row.steps:.0f}", f"{row.seconds / 60:.1f}"]
    figures = [f"{_mean(row.before):.3f}", after, gain]
    return [row.system, row.says, *figures, *costs, *judged, row.holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="memory: some 4 GB each")
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(SYSTEMS))
    parser.add_argument(
        "--seeds", type=lambda s: [int(x) for x in s.split(",")], default=list(SEEDS)
    )
    parser.add_argument("--tokens", type=int, default=BUDGET, help="per run")
    parser.add_argument("--report", action="store_true", help="no new runs")
    parser.add_argument("--write", type=Path, help="also write the table as Markdown")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = set(args.only) - set(SYSTEMS)
    if unknown:
        sys.exit(f"--only: {', '.join(sorted(unknown))}: some of {', '.join(SYSTEMS)}")
    if not args.report:
        jobs = [(args.out, name, seed, args.tokens) for seed in args.seeds for name in args.only]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(work, jobs))
    rows = rows_of(args.out, args.only, args.seeds)
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*cells(row))
    Console(stderr=args.json, width=240).print(table)
    if args.write:
        done = [folder_of(args.out, row.system, seed) for row in rows for seed in row.seeds]
        lines = [f"| {' | '.join(part)} |" for part in (HEADINGS, *map(cells, rows))]
        lines.insert(1, "|" + "---|" * len(HEADINGS))
        page = "\n".join(lines) + f"\n\nMade with {made_with_folders(done)}.\n"
        args.write.write_text(page, encoding="utf-8")
    if args.json:
        print(json.dumps([asdict(row) for row in rows], default=list))


if __name__ == "__main__":
    main()
