"""How long the first look at a large run takes: `python benchmarks/view.py [--gigabytes 1]`.

Writes a run of that size into a temporary folder, whose discussions are those of a game of CoMAS on
long texts, serves it in a process of its own, and asks as the page does: the page, the run's facts
and figures, a step's list, a discussion. Prints seconds and the server's memory, and what a file
(`--html`) takes. Leaves out: the browser.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from comas.storage.run import Run
from comas.types import Episode, Question, Turn

DISCUSSIONS = 128
"""Of a step."""
WORDS = "Let x be the number of apples in the first basket, so that the second has twice as many. "
COMAS = [sys.executable, "-m", "comas"]


def written(folder: Path, size: float) -> Run:
    """A run of about `size` bytes."""
    config = {
        "method": "comas",
        "task": "gsm8k",
        "steps": 10_000,
        "seed": 0,
        "agents": {},
        "hosts": {"home": {}},
    }
    run = Run.create(config, str(folder))
    episodes = [_discussion(place) for place in range(DISCUSSIONS)]
    figures: dict[str, Any] = dict.fromkeys(("solution", "evaluation", "scoring"), 0.5)
    so_far = 0
    step = 0
    while so_far < size:
        line = {"step": step, "tokens": 10**5 * step, "seconds": 60.0, "rewards": figures}
        run.write_step({**line, "kl": figures, "lengths": figures, "notes": []}, episodes)
        so_far += (run.path / "episodes" / f"{step:06d}.jsonl").stat().st_size
        step += 1
    return run


def _discussion(place: int) -> Episode:
    question = Question(id=f"q{place}", prompt=WORDS * 3, answer="12")
    text = WORDS * 20
    info = {"readable": True, "right": place % 2 == 0}
    turns = [
        Turn("s", "a0", "home/a0", "solution", WORDS * 6, text, True, 1, reward=1.0, info=info),
        Turn("e", "a1", "home/a1", "evaluation", text, text, True, 1, "s", reward=0.0),
        Turn("j", "a2", "home/a2", "scoring", text, "<score>3</score>", True, 1, "e", reward=0.0),
    ]
    return Episode(f"0/q{place}/0", question, turns, text)


def timed(url: str) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - began, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = written(Path(scratch) / "run", args.gigabytes * 1e9)
        steps = sum(1 for _ in run.metrics())
        rows = measured(run, steps)
        rows.append(exported(run, Path(scratch) / "run.html"))
    table = Table("what", "seconds", "MB")
    for what, seconds, size in rows:
        table.add_row(what, f"{seconds:.2f}", f"{size / 1e6:.2f}")
    title = f"a run of {args.gigabytes:g} GB, {steps} steps of {DISCUSSIONS} discussions"
    Console(stderr=args.json).print(title, table)
    if args.json:
        print(json.dumps([{"what": w, "seconds": s, "bytes": b} for w, s, b in rows]))


def measured(run: Run, steps: int) -> list[tuple[str, float, float]]:
    """What is asked, how long it takes, and how many bytes come."""
    began = time.perf_counter()
    command = [*COMAS, "view", str(run.path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        rows: list[tuple[str, float, float]] = [("start", time.perf_counter() - began, 0)]
        for what, names in {
            "first view": ("", "data/folders", "data/0/run", "data/0/steps/0"),
            "a step's list": (f"data/0/step/{steps // 2}",),
            "a discussion": (f"data/0/step/{steps // 2}/{DISCUSSIONS // 2}",),
        }.items():
            parts = [timed(url + name) for name in names]
            rows.append((what, sum(s for s, _ in parts), sum(b for _, b in parts)))
        for step in range(0, steps, max(1, steps // 100)):  # as somebody who looks around
            timed(f"{url}data/0/step/{step}")
        status = Path(f"/proc/{server.pid}/status")
        if status.exists():
            peak = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
            rows.append(("memory of the server at its peak", 0.0, int(peak.split()[1]) * 1024))
        server.terminate()
    return rows


def exported(run: Run, file: Path) -> tuple[str, float, float]:
    """The page as a file."""
    began = time.perf_counter()
    command = [*COMAS, "view", str(run.path), "--html", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return f"--html (at most {peak / 1e3:.0f} MB of memory)", seconds, file.stat().st_size


if __name__ == "__main__":
    main()
