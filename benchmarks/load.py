"""Many discussions over several hosts, one of which is slow, or stalls: `python benchmarks/load.py
[--games 1000] [--json]`.

Four scripted hosts in actors of Ray, each reply after a delay; each discussion keeps to
one host (three turns, one after the other), so that whatever else it waits for is our doing. Rows:
all hosts alike; one of them fifty times as slow; a judge behind an API that never answers beside
them. What counts is when the discussions of the other hosts have ended, as a ratio to the first
row of the same run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from shapes import arguments, show

from comas.hosts import api
from comas.hosts.ray import RayHost
from comas.machine import peak_bytes_of
from comas.testing import Scripted, golden_script
from comas.types import Ask, Host, HostFailure

HOSTS = 4
TURNS = 3
DELAY = 0.02
"""Seconds of a reply."""
SLOWER = 50


class Delayed(Scripted):
    """Answers after a while."""

    delay = DELAY

    async def ask(self, ask: Ask) -> Any:
        """The script's reply, later."""
        prompt = ask.messages[-1]["content"]
        await asyncio.sleep(self.delay * (SLOWER if prompt == "slowly" else 1))
        return await super().ask(ask)


def started() -> list[RayHost]:
    """The hosts, all of them ready."""
    hosts = [
        RayHost(f"h{number}", partial(Delayed, golden_script, f"h{number}"), learns=True)
        for number in range(HOSTS)
    ]
    for host in hosts:
        host.ready()
    return hosts


async def discussion(number: int, host: Host, prompt: str, began: float) -> float:
    """Seconds from the beginning until its last turn was said."""
    for turn in range(TURNS):
        message = {"role": "user", "content": prompt}
        name = f"{number}/{turn}"
        await host.ask(Ask(name, "a0", [message], "solution", seed=turn))
    return time.perf_counter() - began


async def played(hosts: Sequence[Host], games: int, slow: bool) -> tuple[float, float, float]:
    """Seconds until the discussions at all hosts but the last had ended, until all had, and
    discussions per second.
    """
    began = time.perf_counter()
    tasks: list[asyncio.Task[float]] = []
    for number in range(games):
        place = number % HOSTS
        last = place == HOSTS - 1
        prompt = "slowly" if slow and last else "quickly"
        tasks.append(asyncio.create_task(discussion(number, hosts[place], prompt, began)))
    ended = await asyncio.gather(*tasks)
    others = [seconds for number, seconds in enumerate(ended) if number % HOSTS != HOSTS - 1]
    return max(others), max(ended), games / max(ended)


async def beside_a_stall(hosts: Sequence[Host], games: int) -> tuple[float, float, float]:
    """The same while a tenth as many asks wait at an endpoint that never answers."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    table = api.Table(api=f"http://127.0.0.1:{port}/v1", timeout=6.0, retries=0)
    judge = api.ApiHost("judge", {"j": "model"}, table)
    message = {"role": "user", "content": "how good?"}
    stalled = [
        asyncio.create_task(judge.ask(Ask(f"s{i}", "j", [message], "scoring", seed=i)))
        for i in range(games // 10)
    ]
    await asyncio.sleep(2.0)  # their connections are open, and nothing comes over them
    result = await played(hosts, games, False)
    for outcome in await asyncio.gather(*stalled, return_exceptions=True):
        assert isinstance(outcome, HostFailure), outcome
    await asyncio.to_thread(judge.close)
    server.close()
    return result


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--games", type=int, default=1000)
    given = parser.parse_args()
    hosts = started()
    try:
        asyncio.run(played(hosts, given.games, False))  # the first round warms up
        rounds = {
            "four hosts alike": asyncio.run(played(hosts, given.games, False)),
            f"one of them {SLOWER} times as slow": asyncio.run(played(hosts, given.games, True)),
            "beside an API that stalls": asyncio.run(beside_a_stall(hosts, given.games)),
        }
    finally:
        for host in hosts:
            host.close()
    (alike, _, _) = rounds["four hosts alike"]
    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "other hosts' discussions end, s": others,
            "to alike": others / alike,
            "all end, s": everything,
            "discussions per second": rate,
        }
        for what, (others, everything, rate) in rounds.items()
    ]
    show(rows, given.json, games=given.games, peak_bytes=peak_bytes_of("cpu"))


if __name__ == "__main__":
    main()
