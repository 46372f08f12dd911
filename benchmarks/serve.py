"""What the endpoint adds to a team's own play: `python benchmarks/serve.py [--requests 64]
[--json]`.

The same discussions, with the same seeds and the same texts, played directly and asked for over
HTTP by a client in a process of its own; contestants take turns. Processor seconds of this process,
which has the server, the games and the model in one thread of torch: of a scripted team, whose
replies cost nothing, it is what a request costs; of the seed model it is a ratio.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import torch
from shapes import arguments, show

from comas.config.plan import plan
from comas.config.schema import read
from comas.evaluation.systems import system_team
from comas.evaluation.ways import asking_of
from comas.serve.endpoint import Endpoint, bound_to
from comas.serve.playing import Players, models_of
from comas.serve.protocol import read_request
from comas.team.build import Team, members_of
from comas.testing import Scripted

SETUPS = ("single", "vote", "debate")
PROMPT = "10 5 6 9 -> 24"
AT_ONCE = 10_000


def body(model: str, seed: int) -> dict[str, Any]:
    """A request."""
    return {"model": model, "seed": seed, "messages": [{"role": "user", "content": PROMPT}]}


async def _asked(url: str, model: str, requests: int, at_once: int) -> list[str]:
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def one(seed: int) -> str:
            reply = await client.post(f"{url}/chat/completions", json=body(model, seed))
            return reply.json()["choices"][0]["message"]["content"]

        return await asyncio.gather(*map(one, range(requests)))


def ask(url: str, model: str, requests: int, at_once: int) -> list[str]:
    """Ask for so many answers, in the client's process."""
    return asyncio.run(_asked(url, model, requests, at_once))


@dataclass(frozen=True)
class Contest:
    """One team, played directly and asked over HTTP."""

    players: Players
    url: str
    client: Executor
    requests: int

    async def direct(self, model: str) -> list[str]:
        """The answers of all seeds, played side by side in this process."""

        async def one(seed: int) -> str:
            request = read_request(json.dumps(body(model, seed)).encode(), self.players)
            answers, _ = await self.players.play(request)
            return answers[0].text

        return await asyncio.gather(*map(one, range(self.requests)))

    async def served(self, model: str) -> list[str]:
        """The same over HTTP."""
        loop = asyncio.get_running_loop()
        asked = (self.url, model, self.requests, self.requests)
        return await loop.run_in_executor(self.client, ask, *asked)

    async def measured(self, model: str, repeats: int) -> dict[str, Any]:
        """Medians of processor seconds per request, and of their ratio in one round."""
        rounds: list[tuple[float, float]] = []
        for _ in range(repeats + 1):
            direct, texts = await _timed(self.direct, model)
            served, same = await _timed(self.served, model)
            assert texts == same, "the same seeds are the same texts"
            rounds.append((direct, served))
        rounds = rounds[1:]  # the first one warms up
        each = [1e3 * statistics.median(part) / self.requests for part in zip(*rounds, strict=True)]
        return {
            "model": model,
            "direct, ms per request": each[0],
            "served, ms per request": each[1],
            "overhead, ms": each[1] - each[0],
            "ratio": statistics.median(served / direct for direct, served in rounds),
        }


async def _timed(
    work: Callable[[str], Awaitable[list[str]]], model: str
) -> tuple[float, list[str]]:
    began = time.process_time()
    texts = await work(model)
    return time.process_time() - began, texts


def scripted() -> Team:
    """Four agents whose replies cost nothing."""
    resolved = plan(read(None, ["agents=4"]))
    hosts: Any = {"home": Scripted(lambda *_: "10 + 5 = 15 + 9 = 24", name="home")}
    return Team(resolved, hosts, members_of(resolved, hosts))


async def contest(team: Team, name: str, requests: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each setup."""
    models = models_of(team, SETUPS)
    players = Players(models, team.task, asking_of(team.config), team.config.seed, AT_ONCE)
    context = multiprocessing.get_context("spawn")
    with bound_to("127.0.0.1", 0) as bound, ProcessPoolExecutor(1, mp_context=context) as client:
        endpoint = Endpoint(players)
        serving = asyncio.ensure_future(endpoint.answer_until_cancelled(bound))
        contestants = Contest(players, endpoint.url(bound), client, requests)
        rows = [{"team": name, **await contestants.measured(model, repeats)} for model in SETUPS]
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    return rows


def measured(requests: int, repeats: int) -> Sequence[dict[str, Any]]:
    """Rows of the scripted team and of the seed model."""
    seed = system_team("seed", ["threads=1"])
    try:
        rows = asyncio.run(contest(scripted(), "scripted", requests, repeats))
        return [*rows, *asyncio.run(contest(seed, "seed", requests, repeats))]
    finally:
        seed.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    show(measured(args.requests, args.repeats), args.json, requests=args.requests)


if __name__ == "__main__":
    main()
