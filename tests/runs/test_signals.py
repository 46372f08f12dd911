"""What a first, a second and a third signal do."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from comas.signals import listening


def test_the_third_signal_is_pythons_own_and_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    called: list[str] = []

    async def work() -> None:
        def soon() -> bool:
            called.append("soon")
            return True

        with listening(soon, lambda: called.append("at once")):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert called == ["soon", "at once"]
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10_000):  # while nothing awaits
                pass

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert signal.getsignal(signal.SIGINT) is before


def test_where_there_is_nothing_to_wait_for_the_first_signal_stops_at_once() -> None:
    called: list[str] = []

    async def work() -> None:
        with listening(lambda: False, lambda: called.append("at once")):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(work())
    assert called == ["at once"]
