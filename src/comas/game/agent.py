"""An agent: a name, a policy at a host, the roles it may take; bound to an episode it can be asked.

Leaves out: what to ask (games) and who learns from it (hosts).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from comas.game.weighing import check_choices
from comas.types import (
    Ask,
    CannotBePlayed,
    Episode,
    Fit,
    Host,
    HostFailure,
    Kind,
    NoRoom,
    NoSystemRole,
    Refused,
    Reply,
    Role,
    Sampling,
    ToldToWait,
    Turn,
    UserMistake,
    Weighs,
)

Write = Callable[[Sequence[str]], str]
"""A prompt as a function of the history that fits."""
Result = TypeVar("Result")
Message = Mapping[str, str]
"""`role` and `content`, as chat templates read them."""


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from (run seed, step, question, sample, path ...): by place in the program,
    never by process state.
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class TeamMember:
    """One agent of a team, as data. One policy in two members is self-play."""

    name: str
    host: Host
    policy: str
    """The policy's name at its host."""
    roles: tuple[str, ...] | None = None
    """Roles it may be drawn for; None is all."""
    sampling: Sampling = field(default_factory=Sampling)
    frozen: bool = False
    """Never trained: its rewards are recorded and dropped."""
    system: str | None = None
    """A persona: the system message before everything that it is asked."""
    few_words: bool = False
    """Whether its policy descends from a shipped model, which knows the words of its task only."""

    @property
    def address(self) -> str:
        """`host/policy`."""
        return f"{self.host.name}/{self.policy}"

    @property
    def solves(self) -> bool:
        """Whether it may be drawn for solutions."""
        return self.roles is None or "solution" in self.roles


@dataclass
class EpisodeRecord:
    """State that the agents of one episode share: the record, the seed, and the counters that name
    its turns.
    """

    episode: Episode
    seed: int
    """The run's seed."""
    keep: bool
    """Whether hosts file the tokens for learning."""
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens per reply, by role, where the task sets them."""
    on_turn: Callable[[Turn], None] | None = None
    """Called with each turn when it is complete."""
    counts: Counter[str] = field(default_factory=Counter[str])
    roles: Mapping[str, Role] = field(default_factory=dict[str, Role])
    """The roles of the game; any other is one of no kind."""


@dataclass(frozen=True)
class Asked:
    """Request to an agent, before it is known how much of it fits."""

    role: str
    prompt: str | Write
    history: list[str]
    exchanges: list[Message]
    """Messages of a dialogue: in turn a reply and what came back."""
    tools: str | None = None
    choices: tuple[str, ...] = ()
    """Replies whose log-probs are wanted; none: one is sampled."""
    common: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) and not callable(self.prompt):
            kind = type(self.prompt).__name__
            example = f" ({kind}.prompt?)" if hasattr(self.prompt, "prompt") else ""
            raise CannotBePlayed(
                f"the prompt of role {self.role!r} is a {kind}{example}: a text is wanted, or a"
                " function of the pieces of history"
            )

    @property
    def droppable(self) -> int:
        """Count the pieces that can be left out."""
        pieces = 0 if isinstance(self.prompt, str) else len(self.history)
        return pieces + len(self.exchanges) // 2

    def messages(self, dropped: int) -> list[Message]:
        """Write the messages to the agent, without the oldest `dropped` pieces."""
        of_history = min(dropped, len(self.history)) if callable(self.prompt) else 0
        of_dialogue = 2 * (dropped - of_history)
        write = self.prompt
        text = write if isinstance(write, str) else write(self.history[of_history:])
        return [{"role": "user", "content": text}, *self.exchanges[of_dialogue:]]


@dataclass(frozen=True)
class Agent:
    """A member of a team."""

    member: TeamMember
    record: EpisodeRecord

    @property
    def name(self) -> str:
        return self.member.name

    def takes(self, role: str) -> bool:
        """Whether it may be drawn for `role`."""
        return self.member.roles is None or role in self.member.roles

    def kind_of(self, role: str) -> Kind:
        """The kind of a role in this game."""
        return self.record.roles.get(role, Role()).kind

    def ask(
        self,
        role: str,
        prompt: str | Write,
        *,
        history: Sequence[str] = (),
        about: Turn | None = None,
        round: int | None = None,
        exchanges: Sequence[Message] = (),
        tools: str | None = None,
    ) -> Coroutine[Any, Any, Turn]:
        """Ask for one reply; the turn joins the episode when it is complete.

        `prompt` is a text, or a function of the pieces of `history` that fit (oldest dropped
        first). `about` is the turn that this one judges or revises; `round` says in which round of
        the game that is (default: that of `about`). The turn is named here, when `ask` is called,
        by its place below `about`: a game that asks several agents at once names its turns in
        program order, whoever answers first.

        In a dialogue (`game.dialogue`) `exchanges` has what followed the prompt: in turn a reply of
        this agent's and what came back, of which the oldest two are dropped where they do not fit.
        `tools` are the schemas of tools as JSON, for chat templates that show them.
        """
        asked = Asked(role, prompt, list(history), list(exchanges), tools)
        return self._answer(self._name(role, about), asked, about, round_of(about, round))

    def weigh(
        self,
        role: str,
        prompt: str | Write,
        choices: Sequence[str],
        *,
        history: Sequence[str] = (),
        about: Turn | None = None,
        round: int | None = None,
        common: int = 0,
    ) -> Coroutine[Any, Any, Turn]:
        """Ask how probable each of these replies is; the turn joins the episode like one that is
        asked for, and nothing is generated.

        `info["choices"]` are the choices, `info["weights"]` their log-probs in nats at temperature
        1, whatever the agent samples at; `game.weighing` makes shares and expectations of them. The
        turn's text is the choice that its seed draws by these weights, so that a reward for the
        turn teaches that word; a method that gives no reward for it teaches nothing. `prompt`,
        `history`, `about` and `round` are those of `ask`. `common` is that of `Ask`, and saves time
        alone.
        """
        name = self._name(role, about)
        check_choices(choices, name)
        asked = Asked(role, prompt, list(history), [], choices=tuple(choices), common=common)
        return self._answer(name, asked, about, round_of(about, round))

    def tell(
        self,
        role: str,
        prompt: str | Sequence[Message],
        text: str,
        *,
        about: Turn | None = None,
    ) -> Coroutine[Any, Any, Turn]:
        """Give this agent the words of a turn, which it can be rewarded for like one of its own.

        `prompt` is a text, or the messages of a dialogue that ends with the user's. The turn is
        named as one that is asked for, and has `info["told"] = True`; it is learnt at temperature
        1, whatever the agent samples at.
        """
        return self._told(self._name(role, about), role, prompt, text, about)

    def _name(self, role: str, about: Turn | None) -> str:
        """The id of the next turn in this role below `about`; a role that ends in a digit is parted
        from its count, or the eleventh `step` would be named as the first `step1`.
        """
        stem = f"{about.id}." if about else f"{self.record.episode.id}/"
        between = "-" if role.endswith(tuple("0123456789-")) else ""
        self.record.counts[stem + role] += 1
        return f"{stem}{role}{between}{self.record.counts[stem + role] - 1}"

    async def _told(
        self,
        turn_id: str,
        role: str,
        prompt: str | Sequence[Message],
        text: str,
        about: Turn | None,
    ) -> Turn:
        member = self.member
        try:
            tell = member.host.tell
        except AttributeError as error:  # a host of somebody's own that answers, and no more
            raise UserMistake(
                f"turn {turn_id}: agent {member.name} cannot be given words: its host"
                f" {member.host.name} has no `tell`; give role {role!r} to agents of other hosts"
            ) from error
        messages = self._opening()
        messages += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        ask = Ask(turn_id, member.policy, messages, role, self._keeps)
        began = time.monotonic()
        try:
            reply = await tell(ask, text)
        except NoSystemRole as error:
            raise self._without_persona(error) from error
        turn = self._turn(ask, reply, about, round_of(about, None), time.monotonic() - began)
        turn.info["told"] = True
        return self._record(turn)

    async def _answer(self, turn_id: str, asked: Asked, about: Turn | None, round: int) -> Turn:
        host = self.member.host
        choices = asked.choices
        if choices and not isinstance(host, Weighs):
            raise UserMistake(
                f"turn {turn_id}: agent {self.name} cannot be asked how probable words are: its"
                f" host {host.name} has no `weigh`; give role {asked.role!r} to agents of other"
                " hosts (agents.<name>.roles), or have words written instead"
            )
        most = self.record.max_tokens.get(asked.role, self.member.sampling.max_tokens)
        if choices:  # a token is a byte at least
            most = min(most, max(len(choice.encode()) for choice in choices))
        sampling = with_room(self.member.sampling, most)
        messages, dropped = await self._fit(asked, sampling, turn_id)
        seed = derive_seed(self.record.seed, turn_id)
        policy = self.member.policy
        keeps = self._keeps
        ask = Ask(turn_id, policy, messages, asked.role, keeps, sampling, seed, asked.common)
        began = time.monotonic()
        try:
            if choices and isinstance(host, Weighs):
                reply = await host.weigh(ask, choices)
            else:
                reply = await host.ask(ask)
        except HostFailure as error:
            kinds = (each for each in (NoRoom, Refused, ToldToWait) if isinstance(error, each))
            raise next(kinds, HostFailure)(f"host {host.name}, turn {turn_id}: {error}") from error
        turn = self._turn(ask, reply, about, round, time.monotonic() - began)
        turn.dropped = dropped
        if choices:
            assert reply.weights is not None, f"host {host.name} weighed nothing"
            turn.info |= {"choices": list(choices), "weights": list(reply.weights)}
        return self._record(turn)

    @property
    def _keeps(self) -> bool:
        """Whether the host files the tokens for learning."""
        return self.record.keep and not self.member.frozen

    def _turn(self, ask: Ask, reply: Reply, about: Turn | None, round: int, seconds: float) -> Turn:
        """The turn that a reply makes; `seconds` is how long it took."""
        return Turn(
            id=ask.turn,
            agent=self.member.name,
            policy=self.member.address,
            role=ask.role,
            prompt=ask.messages[-1]["content"],
            text=reply.text,
            finished=reply.finished,
            version=reply.version,
            about=about.id if about else None,
            round=round,
            tokens=reply.tokens,
            prompt_tokens=reply.prompt_tokens,
            logprob=reply.logprob,
            margin=reply.margin,
            seconds=seconds,
            thoughts=reply.thoughts,
            kind=self.kind_of(ask.role),
        )

    def _record(self, turn: Turn) -> Turn:
        """Put a complete turn into the episode, and tell who listens."""
        self.record.episode.turns.append(turn)
        if self.record.on_turn:
            self.record.on_turn(turn)
        return turn

    def _without_persona(self, error: NoSystemRole) -> UserMistake:
        """Make an error of what a chat template has against the persona, naming its key."""
        return UserMistake(
            f"agents.{self.name}.system: {error}: leave it out, or take another base"
        )

    def _opening(self) -> list[Message]:
        """The system message, where the agent has a persona."""
        system = self.member.system
        return [] if system is None else [{"role": "system", "content": system}]

    async def _fit(
        self, asked: Asked, sampling: Sampling, turn_id: str
    ) -> tuple[list[Message], int]:
        """The messages of a request that fit, and how many pieces were dropped: of the history
        first, then of the dialogue.
        """
        host = self.member.host
        policy = self.member.policy
        opening = self._opening()
        if asked.tools is not None:
            opening.append({"role": "tools", "content": asked.tools})
        fit = Fit(False)
        for dropped in range(asked.droppable + 1):
            messages = [*opening, *asked.messages(dropped)]
            try:
                fit = await host.fits(policy, messages, sampling)
            except NoSystemRole as error:
                raise self._without_persona(error) from error
            if fit.fits:
                return messages, dropped
        sizes_known = fit.needed is not None and fit.context is not None
        sizes = f" ({fit.needed} tokens of {fit.context})" if sizes_known else ""
        raise NoRoom(
            f"turn {turn_id}: the prompt and {sampling.max_tokens} tokens of reply do not fit the"
            f" context of {self.member.address}{sizes}: lower room.{asked.role}, shorten the"
            f" question, or raise hosts.{host.name}.context where the base allows it"
        )


@lru_cache(maxsize=256)
def with_room(sampling: Sampling, max_tokens: int) -> Sampling:
    """Draw replies in the same way, with so many tokens; every turn asks for it, so that it is
    kept.
    """
    return replace(sampling, max_tokens=max_tokens)


def round_of(about: Turn | None, own_round: int | None) -> int:
    """The round of a turn: as given, or that of the turn that it is about."""
    return own_round if own_round is not None else about.round if about else 0


def takers(agents: Sequence[Agent], role: str) -> list[Agent]:
    """The agents that may be drawn for a role; an error where none takes it."""
    able = [agent for agent in agents if agent.takes(role)]
    if not able:
        raise CannotBePlayed(
            f"no agent takes role {role!r}, which the game asks for: see agents.<name>.roles"
        )
    return able


def choose(agents: Sequence[Agent], rng: random.Random, role: str) -> Agent:
    """Draw an agent for a role, uniformly among those that take it; an error where none does."""
    return rng.choice(takers(agents, role))


async def together(parts: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run parts of a game side by side, so that their host answers all of them in one batch; what
    they return, in their order.
    """
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(part) for part in parts]
    return [part.result() for part in running]
