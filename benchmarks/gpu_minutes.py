"""What comas does on one GPU, in minutes: `python benchmarks/gpu_minutes.py OUT [--seconds 540]
[--parts sample:120,train:100] [--model qwen2.5-0.5b] [--tiny]`.

Parts run in order of worth, each within its seconds: the card and what it reaches; log-probs of a
refreshed adapter against float64; sampling against transformers' `generate` (plain, and static and
compiled); learning against a loop with peft; a step of `comas train` against what `--dry-run` said;
a whole model; waits and kernels of a token step; `make test-gpu`. Contestants take turns in one
process, on the same work. A finding is a line of OUT/results.jsonl at once, so that what is cut off
has said what it knew; a part that fails, hangs or kills its process leaves the others alone. Tables
are in OUT/tables.md. Nothing is installed or fetched: weights are random, of real shapes. `--tiny`
runs all of it with a tiny model on whatever there is, on a CPU in float32. Leaves out: what a part
does (`gpu_parts`).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ORDER = "card:30,correct:40,sample:160,train:100,step:90,whole:30,waits:30,tests:90"
GRACE = 15.0
"""Seconds that a part may be late."""
STARTING = 90.0
"""Seconds in which a process has to begin its first part: it imports torch."""


class Lines:
    """Lines of a process, with a limit to the wait for each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def next(self, until: float) -> str | None:
        """The next line; None where there is none any more. queue.Empty where it is late."""
        return self._lines.get(timeout=max(0.1, until - time.time()))


def supervise(
    parts: list[tuple[str, float]], command: Sequence[str], end: float, say: Callable[..., None]
) -> int:
    """Have one process run these parts; how many of them are over when it has ended."""
    listed = ",".join(f"{name}:{limit}" for name, limit in parts)
    process = subprocess.Popen(
        [*command, "--parts", listed, "--seconds", str(end - time.time()), "--here"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = Lines(process)
    over = 0
    until = time.time() + STARTING
    try:
        while (line := lines.next(min(until, end + GRACE))) is not None:
            try:
                facts = json.loads(line)
            except ValueError:  # a library's own words
                continue
            if "begins" in facts:
                until = time.time() + parts[over][1] + GRACE
            elif "ends" in facts:
                over += 1
                until = time.time() + STARTING
            else:
                say(**facts)
    except queue.Empty:
        say(part=parts[over][0], failed="it was late, and was ended")
        over += 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if over < len(parts) and process.returncode != -signal.SIGKILL:
        say(part=parts[over][0], failed=f"its process ended with {process.returncode}")
        over += 1
    return over


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: per part a table of its findings."""
    text = []
    for part in dict.fromkeys(facts["part"] for facts in found):
        rows = [{k: v for k, v in f.items() if k != "part"} for f in found if f["part"] == part]
        rows = [row for row in rows if row.keys() != {"took"}]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text += [f"\n## {part}\n", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        text += ["| " + " | ".join(cell(row.get(key)) for key in columns) + " |" for row in rows]
    return "\n".join(text).strip() + "\n"


def cell(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(cell(item) for item in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


def gpu_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Run the parts in processes of their own, or, as such a process, here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--parts", default=ORDER, help="PART:SECONDS,...")
    parser.add_argument("--model", default="qwen2.5-0.5b", help="one of shapes.py")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    parts = [
        (name, float(limit)) for name, _, limit in (x.partition(":") for x in args.parts.split(","))
    ]
    known = [part.partition(":")[0] for part in ORDER.split(",")]
    if unknown := [name for name, _ in parts if name not in known]:
        sys.exit(f"--parts: {unknown[0]!r} is none of {', '.join(known)}")
    if not (args.tiny or gpu_is_there()):
        sys.exit("no GPU here: nothing was measured (--tiny runs the same with a tiny model)")
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + args.seconds
    if args.here:
        from gpu_parts import Scene, work_on

        work_on(parts, Scene(args.model, args.out, args.tiny), end)
        return
    command = [sys.executable, __file__, str(args.out), "--model", args.model]
    command += ["--tiny"] if args.tiny else []
    found: list[dict[str, Any]] = []
    with (args.out / "results.jsonl").open("w", buffering=1) as results:

        def say(**facts: Any) -> None:
            found.append(facts)
            results.write(json.dumps(facts) + "\n")

        say(part="command", command=shlex.join(["python", *sys.argv]))
        while parts and time.time() < end:
            parts = parts[supervise(parts, command, end, say) :]
        for name, _ in parts:
            say(part=name, failed="no time was left")
    (args.out / "tables.md").write_text(tables(found), encoding="utf-8")
    print(tables(found), end="")
    if args.tiny and any("failed" in facts for facts in found):
        sys.exit("a part failed")


if __name__ == "__main__":
    main()
