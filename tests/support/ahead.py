"""A host whose weights are a chain of digests, and that is asked while it learns."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from comas.config.schema import read
from comas.hooks import Hook
from comas.team.build import run_sync
from comas.testing import golden_script
from comas.training.start import resume_async, train_async
from tests.support.faults import Chained

AHEAD = [
    "ahead=1",
    "steps=11",
    "task_options.largest=8",
    "questions=3",
    "test_questions=3",
    "eval_questions=3",
    "checkpoint_every=4",
    "eval_every=6",
]


class ChainedAhead(Chained):
    """What it says depends on all that it was paid until it was published; learning takes turns
    with asking in the event loop, so that both are under way at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spoken = dict(self.state)
        self.learnt = 0
        self.version = 0
        self.closed: dict[str, set[str]] = {}
        self.events: list[str] = []

    def say(self, policy: str, role: str, prompt: str, seed: int) -> str:
        number = int(hashlib.sha256(f"{self.spoken[policy]} {seed}".encode()).hexdigest(), 16)
        return golden_script(policy, role, prompt, number % 1000)

    async def ask(self, turn: str, *args: Any) -> Any:
        self.events.append(f"ask {turn.split('/')[0]}")
        reply = await super().ask(turn, *args)
        return replace(reply, version=self.version)

    async def learn(self, payoffs: Any, method: Any) -> Any:
        self.events.append("learn begins")
        for _ in range(20):
            await asyncio.sleep(0)
        asked = self.buffer
        self.buffer = self.closed
        learned = await super().learn(payoffs, method)
        self.buffer = asked
        self.learnt += 1
        self.events.append("learn ends")
        return learned

    async def publish(self) -> None:
        self.spoken = dict(self.state)
        self.version = self.learnt
        self.closed = self.buffer
        self.buffer = {}
        self.events.append("publish")

    async def save(self, path: Path) -> None:
        record = json.dumps([self.state, self.learnt])
        (path / "home.json").write_text(record)
        (path / "state.json").write_text(record)  # where the method has none of its own

    async def load(self, path: Path) -> None:
        self.state, self.learnt = json.loads((path / "home.json").read_text())
        await self.publish()

    async def save_served(self, path: Path) -> None:
        (path / "served.json").write_text(json.dumps([self.spoken, self.version]))

    async def load_served(self, path: Path) -> None:
        self.spoken, self.version = json.loads((path / "served.json").read_text())


def train(folder: Path, *pairs: str, host: ChainedAhead | None = None, hook: Hook | None = None):  # type: ignore[no-untyped-def]
    config = read(None, [*AHEAD, *pairs, f"out={folder}"])
    hosts = {"home": host or ChainedAhead()}
    return run_sync(train_async(config, hook or Hook(), hosts=hosts))


def go_on(folder: Path, *changes: str, steps: int | None = None) -> None:
    work = resume_async(
        folder, Hook(), steps=steps, changes=changes, hosts={"home": ChainedAhead()}
    )
    run_sync(work)
