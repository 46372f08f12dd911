"""What hosts learn from a step that was settled, all of them side by side.

Leaves out: how a host learns (`hosts`, `learners`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from comas.game.play import payoffs
from comas.team.build import Team
from comas.types import Episode, HostFailure, Learned, Method, UserMistake


async def at_host(host: str, doing: str, work: Awaitable[Any]) -> Any:
    """The work of a host; what goes wrong names it."""
    try:
        return await work
    except HostFailure as error:
        raise HostFailure(f"host {host}, {doing}: {error}") from error
    except UserMistake:
        raise
    except Exception as error:
        error.add_note(f"in host {host}, {doing}")
        raise


async def learn(
    team: Team, method: Method, step: int, episodes: Sequence[Episode]
) -> dict[str, Learned]:
    """Host -> what its learning step came to by this method; also notes mean advantage and KL on
    the turns.
    """
    paid = payoffs(episodes, team.members)
    doing = f"learning of step {step + 1}"
    learning: dict[str, asyncio.Task[Any]] = {}
    async with asyncio.TaskGroup() as group:
        for name, host in team.hosts.items():
            if host.learns:
                work = at_host(name, doing, host.learn(paid.get(name, {}), method))
                learning[name] = group.create_task(work)
    learned = {name: Learned(*task.result()) for name, task in learning.items()}
    _note_on_turns(episodes, learned.values())
    return learned


def _note_on_turns(episodes: Sequence[Episode], learned: Iterable[Learned]) -> None:
    means: dict[str, tuple[float, float]] = {}
    for of_host in learned:
        means |= of_host.turns
    for episode in episodes:
        for turn in episode.turns if episode.error is None else ():
            if turn.id in means:
                advantage, kl = means[turn.id]
                turn.info["advantage"] = advantage
                turn.info["kl"] = kl
