"""Hosts that answer while they learn: the same texts, and the same weights, as where they take
turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from comas.engines import stacked
from comas.hosts.ahead import AheadHost
from comas.hosts.build import make_local_host
from comas.hosts.plan import Lag
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.testing import check_host
from comas.types import Learned, Method, Payoff, PlaysAhead, Reply, UserMistake
from tests.support.learning import KINDS, POLICIES, learning_host, say

METHOD = Method(lambda: None, lambda: None, reinforce_pp, clipped, kl={"solution": 0.01})  # type: ignore[arg-type, return-value]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def host_of(base: Path, ahead: bool, engine: Any, adapters: bool = False, **more: Any) -> Any:
    bases = dict.fromkeys(POLICIES, str(base))
    return learning_host(bases, base, engine, adapters, METHOD, ahead, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract(kind: str, untaught: Path) -> None:
    host = host_of(untaught, ahead=True, **KINDS[kind])
    assert isinstance(host, PlaysAhead)
    asyncio.run(check_host(host, "a", METHOD))
    host.close()


async def talk(host: Any, step: int) -> list[Reply]:
    asking = [say(host, f"{step}/{p}{i}", p) for p in POLICIES for i in range(4)]
    return await asyncio.gather(*asking)


def learning(host: Any, step: int) -> Any:
    paid = {
        p: [Payoff(f"{step}/{p}{i}", float(i % 2) + 0.1 * step) for i in range(4)] for p in POLICIES
    }
    return host.learn(paid, METHOD)


Told = tuple[list[tuple[str, int, float]], Learned]


async def steps(host: Any, beside: bool) -> list[Told]:
    """Four steps of which each but the first is played before the one in front of it is published;
    while that is learnt, or before.
    """
    told: list[Told] = []
    replies = await talk(host, 0)
    for step in range(4):
        await host.publish()
        if beside:
            learned, following = await asyncio.gather(learning(host, step), talk(host, step + 1))
        else:
            following = await talk(host, step + 1)
            learned = await learning(host, step)
        told.append(([(r.text, r.version, r.logprob) for r in replies], learned))
        replies = following
    return told


def weights_of(host: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for weights in host.learner.weights().values():
        if hasattr(weights, "shared"):
            found.append(weights.shared.flat_PN)
        else:
            found += list(weights.model.parameters())
    return found


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(weights_of(one), weights_of(other), strict=True)
    return all(torch.equal(weight, others) for weight, others in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_and_learns_the_same_at_the_same_time_and_in_turns(
    kind: str, untaught: Path, threads: int
) -> None:
    at_once = host_of(untaught, ahead=True, **KINDS[kind])
    in_turns = host_of(untaught, ahead=True, **KINDS[kind])
    expected = asyncio.run(steps(in_turns, beside=False))
    assert asyncio.run(steps(at_once, beside=True)) == expected
    assert same_weights(at_once, in_turns)
    versions = [{version for _, version, _ in replies} for replies, _ in expected]
    assert versions == [{0}, {0}, {1}, {2}]
    stats = [learned.policies["a"] for _, learned in expected]
    assert ["gap_mean" in found for found in stats] == [True, False, False, False]
    assert [found.get("behind", 0) for found in stats] == [0, 1, 1, 1]
    assert all(found["stale_mean"] > 1e-5 for found in stats[1:])
    at_once.close()
    in_turns.close()


@pytest.mark.parametrize("kind", KINDS)
def test_published_each_time_it_is_the_host_that_is_not_ahead(kind: str, untaught: Path) -> None:
    ahead = host_of(untaught, ahead=True, **KINDS[kind])
    plain = host_of(untaught, ahead=False, **KINDS[kind])
    assert not isinstance(plain, PlaysAhead)

    async def main() -> None:
        for step in range(3):
            replies = [await talk(host, step) for host in (ahead, plain)]
            first, second = [
                [replace(reply, seconds=0.0) for reply in of_host] for of_host in replies
            ]
            assert first == second
            await ahead.publish()
            learned = [await learning(host, step) for host in (ahead, plain)]
            assert learned[0] == learned[1]
            await ahead.publish()

    asyncio.run(main())
    assert same_weights(ahead, plain)
    ahead.close()
    plain.close()


def test_earlier_selves_are_published_with_the_rest(untaught: Path) -> None:
    host = host_of(untaught, True, stacked, lags={"b": Lag("a", 2)})

    async def main() -> list[int]:
        versions: list[int] = []
        for step in range(4):
            replies = [await say(host, f"{step}/a", "a"), await say(host, f"{step}/b", "b", False)]
            versions.append(replies[1].version)
            await host.publish()
            await host.learn({"a": [Payoff(f"{step}/a", 1.0)]}, METHOD)
            assert host.served["b"] == versions[-1]
            await host.publish()
        return versions

    assert asyncio.run(main()) == [0, 0, 2, 2]
    host.close()


class Sleeping:
    """An engine that gives its memory to the learner."""

    def __init__(self, engine: Any, sleeps: bool) -> None:
        self.engine = engine
        self.sleeps = sleeps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def sleep(self) -> None:
        raise AssertionError("somebody may be sampling")


def sleeping(sleeps: bool) -> Any:
    class Module:
        build: Callable[..., Any] = staticmethod(
            lambda plan, models: Sleeping(stacked.build(plan, models), sleeps)
        )

    return Module


def test_an_engine_that_lends_its_memory_is_refused(untaught: Path) -> None:
    with pytest.raises(UserMistake, match="gives its memory to the learner"):
        host_of(untaught, True, sleeping(True))
    host = host_of(untaught, False, sleeping(True))
    host.close()


def test_what_does_not_learn_is_a_host_as_ever(untaught: Path) -> None:
    host = make_local_host("home", {"a": str(untaught)}, ahead=True)
    assert not isinstance(host, AheadHost)
    host.close()


def test_threads_that_first_compute_while_another_host_takes_one_keep_theirs(
    untaught: Path,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    host = host_of(untaught, ahead=True, engine=stacked)
    try:
        torch.set_num_threads(1)  # as small learners do while they learn
        pools = (host._worker, host._learning)
        assert [pool.submit(torch.get_num_threads).result() for pool in pools] == [2, 2]
    finally:
        host.close()
        torch.set_num_threads(before)


def test_the_start_is_copied_while_nothing_is_learnt(untaught: Path) -> None:
    host = host_of(untaught, ahead=True, engine=stacked)
    events: list[str] = []
    begun = threading.Event()
    going_on = threading.Event()

    def learns() -> None:
        begun.set()
        going_on.wait(10)
        events.append("learnt")

    def started() -> None:
        events.append("copied")

    host._started = started

    async def main() -> None:
        host._learning.submit(learns)
        begun.wait(10)
        asking = asyncio.create_task(host.at_start())
        await asyncio.sleep(0.1)
        going_on.set()
        await asking

    asyncio.run(main())
    host.close()
    assert events == ["learnt", "copied"]
