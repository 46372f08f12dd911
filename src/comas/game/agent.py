"""An agent: a name, a policy at a host, the roles it may take; bound to an episode it can be asked.

Leaves out: what to ask (games) and who learns from it (hosts).
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comas.types import Episode, Fit, Host, HostFailure, Sampling, Turn

Write = Callable[[Sequence[str]], str]
"""A prompt as a function of the history that there is room for."""


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from (run seed, step, question, sample, path ...): by place in the program,
    never by process state.
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Member:
    """One agent of a team, as data. One policy in two members is self-play."""

    name: str
    host: Host
    policy: str
    """The policy's name at its host."""
    roles: tuple[str, ...] | None = None
    """Roles it may be drawn for; None is all."""
    sampling: Sampling = field(default_factory=Sampling)
    frozen: bool = False
    """Never trained: its payoffs are recorded and dropped."""
    system: str | None = None
    """A persona: the system message before everything that it is asked."""

    @property
    def address(self) -> str:
        """`host/policy`."""
        return f"{self.host.name}/{self.policy}"


@dataclass
class Table:
    """What the agents of one episode share: the record, the seed, and the counters that name its
    turns.
    """

    episode: Episode
    seed: int
    """The run's seed."""
    keep: bool
    """Whether hosts file the tokens for learning."""
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Room per reply and role, where the task sets it."""
    heard: Callable[[Turn], None] | None = None
    """Told of each turn when it is complete."""
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class Agent:
    """A member at a table."""

    member: Member
    table: Table

    @property
    def name(self) -> str:
        return self.member.name

    def takes(self, role: str) -> bool:
        """Whether it may be drawn for `role`."""
        return self.member.roles is None or role in self.member.roles

    def ask(
        self,
        role: str,
        prompt: str | Write,
        *,
        history: Sequence[str] = (),
        about: Turn | None = None,
        round: int | None = None,
    ) -> Coroutine[Any, Any, Turn]:
        """Ask for one reply; the turn joins the episode when it is complete.

        `prompt` is a text, or a function of the pieces of `history` for which there is room (oldest
        dropped first). `about` is the turn that this one judges or revises; `round` says in which
        round of the game that is (default: that of `about`). The turn is named here, when `ask` is
        called, by its place below `about`: a game that asks several agents at once names its turns
        in program order, whoever answers first.
        """
        stem = f"{about.id}." if about else f"{self.table.episode.id}/"
        self.table.counts[stem + role] += 1
        name = f"{stem}{role}{self.table.counts[stem + role] - 1}"
        return self._answer(name, role, prompt, list(history), about, _round(about, round))

    async def _answer(
        self,
        turn_id: str,
        role: str,
        prompt: str | Write,
        history: list[str],
        about: Turn | None,
        round: int,
    ) -> Turn:
        table = self.table
        member = self.member
        sampling = member.sampling
        if role in table.max_tokens:
            sampling = replace(sampling, max_tokens=table.max_tokens[role])
        messages, dropped = await self._fit(role, prompt, history, sampling, turn_id)
        began = time.monotonic()
        seed = derive_seed(table.seed, turn_id)
        keep = table.keep and not member.frozen
        try:
            reply = await member.host.ask(
                turn_id, member.policy, messages, sampling, seed, keep, role
            )
        except HostFailure as error:
            raise HostFailure(f"host {member.host.name}, turn {turn_id}: {error}") from error
        turn = Turn(
            id=turn_id,
            agent=member.name,
            policy=member.address,
            role=role,
            prompt=messages[-1]["content"],
            text=reply.text,
            finished=reply.finished,
            version=reply.version,
            about=about.id if about else None,
            round=round,
            tokens=reply.tokens,
            prompt_tokens=reply.prompt_tokens,
            logprob=reply.logprob,
            margin=reply.margin,
            seconds=time.monotonic() - began,
            dropped=dropped,
            thoughts=reply.thoughts,
        )
        table.episode.turns.append(turn)
        if table.heard:
            table.heard(turn)
        return turn

    async def _fit(
        self, role: str, prompt: str | Write, history: list[str], sampling: Sampling, turn_id: str
    ) -> tuple[list[dict[str, str]], int]:
        host = self.member.host
        policy = self.member.policy
        system = self.member.system
        opening = [] if system is None else [{"role": "system", "content": system}]
        fit = Fit(False)
        for dropped in range(len(history) + 1):
            text = prompt if isinstance(prompt, str) else prompt(history[dropped:])
            messages = [*opening, {"role": "user", "content": text}]
            fit = await host.fits(policy, messages, sampling)
            if fit.fits:
                return messages, dropped
            if isinstance(prompt, str):
                break
        known = fit.needed is not None and fit.context is not None
        told = f" ({fit.needed} tokens of {fit.context})" if known else ""
        raise HostFailure(
            f"turn {turn_id}: the prompt and {sampling.max_tokens} tokens of reply do not fit the"
            f" context of {self.member.address}{told}: lower room.{role}, shorten the question, or"
            f" raise hosts.{host.name}.context where the base has room"
        )


def _round(about: Turn | None, said: int | None) -> int:
    return said if said is not None else about.round if about else 0


def takers(agents: Sequence[Agent], role: str) -> list[Agent]:
    """The agents that may be drawn for a role."""
    return [agent for agent in agents if agent.takes(role)]


def choose(agents: Sequence[Agent], rng: random.Random, role: str) -> Agent:
    """Draw an agent for a role, uniformly among those that take it."""
    return rng.choice(takers(agents, role))
