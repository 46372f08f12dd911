"""What a turn costs at a host elsewhere: `python benchmarks/elsewhere.py [--games 1000] [--steps 6]
[--json]`.

The training loop as it is, with a scripted host that answers at once: in this process, and in an
actor of Ray. The two take turns session by session, so that what else the machine does falls on
both. Processor seconds are of this process alone (what the actor takes runs beside it); wall
seconds hold the journey there and back.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from overhead import team_of
from shapes import arguments, show

from comas.hooks import Hook
from comas.questions.checked import of_run
from comas.storage.run import Run
from comas.team.build import Team, members_of
from comas.testing import Scripted, golden_script, scripted_elsewhere
from comas.types import Host

loop: Any = importlib.import_module("comas.training.loop")


class Told(Hook):
    """Seconds at the end of each step, and how many turns it had."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.turns: list[int] = []

    def step(self, metrics: Any, episodes: Any) -> None:
        self.turns.append(sum(len(e.turns) for e in episodes))
        self.marks.append((time.process_time(), time.perf_counter()))

    def per_turn(self) -> list[tuple[float, float]]:
        """Microseconds of the processor and of the clock per turn, of each step but the first."""
        pairs = zip(self.marks, self.marks[1:], self.turns[1:], strict=False)
        return [((b[0] - a[0]) / turns * 1e6, (b[1] - a[1]) / turns * 1e6) for a, b, turns in pairs]


def session(team: Team, host: Host) -> list[tuple[float, float]]:
    """Microseconds per turn of each step of the team at this host."""
    members = members_of(team.plan, {"home": host})
    team = Team(team.plan, {"home": host}, members)
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(team.config.model_dump(), str(Path(folder) / "run"))
        going = loop.Session(team, told, of_run(team.config, team.task, told.note)).go(run, 0)
        asyncio.run(going)
        run.unlock()
    return told.per_turn()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, list[tuple[float, float]]] = {}
    team, _ = team_of(given.games, given.steps)
    hosts: dict[str, Host] = {
        "here": Scripted(golden_script, "home"),
        "ray": scripted_elsewhere(golden_script, "home"),
    }
    try:
        for _ in range(3):
            for name, host in hosts.items():
                measured.setdefault(name, []).extend(session(team, host))
    finally:
        for host in hosts.values():
            host.close()
    medians = {
        name: [statistics.median(part) for part in zip(*pairs, strict=True)]
        for name, pairs in measured.items()
    }
    rows: list[dict[str, Any]] = []
    for name, (processor, clock) in medians.items():
        here = medians["here"]
        rows.append(
            {
                "host": name,
                "processor, microseconds per turn": processor,
                "clock": clock,
                "processor beyond here": processor - here[0],
                "clock beyond here": clock - here[1],
            }
        )
    show(rows, given.json, games=given.games)


if __name__ == "__main__":
    main()
