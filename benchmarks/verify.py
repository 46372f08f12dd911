"""How fast answers are checked: `COMAS_DATA=FOLDER python benchmarks/verify.py`, verdicts per
second by task and number of threads.

Every question of a task is answered five times: with its reference and with those of four others.
Mathematics goes through processes of sympy, which are warm when the clock starts. `--json`
ends with one object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console
from rich.table import Table

from comas.answers import maths
from comas.config.plugins import load_plugin
from comas.machine import usable_cpus
from comas.types import Question, Verdict

TASKS = ("math500", "gsm8k", "scibench", "mmlu", "mix")


def together(task: Any, pairs: Sequence[tuple[Question, str]]) -> list[Verdict]:
    """A verdict per pair, asked for side by side."""
    with ThreadPoolExecutor(2 * usable_cpus()) as threads:
        return list(threads.map(lambda pair: task.verify(*pair), pairs))


def measured(name: str) -> dict[str, object]:
    """One row: a task, one answer after another and all of them together."""
    task = load_plugin("task", name)
    questions = task.load("test", limit=500)
    rng = random.Random(0)
    pairs = [
        (q, rf"\boxed{{{a.answer}}}")
        for q in questions
        for a in (q, *(rng.choice(questions) for _ in range(4)))
    ]
    rows: dict[str, object] = {"task": name, "answers": len(pairs)}
    ways = {
        "in turn": lambda: [task.verify(*pair) for pair in pairs],
        "together": lambda: together(task, pairs),
    }
    for way, check in ways.items():
        maths.told.cache_clear()
        maths.WORKERS.close()
        # warm
        together(
            maths,
            [(questions[0], r"\boxed{\sqrt{3}}"), (questions[0], r"\boxed{\sqrt{5}}")]
            * usable_cpus(),
        )
        began = time.perf_counter()
        found = check()
        rows[way] = round(len(pairs) / (time.perf_counter() - began))
    return {**rows, "failed": found.count("failed")}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    if "COMAS_DATA" not in os.environ:
        parser.error("COMAS_DATA names no folder with samples of the benchmarks")
    as_json = parser.parse_args().json
    rows = [measured(name) for name in TASKS]
    device = f"{platform.processor() or platform.machine()}, {usable_cpus()} CPUs"
    table = Table(*rows[0], title=f"verdicts per second, {device}")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(stderr=as_json).print(table)
    if as_json:
        print(json.dumps({"rows": rows, "device": device}))


if __name__ == "__main__":
    main()
