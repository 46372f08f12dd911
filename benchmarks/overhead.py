"""What games, store and bookkeeping add per turn: `python benchmarks/overhead.py [--games 1000]
[--json]`.

The training loop as it is, with a host that answers at once from a script instead of a model: every
microsecond is ours. Steps of so many discussions side by side; what the script itself takes is
taken off. Processor seconds of this process, one thread.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from shapes import arguments, show

from comas.config.plan import plan
from comas.config.schema import read
from comas.game.agent import TeamMember
from comas.hooks import Hook
from comas.questions.checked import of_run
from comas.storage.run import Run
from comas.team.build import Team, members_of
from comas.testing import Scripted, golden_script

loop: Any = importlib.import_module("comas.training.loop")
learning: Any = importlib.import_module("comas.training.learning")
PARTS = {"play_all": loop, "settle_all": loop, "payoffs": learning, "summarise": loop}


class Spent:
    """Processor seconds by part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **keys: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **keys)
            finally:
                self.add(name, began)

        async def awaited(*args: Any, **keys: Any) -> Any:
            began = time.process_time()
            try:
                return await function(*args, **keys)
            finally:
                self.add(name, began)

        return awaited if asyncio.iscoroutinefunction(function) else timed

    def add(self, name: str, began: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


def team_of(games: int, steps: int) -> tuple[Team, Scripted]:
    """Four agents at a scripted host that play the default game."""
    keys = [
        f"questions={games}",
        f"steps={steps}",
        "test_questions=0",
        "eval_every=0",
        "checkpoint_every=1000",
        "agents=4",
    ]
    resolved = plan(read(None, keys))
    config = resolved.config
    host = Scripted(golden_script, name="home")
    members: list[TeamMember] = [
        replace(m, host=host) for m in members_of(resolved, dict.fromkeys(config.hosts, host))
    ]  # type: ignore
    return Team(resolved, {"home": host}, members), host  # type: ignore[dict-item]


class Told(Hook):
    """Processor seconds and turns at the end of each step."""

    def __init__(self) -> None:
        self.marks = [(time.process_time(), 0)]
        self.turns = 0

    def step(self, metrics: Any, episodes: Any) -> None:
        self.turns += sum(len(e.turns) for e in episodes)
        self.marks.append((time.process_time(), self.turns))


def measured(games: int, steps: int) -> list[dict[str, Any]]:
    """Microseconds per turn, by part; medians over steps for the whole, means for parts."""
    team, host = team_of(games, steps + 1)
    spent = Spent()
    watch = Told()
    saved = {name: getattr(module, name) for name, module in PARTS.items()}
    write = Run.write_step
    try:
        for name, module in PARTS.items():
            setattr(module, name, spent.of(name, saved[name]))
        Run.write_step = spent.of("write_step", write)  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            run = Run.create(team.config.model_dump(), str(Path(folder) / "run"))
            watch.marks[0] = (time.process_time(), 0)
            asyncio.run(
                loop.Session(team, watch, of_run(team.config, team.task, watch.note)).go(run, 0)
            )
            run.unlock()
    finally:
        Run.write_step = write  # type: ignore[method-assign]
        for name, module in PARTS.items():
            setattr(module, name, saved[name])
    each = [
        (b[0] - a[0]) / (b[1] - a[1]) * 1e6
        for a, b in zip(watch.marks[1:], watch.marks[2:], strict=False)
    ]
    script = scripted(host) * 1e6
    rows = [{"what": "whole step, median", "microseconds per turn": statistics.median(each)}]
    rows += [
        {"what": n, "microseconds per turn": s / watch.turns * 1e6}
        for n, s in spent.seconds.items()
    ]
    rows += [{"what": "of that the scripted host", "microseconds per turn": script}]
    return [
        *rows,
        {
            "what": "ours: whole step without the script",
            "microseconds per turn": statistics.median(each) - script,
        },
    ]


def scripted(host: Scripted) -> float:
    """Seconds of one answer of the script, out of the games."""
    asked = host.asked[-5000:]
    began = time.process_time()
    for _, policy, role, prompt, seed in asked:
        host.script(policy, role, prompt, seed)
        len(prompt.split())
    return (time.process_time() - began) / len(asked)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--games", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    show(measured(args.games, args.repeats), args.json, games=args.games)


if __name__ == "__main__":
    main()
