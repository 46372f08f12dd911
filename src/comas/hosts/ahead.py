"""A host in this process that answers while it learns: for runs that play a step ahead.

An engine samples in one thread from copies of the weights, a learner changes its own in another;
copies are renewed where both rest, so that which weights say what depends on the program alone.
Leaves out: when that is (`training.ahead`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comas.hosts.local_host import LocalHost
from comas.machine import own_thread
from comas.seams import Engine, Sleeper
from comas.types import Payoff, Row, UserMistake

if TYPE_CHECKING:
    from comas.learners.served import Served


def check_engine(engine: Engine, host: str) -> None:
    """An error for an engine that lends its memory to the learner, and cannot sample meanwhile; it
    is closed then.
    """
    if isinstance(engine, Sleeper) and getattr(engine, "sleeps", True):
        engine.close()
        raise UserMistake(
            f"ahead=1: the engine of hosts.{host} gives its memory to the learner while that"
            f" learns, and cannot sample meanwhile: set ahead=0, or hosts.{host}.engine=hf"
        )


class AheadHost(LocalHost):
    """A local host whose engine was built on the weights of `copies`."""

    def __init__(self, *positional: Any, copies: Served, **named: Any) -> None:
        """The other arguments are those of `LocalHost`."""
        super().__init__(*positional, **named)
        self.copies = copies
        self.served = dict(self.versions)
        self._filing = {policy: {} for policy in self.versions}
        self._spoke = dict(self.served)
        """Versions that said what `learn` is about."""
        self._due: dict[str, None] = {}
        """Policies that have learnt since they were published."""
        self._learning = own_thread(f"learner-{self.name}")

    async def publish(self) -> None:
        """Close the step, and sample from all that was learnt."""
        self._buffer = self._filing
        self._filing = {policy: {} for policy in self._buffer}
        self._spoke = dict(self.served)
        due = list(self._due)
        self._due.clear()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, self._publish, due)

    async def save_served(self, path: Path) -> None:
        """Write the copies and their versions."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, self.copies.save, self._tensors(path))
        self._record(path).write_text(json.dumps(self.served))

    async def load_served(self, path: Path) -> None:
        """Sample from copies that were written."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, self.copies.load, self._tensors(path))
        self.served = json.loads(self._record(path).read_text())
        self._spoke = dict(self.served)
        self._due = dict.fromkeys(self.versions)
        await loop.run_in_executor(self._worker, self._serve, list(self.served))

    async def at_start(self) -> LocalHost | None:
        """See `types.KeepsStart`; both threads rest while the start is copied."""

        def started() -> LocalHost | None:
            return self._worker.submit(self._started).result()

        return await asyncio.get_running_loop().run_in_executor(self._learning, started)

    async def load(self, path: Path) -> None:
        """The inverse of `save`; the copies are renewed."""
        await super().load(path)
        self._due.clear()
        self._spoke = dict(self.served)

    def close(self) -> None:
        """End the engine and both threads."""
        self._learning.shutdown(wait=True)
        super().close()

    def _join(self, policy: str, paid: Sequence[Payoff]) -> list[Row]:
        rows = super()._join(policy, paid)
        for row in rows:
            row.behind = self.versions[policy] - self._spoke[policy]
        return rows

    def _hand_over(self, policies: Sequence[str]) -> None:
        """Note what is to be served later: somebody may be sampling now."""
        self._due.update(dict.fromkeys(policies))

    def _publish(self, policies: Iterable[str]) -> None:
        """Renew the copies of these policies."""
        assert self.learner is not None
        learnt = self.learner.weights()
        named = list(policies)
        for policy in named:
            self.copies.take(policy, learnt[policy])
        self.served = {**self.served, **{policy: self.versions[policy] for policy in named}}
        self._serve(named)

    def _serve(self, policies: Sequence[str]) -> None:
        """Have the engine sample from the copies of these policies."""
        for policy in policies:
            self.engine.publish(policy, self.copies.weights[policy], self.served[policy])

    def _tensors(self, path: Path) -> Path:
        return path / f"{self.name}.served.safetensors"

    def _record(self, path: Path) -> Path:
        return path / f"{self.name}.served.json"
