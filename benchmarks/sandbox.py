"""How many small programs the sandbox checks per second: `python benchmarks/sandbox.py [--json]`.

One after another and four at a time, warm, for each isolation that works here; the yardstick is a
bare `python -I -S -c` per program, with no walls and no tests, in the same run. Rounds take turns,
so that a busy moment of the machine hits all of them; the table has medians over rounds. `--json`
ends with one object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.table import Table

from comas import sandbox
from comas.machine import usable_cpus
from comas.sandbox import cgroup, jail

PROGRAM = """
def fib(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
"""
TESTS = (
    "assert fib(0) == 0\nassert fib(1) == 1\nassert fib(10) == 55\nassert fib(90) =="
    " 2880067194370816120\n"
)
WAYS = {"one after another": 1, "four at a time": 4}


def plain() -> bool:
    """The program and its tests in a bare process."""
    return (
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROGRAM + TESTS], env={}, check=False
        ).returncode
        == 0
    )


def walled(kind: str) -> Callable[[], bool]:
    """The same through the sandbox."""

    def one() -> bool:
        sandbox.isolation = lambda: kind  # whatever is in force otherwise
        return sandbox.check(PROGRAM, TESTS, names=["fib"]).verdict == "right"

    return one


def working() -> list[str]:
    """The isolations that this machine has."""
    found = []
    for kind in ("unshare", "bwrap"):
        try:
            jail.probe(kind)
        except (jail.Broken, OSError):
            continue
        found.append(kind)
    return found


def rate(one: Callable[[], bool], count: int, threads: int) -> float:
    """Programs per second; all of them have to be found right."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        right = list(pool.map(lambda _: one(), range(count)))
    assert all(right), f"{right.count(False)} of {count} right programs were not found right"
    return count / (time.perf_counter() - began)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40, help="programs per round")
    args = parser.parse_args()
    kinds = {"bare python": plain, **{kind: walled(kind) for kind in working()}}
    found: dict[tuple[str, str], list[float]] = {(kind, way): [] for kind in kinds for way in WAYS}
    for one in kinds.values():
        rate(one, 4, 4)  # warm
    for _ in range(args.rounds):
        for kind, way in found:
            found[kind, way].append(rate(kinds[kind], args.count, WAYS[way]))
    rows = [
        {
            "walls": kind,
            **{way: round(statistics.median(found[kind, way]), 1) for way in WAYS},
            "least, four at a time": round(min(found[kind, "four at a time"]), 1),
        }
        for kind in kinds
    ]
    device = (
        f"{platform.processor() or platform.machine()}, {usable_cpus()} CPUs, load"
        f" {os.getloadavg()[0]:.1f}, "
    )
    device += "control groups" if cgroup.place() else "no control groups"
    table = Table(*rows[0], title=f"programs per second, {device}")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(stderr=args.json).print(table)
    if args.json:
        print(json.dumps({"rows": rows, "device": device}))


if __name__ == "__main__":
    main()
