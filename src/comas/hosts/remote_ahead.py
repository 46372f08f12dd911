"""A host elsewhere that answers while it learns: for runs that play a step ahead.

Leaves out: when it is told to (`training.ahead`), how it does so (`hosts.ahead`, at the far end).
"""

from __future__ import annotations

from pathlib import Path

from comas.hosts.remote import RemoteHost


class RemoteAheadHost(RemoteHost):
    """What `types.PlaysAhead` asks for, behind a line."""

    async def publish(self) -> None:
        """Close the step, and sample from all that was learnt."""
        await self._call("publish")

    async def save_served(self, path: Path) -> None:
        """Write the weights that are sampled from."""
        await self._write("save_served", path)

    async def load_served(self, path: Path) -> None:
        """Sample from weights that were written."""
        names = (f"{self.name}.served.json", f"{self.name}.served.safetensors")
        await self._read("load_served", path, names)
