"""Parts of a game that run side by side, so that their host answers all of them in one batch.

Leaves out: whole games (`game.play`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(parts: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines side by side, and return what they return, in their order."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(part) for part in parts]
    return [part.result() for part in running]
