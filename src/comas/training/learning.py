"""Learning of all hosts, side by side, from a step that was settled, and their learning rates: a
function of the step, so that a resumed run has the same. Updates that are skipped a few times in a
row, since a loss or gradient is not finite, end a run.

Leaves out: how a host learns (`hosts`, `learners`); schedules of anything else, for which a method
puts phases into its state.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.game.play import own_file, turn_rewards
from comas.team.build import Team
from comas.types import Episode, HostFailure, Learned, UserMistake


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
    team: Team, scale: float, step: int, episodes: Sequence[Episode]
) -> dict[str, Learned]:
    """Host -> what its learning step came to, at `scale` times its learning rates; also notes mean
    advantage and KL on the turns.
    """
    rewarded = turn_rewards(episodes, team.members)
    doing = f"learning of step {step + 1}"
    learning: dict[str, asyncio.Task[Any]] = {}
    method = team.method
    with own_file(method.credit, "credit"), own_file(method.loss, "loss"):
        async with asyncio.TaskGroup() as group:
            for name, host in team.hosts.items():
                if host.learns:
                    work = at_host(name, doing, host.learn(rewarded.get(name, {}), scale))
                    learning[name] = group.create_task(work)
    learned = {name: Learned(*task.result()) for name, task in learning.items()}
    means = {turn: noted for of_host in learned.values() for turn, noted in of_host.turns.items()}
    for episode in episodes:
        for turn in episode.turns if episode.error is None else ():
            if turn.id in means:
                turn.info["advantage"], turn.info["kl"] = means[turn.id]
    return learned


# --- learning rates over a run


def lr_scale(schedule: str, warmup: int, steps: int, step: int) -> float:
    """Return the factor of the learning rate in `step`, counted from 0, of `steps`.

    It rises in a line over the first `warmup` steps. From there it is constant, falls in a line, or
    falls along half a cosine, and would reach 0 in the step after the last.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    share = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return 1.0 - share
    return 0.5 * (1.0 + math.cos(math.pi * share))


# --- updates that come to nothing

PATIENCE = 3
"""Steps in a row in which a policy's loss or gradient is not finite, after which a run stops."""


def divergence(skipped: Mapping[str, int], step: int, run: Path) -> UserMistake | None:
    """The error that ends a run after this step; None where it goes on. `skipped` are the steps in
    a row whose update was skipped, of each `host/policy`.
    """
    for policy, times in skipped.items():
        if times >= PATIENCE:
            return UserMistake(
                f"step {step + 1}: loss or gradient of policy {policy} was not finite in"
                f" {times} steps in a row; its weights are those before. Start again with a"
                f" lower lr, or from an earlier checkpoint of {run}"
            )
    return None
