"""The contract of hosts: `check_host` holds any host to `comas.types.Host`; and a scripted host
elsewhere, for tests and to measure what it costs.

A broken contract is an AssertionError that says which. Leaves out: how good what it says is.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from comas.hosts.ray import RayHost
from comas.testing.scripted import Script, Scripted
from comas.types import (
    Ask,
    Fit,
    Host,
    Meter,
    Reply,
    Sampling,
    TurnReward,
    UserMistake,
    Weighs,
)

MESSAGES = ({"role": "user", "content": "1 2 4 5 -> 7"},)
SAMPLING = Sampling(max_tokens=8)
CHOICES = ("1", "2")
"""To be weighed."""
SEEDS = tuple(n * 2**59 for n in range(16))
"""Evenly over all that there are."""


async def check_host(host: Host, policy: str) -> None:
    """The contract of a host: it answers, says what it costs and runs on; one that learns keeps
    what it is told to, joins, forgets, counts versions, saves and loads; another one refuses to
    keep.
    """
    assert isinstance(host.name, str), "name is no text"
    assert host.name, "name is empty"
    assert host.meter is None or isinstance(host.meter, Meter), "meter is neither a Meter nor None"
    fit = await host.fits(policy, MESSAGES, SAMPLING)
    assert isinstance(fit, Fit), f"fits returned {fit!r}, no Fit"
    assert fit.fits, "a short prompt does not fit"
    clock = _checked_clock(host)
    await _check_reply(host, policy)
    later = _checked_clock(host)
    assert all(later.get(kind, 0.0) >= clock[kind] for kind in clock), "its clock went backwards"
    for what, record in (("facts", host.facts()), ("account", host.account())):
        assert isinstance(record, Mapping), f"{what} is no mapping"
        json.dumps(dict(record))
    if host.learns:
        await _check_learning(host, policy)
        await _check_telling(host, policy)
    else:
        await _check_frozen(host, policy)
    await _check_weighing(host, policy)


def _checked_clock(host: Host) -> dict[str, float]:
    clock = dict(host.clock())
    assert all(seconds >= 0 for seconds in clock.values()), f"negative seconds: {clock}"
    return clock


async def _ask(host: Host, policy: str, turn: str, keep: bool = True) -> Reply:
    return await host.ask(Ask(turn, policy, MESSAGES, "solution", keep, SAMPLING, 7))


async def _check_reply(host: Host, policy: str) -> None:
    """Counts that can be, and none that is kept."""
    reply = await _ask(host, policy, "t0", keep=False)
    assert isinstance(reply.text, str), f"a reply of {reply.text!r}"
    assert 0 < reply.tokens <= SAMPLING.max_tokens, (
        f"Reply.tokens is {reply.tokens}: from 1 to {SAMPLING.max_tokens} of this request"
    )
    assert reply.prompt_tokens > 0, f"Reply.prompt_tokens is {reply.prompt_tokens}"
    assert reply.logprob <= 0, f"a log-probability of {reply.logprob}"


async def _check_telling(host: Host, policy: str) -> None:
    """It says what it is given, and keeps it where it is told to."""
    words = "1 + 2 = 3"
    reply = await host.tell(Ask("g0", policy, MESSAGES, "solution"), words)
    assert reply.text == words, f"given {words!r}, it said {reply.text!r}"
    assert reply.finished, "words that were given are finished"
    assert reply.tokens > 0, "words without tokens"
    assert await _refused(host, policy, "g0"), "given words were kept, keep was False"
    before = await _ask(host, policy, "g1", keep=False)
    await host.tell(Ask("g2", policy, MESSAGES, "solution", True), words)
    await _learn(host, policy, "g2")
    learnt = await _ask(host, policy, "g3", keep=False)
    assert learnt.version == before.version + 1, "nothing was learnt from words that were given"


async def _weigh(host: Weighs, policy: str, turn: str, keep: bool, seed: int = 7) -> Reply:
    return await host.weigh(Ask(turn, policy, MESSAGES, "scoring", keep, SAMPLING, seed), CHOICES)


async def _check_weighing(host: Host, policy: str) -> None:
    """It gives a log-prob per choice, says one of them as the seed draws it, and keeps that where
    it is told to. A host that only answers has no `weigh`, or refuses it with a UserMistake.
    """
    if not isinstance(host, Weighs):
        return
    try:
        reply = await _weigh(host, policy, "w0", False)
    except UserMistake:
        if host.learns:
            raise
        return  # its server tells no log-probs, and it says so
    assert reply.weights is not None, "it was asked to weigh, and gave no weights"
    assert len(reply.weights) == len(CHOICES), f"{len(reply.weights)} weights of {len(CHOICES)}"
    assert all(weight <= 0 for weight in reply.weights), f"log-probs of {reply.weights}"
    assert reply.text in CHOICES, f"it said {reply.text!r}, which is no choice"
    assert reply.logprob == reply.weights[CHOICES.index(reply.text)], "not that of what it said"
    again = await _weigh(host, policy, "w1", False)
    assert again == replace(reply, seconds=again.seconds), "weighed again: something else"
    words_said = {(await _weigh(host, policy, "w2", False, seed)).text for seed in SEEDS}
    assert len(words_said) > 1 or min(reply.weights) < max(reply.weights) - 3, (
        "far seeds say the same word: the seed is not used"
    )
    if not host.learns:
        return
    assert await _refused(host, policy, "w0"), "a weighed turn was kept, keep was False"
    await _weigh(host, policy, "w3", True)
    await _learn(host, policy, "w3")


async def _check_frozen(host: Host, policy: str) -> None:
    """It refuses to keep what it says, and what it is told to say, where it has `tell`."""
    kept = Ask("t2", policy, MESSAGES, "solution", True)
    requests = [partial(_ask, host, policy, "t1")]
    with suppress(AttributeError):
        requests.append(partial(host.tell, kept, "1 + 2 = 3"))
    for request in requests:
        try:
            await request()
        except UserMistake:
            continue
        raise AssertionError("it does not learn, and kept a turn for learning")


async def _learn(host: Host, policy: str, *turns: str) -> None:
    """Reward the first of these turns, and see that it learns from all of them."""
    rewards = [TurnReward(turn, float(index == 0), "g") for index, turn in enumerate(turns)]
    learned = await host.learn({policy: rewards}, 1.0)
    assert set(learned.policies) == {policy}, f"statistics of {sorted(learned.policies)}"
    assert set(learned.turns) == set(turns), f"told of {sorted(learned.turns)}"


async def _refused(host: Host, policy: str, turn: str) -> bool:
    try:
        await host.learn({policy: [TurnReward(turn, 1.0, "g")]}, 1.0)
    except KeyError:
        return True
    return False


async def _check_learning(host: Host, policy: str) -> None:
    first, second = await asyncio.gather(_ask(host, policy, "t1"), _ask(host, policy, "t2"))
    assert first.text == second.text, "the same seed gave another text"
    await _ask(host, policy, "t3", keep=False)
    assert await _refused(host, policy, "nobody said this"), "an unknown turn id was rewarded"
    assert await _refused(host, policy, "t3"), "a turn was kept although keep was False"
    await _learn(host, policy, "t1", "t2")
    assert await _refused(host, policy, "t1"), "a turn was kept after learning"
    learnt = await _ask(host, policy, "t4", keep=False)
    assert learnt.version == first.version + 1, (
        f"version {learnt.version} after one step from {first.version}"
    )
    with tempfile.TemporaryDirectory() as folder:
        await host.save(Path(folder))
        await _ask(host, policy, "t5")
        await _learn(host, policy, "t5")
        await host.load(Path(folder))
    again = await _ask(host, policy, "t6", keep=False)
    assert (again.text, again.version, again.logprob) == (
        learnt.text,
        learnt.version,
        learnt.logprob,
    ), "loaded: not what was saved"


# --- elsewhere


def scripted_elsewhere(script: Script, name: str = "script") -> RayHost:
    """A scripted host in an actor of Ray, ready to be asked; the script is a function at the top of
    a module that is found there.
    """
    host = RayHost(name, partial(Scripted, script, name), learns=True)
    host.ready()
    return host
