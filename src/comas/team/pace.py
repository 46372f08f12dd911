"""How long discussions take, from a few that are played with short replies: for dry runs.

Leaves out: learning (`training.dry_run`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from comas.game.play import Scene
from comas.types import Episode, HostFailure, Turn

REPLY = 32
"""Tokens after which a reply is cut; in a second play after a quarter of them, so that prompts and
replies are told apart.
"""
PATIENCE = 3.0
"""Seconds of a play above which no larger one follows."""

Play = Callable[[int, int], Awaitable[list[Episode]]]
"""Play so many discussions with replies of at most so many tokens."""


@dataclass(frozen=True)
class Pace:
    """Time and length of discussions that are played side by side."""

    episodes: Sequence[Episode]
    """The episodes that were played last, with cut replies."""
    seconds: float
    """Seconds of one discussion, with replies as long as they are going to be."""
    reply: float
    """Mean tokens of those."""


def capped(scene: Scene, tokens: int) -> Scene:
    """Limit the replies of a scene to so many tokens."""
    room = {role: min(most, tokens) for role, most in scene.room.items()}
    members = [
        replace(m, sampling=replace(m.sampling, max_tokens=min(m.sampling.max_tokens, tokens)))
        for m in scene.members
    ]
    return replace(scene, members=members, max_tokens=room)


async def pace_of(play: Play, most: int, room: Callable[[Turn], int]) -> Pace:
    """Play one discussion, then four times as many while that is quick, at most `most`; `room` is
    the tokens that a reply may have in fact.
    """
    count = 1
    while True:
        began = time.monotonic()
        short = await play(count, REPLY // 4)
        between = time.monotonic()
        episodes = await play(count, REPLY)
        ended = time.monotonic()
        if count >= most or ended - began > PATIENCE:
            break
        count = min(most, 4 * count)
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns:
        raise HostFailure(episodes[0].error or "nobody was asked anything")
    generated = sum(turn.tokens for turn in turns)
    finished = sum(turn.finished for turn in turns)
    # of replies that may be cut anywhere
    mean = generated / finished if finished else float("inf")
    expected = sum(min(room(turn), mean) for turn in turns)
    more = generated - sum(turn.tokens for episode in short for turn in episode.turns)
    seconds = ended - between
    token = max(0.0, seconds - (between - began)) / more if more > 0 else 0.0
    seconds += token * max(0.0, expected - generated)
    return Pace(episodes, seconds / len(episodes), expected / len(turns))


def spoken(seconds: float) -> str:
    """Two digits of hours, minutes or seconds: more a guess does not have."""
    units = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    unit = next((unit for unit, size in units.items() if seconds >= 1.5 * size), "seconds")
    amount = seconds / units[unit]
    return f"{amount:.0f} {unit}" if amount >= 9.5 else f"{amount:.1f} {unit}"
