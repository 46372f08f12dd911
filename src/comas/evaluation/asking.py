"""How an evaluation asks: with one temperature, one top_p and one room per role for all its
systems.

Systems are compared, not the settings under which each of them was trained. Leaves out: what is
asked (`evaluation.spec`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from comas.config.schema import Config
from comas.evaluation.ways import Way
from comas.game.agent import Member
from comas.game.memory import at_start
from comas.game.play import Scene
from comas.types import Sampling, Task


@dataclass(frozen=True)
class Asking:
    """The settings of all replies; room in tokens."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 512
    """Per reply, where neither `room` nor the task says otherwise."""
    room: Mapping[str, int] = field(default_factory=dict)
    """Per reply and role, before the task's own."""

    def scene(self, task: Task, way: Way, members: Sequence[Member], seed: int) -> Scene:
        """A game of these members, played the chosen way."""
        sampling = Sampling(self.temperature, self.top_p, self.max_tokens)
        speaking = [replace(member, sampling=sampling) for member in members]
        if way.alone:
            speaking = [replace(member, roles=None) for member in speaking]
        scene = Scene(way.method, task, speaking, seed, way.options, max_tokens=self.room)
        return at_start(scene)


def asking_of(config: Config) -> Asking:
    """As a config says that its own team is asked."""
    return Asking(config.eval_temperature, config.eval_top_p, config.max_tokens, dict(config.room))


def asked_otherwise(
    systems: Sequence[tuple[str, Config]],
    roles: Collection[str],
    bounded: Collection[str] = (),
) -> Iterator[str]:
    """A note for each system that is asked in another way than its own config says, or that keeps a
    context or a way of thinking of its own, which belong to its models.

    Rooms are compared of the `roles` that are asked, `max_tokens` where one of them has no room:
    neither of a config nor, as those that are `bounded`, of the tasks.
    """
    first_name, first = systems[0]
    used = asking_of(first)
    for name, config in systems[1:]:
        own = asking_of(config)
        keys = ["temperature", "top_p", "max_tokens", "room"]
        if all(role in bounded or (role in own.room and role in used.room) for role in roles):
            keys.remove("max_tokens")
        for key in keys:
            configured = _of_roles(getattr(own, key), roles)
            asked = _of_roles(getattr(used, key), roles)
            if configured != asked:
                yield (
                    f"{name}: {NAMES[key]} of its config is {configured}; asked with {asked}, as"
                    f" {first_name}"
                )
        for key in ("context", "thinking"):
            here = _of_hosts(config, key)
            there = _of_hosts(first, key)
            if here != there:
                yield (
                    f"{name}: {key} is {_said(here)}, of {first_name} {_said(there)}: each is asked"
                    " with its own"
                )


def _of_roles(value: Any, roles: Collection[str]) -> Any:
    """A room per role without roles that nobody asks; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    rooms = cast("Mapping[str, int]", value)
    return {role: tokens for role, tokens in rooms.items() if role in roles}


NAMES = {
    "temperature": "eval_temperature",
    "top_p": "eval_top_p",
    "max_tokens": "max_tokens",
    "room": "room",
}


def _of_hosts(config: Config, key: str) -> list[object]:
    """The values of a key at the hosts where agents are."""
    hosts = {agent.host for agent in config.agents.values()}
    values = {getattr(config.hosts[name], key) for name in hosts}
    return sorted(values, key=repr)


def _said(values: Sequence[object]) -> str:
    return ", ".join("the base's" if value is None else str(value) for value in values)
