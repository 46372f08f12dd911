"""Hosts that can be asked with the weights of the start, whatever they have learnt since."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comas.engines import hf
from comas.types import Ask, KeepsStart, Method, Payoff, Reply, Sampling
from tests.support.learning import KINDS, METHOD, POLICIES, learning_host

IN_PLACE = ("whole, hf", "adapters, hf")
"""Kinds whose engines read the learner's own weights."""
WITHOUT_KL = replace(METHOD, kl={})


def new_host(base: Path, **more: Any) -> Any:
    return learning_host(dict.fromkeys(POLICIES, str(base)), base, **more)


def say(host: Any, name: str, policy: str, place: int, keep: bool) -> Coroutine[Any, Any, Reply]:
    messages = [{"role": "user", "content": f"solve 1 2 4 {place} -> 7"}]
    sampling = Sampling(max_tokens=12)
    turn = f"{name}/{policy}{place}"
    return host.ask(Ask(turn, policy, messages, "solution", keep, sampling, place))


async def talk(host: Any, name: str, keep: bool = False) -> list[str]:
    asking = [say(host, name, policy, place, keep) for policy in POLICIES for place in range(4)]
    return [reply.text for reply in await asyncio.gather(*asking)]


async def learn(host: Any, steps: Sequence[int], method: Method = METHOD) -> None:
    for step in steps:
        await talk(host, f"{step}", keep=True)
        paid = {p: [Payoff(f"{step}/{p}{i}", float(i % 2)) for i in range(4)] for p in POLICIES}
        await host.learn(paid, method)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_says_what_it_said(kind: str, untaught: Path) -> None:
    host = new_host(untaught, **KINDS[kind])
    keeps: object = host
    assert isinstance(keeps, KeepsStart)

    async def main() -> None:
        first = await talk(host, "same")
        await learn(host, [0, 1])
        assert await talk(host, "same") != first
        start = await host.at_start()
        assert not start.learns
        assert await talk(start, "same") == first
        await learn(host, [2])
        assert await host.at_start() is start
        assert await talk(start, "same") == first

    asyncio.run(main())
    host.close()


@pytest.mark.parametrize("kind", IN_PLACE)
def test_asking_the_start_changes_nothing_of_what_is_learnt(
    kind: str, untaught: Path, tmp_path: Path
) -> None:
    said: list[list[str]] = []
    for asked in (False, True):
        host = new_host(untaught, **KINDS[kind])

        async def main(host: Any = host, asked: bool = asked) -> None:
            for step in range(2):
                if asked:
                    await talk(await host.at_start(), f"{step}")
                await learn(host, [step])
            said.append(await talk(host, "same"))

        asyncio.run(main())
        host.close()
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_host_that_goes_on_has_the_start_of_the_run(
    kind: str, untaught: Path, tmp_path: Path
) -> None:
    host = new_host(untaught, **KINDS[kind])
    again = new_host(untaught, **KINDS[kind])

    async def main() -> None:
        first = await talk(host, "same")
        await learn(host, [0, 1])
        await host.save(tmp_path)
        await again.load(tmp_path)
        assert await talk(again, "same") == await talk(host, "same") != first
        assert await talk(await again.at_start(), "same") == first

    asyncio.run(main())
    host.close()
    again.close()


def test_adapters_that_had_learnt_before_start_as_they_were(untaught: Path, tmp_path: Path) -> None:
    kind: dict[str, Any] = {"engine": hf, "adapters": True}
    before = new_host(untaught, **kind)

    async def main() -> None:
        await learn(before, [0, 1])
        await before.save(tmp_path)
        host = learning_host({p: str(tmp_path / p) for p in POLICIES}, untaught, **kind)
        first = await talk(host, "same")
        assert first == await talk(before, "same")
        await learn(host, [2, 3])
        assert await talk(host, "same") != first
        assert await talk(await host.at_start(), "same") == first
        host.close()
        # without a KL nobody has kept them
        host = learning_host(
            {p: str(tmp_path / p) for p in POLICIES}, untaught, method=WITHOUT_KL, **kind
        )
        assert await host.at_start() is None
        host.close()

    asyncio.run(main())
    before.close()


def test_without_a_kl_new_adapters_alone_have_a_start(untaught: Path) -> None:
    whole = new_host(untaught, engine=hf, method=WITHOUT_KL)
    adapters = new_host(untaught, engine=hf, adapters=True, method=WITHOUT_KL)

    async def main() -> None:
        assert await whole.at_start() is None
        first = await talk(adapters, "same")
        await learn(adapters, [0, 1], WITHOUT_KL)
        assert await talk(adapters, "same") != first
        assert await talk(await adapters.at_start(), "same") == first

    asyncio.run(main())
    whole.close()
    adapters.close()


def test_an_engine_that_lends_its_memory_has_none_for_a_second_one(untaught: Path) -> None:
    host = new_host(untaught, engine=hf)
    host.engine.sleep = lambda: None
    assert asyncio.run(host.at_start()) is None
    host.close()
