"""Policies, resolved once: where each starts, how it learns, who speaks with it, where its weights
lie, and the one model below the adapters of a host.

Everybody else reads `Resolved`: what a base name means is asked in `models.sources` and this folder
only, and so is which policy an agent has. Leaves out: loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comas.config.schema import ONLY_ADAPTERS, AgentConfig, Config, HostConfig, checked
from comas.models.sources import (
    Source,
    adapters_among,
    at_hand,
    beneath,
    checkpoints,
    is_adapter,
    is_place,
    knows_few_words,
    place_of_model,
    source_of,
)
from comas.storage.run import Run
from comas.types import Method, Task, UserMistake

RANK = 16
"""Default rank of new adapters."""
DEPTH = 100
"""Runs that started from runs, after which they are taken to start from each other."""


@dataclass(frozen=True)
class Shape:
    """Rank, scale and layers of a new adapter."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None
    """None is every linear layer but the head."""


@dataclass(frozen=True)
class PolicyPlan:
    """Where a policy starts and how it learns."""

    name: str
    host: str
    source: Source
    adapter: Shape
    """Used where it gets a new adapter; an adapter that is its base keeps its own shape."""
    lr: float | None
    """None where no recipe is known for it (`resolve` asks for one where it is needed)."""
    learns: bool
    """Whether an agent that speaks with it is trained; never behind an API."""
    agents: tuple[str, ...]
    behind: str | None = None
    """The policy of which this is an earlier self."""
    lag: int = 0
    """Its weights are those of the last multiple of so many steps."""

    @property
    def first(self) -> str:
        """The policy whose weights it starts with."""
        return self.name if self.behind is None else self.behind

    @property
    def address(self) -> str:
        """`host/policy`."""
        return f"{self.host}/{self.name}"

    @property
    def here(self) -> bool:
        """Whether its weights are ours; behind an API, and at a host of the caller's own, they are
        somebody else's.
        """
        return self.source.kind != "api"

    @property
    def few_words(self) -> bool:
        """Whether it knows the words of its task only."""
        return knows_few_words(self.source)


@dataclass(frozen=True, eq=False)
class Resolved:
    """A config with nothing left open, and what its names stand for."""

    config: Config
    method: Method
    task: Task
    policies: tuple[PolicyPlan, ...]
    """In the order of the agents that name them first."""

    def at(self, host: str) -> list[PolicyPlan]:
        """The policies of one host."""
        return [plan for plan in self.policies if plan.host == host]

    def with_config(self, config: Config) -> Resolved:
        """Replace settings that change nothing about the policies."""
        return replace(self, config=config)

    def sources(self) -> list[Source]:
        """List what the policies with weights here start from, each once, sorted by name."""
        found = {plan.source.name: plan.source for plan in self.policies if plan.here}
        return [found[name] for name in sorted(found)]

    def base_names(self) -> list[str]:
        """List the names of `sources`."""
        return [source.name for source in self.sources()]

    def checkpoints(self) -> Iterator[tuple[Run, int]]:
        """List the checkpoints of runs among `sources`."""
        return checkpoints(self.base_names())


def base_of(agent: AgentConfig, host: HostConfig) -> str:
    """The base of an agent: the host's unless it has another."""
    return host.base if agent.base is None else agent.base


def policies_of(config: Config) -> tuple[PolicyPlan, ...]:
    """The policies of a config; an error where agents of one policy say different things of it."""
    speakers: dict[str, list[str]] = {}
    for name, agent in config.agents.items():
        speakers.setdefault(agent.policy_name(name), []).append(name)
    plans = [_plan(config, policy, agents) for policy, agents in speakers.items()]
    by_name = {plan.name: plan for plan in plans}
    return tuple(_earlier(config, plan, by_name) for plan in plans)


def _earlier(config: Config, plan: PolicyPlan, plans: Mapping[str, PolicyPlan]) -> PolicyPlan:
    """The plan, and where it is one of an earlier self, with all that its policy has."""
    agent = config.agents[plan.agents[0]]
    if agent.lag is None or agent.policy is None:
        return plan
    return replace(
        plans[agent.policy],
        name=plan.name,
        agents=plan.agents,
        learns=False,
        behind=agent.policy,
        lag=agent.lag,
    )


def _plan(config: Config, policy: str, names: Sequence[str]) -> PolicyPlan:
    agents = [config.agents[name] for name in names]
    name = agents[0].host
    host = config.hosts[name]
    base = base_of(agents[0], host)
    shape = _shape(agents[0], host)
    for other, agent in zip(names, agents, strict=True):
        if base_of(agent, host) != base:
            raise UserMistake(
                f"agents.{other}.base is {base_of(agent, host)!r}, but policy {policy} has base"
                f" {base!r} already"
            )
        if _shape(agent, host) != shape:
            raise UserMistake(
                f"agents.{other} has another rank, alpha or targets than others of policy {policy}"
            )
    source = source_of(base, not host.here)
    rates = [agent.lr for agent in agents if agent.lr is not None]
    all_frozen = all(agent.frozen for agent in agents)
    return PolicyPlan(
        name=policy,
        host=name,
        source=with_origin(source),
        adapter=shape,
        lr=rates[0] if rates else host.lr or config.lr,
        learns=host.api is None and not all_frozen,
        agents=tuple(names),
    )


def _shape(agent: AgentConfig, host: HostConfig) -> Shape:
    rank = agent.rank or host.rank or RANK
    alpha = agent.alpha or host.alpha or 2.0 * rank
    targets = agent.targets or host.targets
    return Shape(rank, alpha, tuple(targets) if targets else None)


def with_origin(source: Source, depth: int = DEPTH) -> Source:
    """Fill in the origin of a source that is a run: the bases at the beginning of its policies."""
    if source.kind != "run":
        return source
    if depth == 0:
        raise UserMistake(f"base {source.name!r}: runs that start from each other")
    config = checked(source.run().config())
    bases: set[str] = set()
    for agent in config.agents.values():
        host = config.hosts[agent.host]
        if host.here:
            bases.add(base_of(agent, host))
    origin: set[str] = set()
    for base in bases:
        origin |= with_origin(source_of(base), depth - 1).origin
    return replace(source, origin=frozenset(origin))


def trained_whole(source: Source) -> bool:
    """Whether policies from there are whole models that were trained as such: shipped models, and
    those of runs that did so.
    """
    if source.kind == "run":
        hosts = source.run().config()["hosts"].values()
        return all(host.get("learner", "full") == "full" for host in hosts)
    return source.kind == "seed"


def with_copies(resolved: Resolved) -> Config:
    """The config in which agents that start from the same base at the same host share a policy;
    the policies of a run differ, and one that earlier selves lag behind stays by itself.
    """
    agents = dict(resolved.config.agents)
    followed = {agent.policy for agent in agents.values() if agent.lag is not None}
    first: dict[tuple[str, str], str] = {}
    for plan in resolved.policies:
        own = [name for name in plan.agents if agents[name].policy is None]
        if plan.source.kind == "run" or not own:
            continue
        if plan.name in followed:
            policy = plan.name
        else:
            policy = first.setdefault((plan.host, plan.source.name), own[0])
        # what of a policy is trained, and how fast, is the same for all who speak with it
        learner = agents[policy].model_dump(include={"lr", *ONLY_ADAPTERS})
        copied = {**learner, "policy": policy}
        agents |= {name: agents[name].model_copy(update=copied) for name in own}
    return resolved.config.model_copy(update={"agents": agents})


@dataclass(frozen=True)
class HostWeights:
    """Weights that a host loads."""

    places: Mapping[str, str]
    """Policy -> folder, GGUF file or hub name."""
    adapters: frozenset[str]
    """Policies that are adapters already."""

    def adapting(self, learner: str | None) -> bool:
        """Whether its policies are adapters on one model, or become such."""
        return bool(self.adapters) or learner == "adapters"

    def models(self) -> list[str]:
        """Find the whole model of each policy; of an adapter the model below it."""
        return [beneath(place) for place in self.places.values()]


def weights_at(
    plans: Iterable[PolicyPlan], checkpoint: Path | None = None, ask_hub: bool = True
) -> HostWeights:
    """Find the weights of policies, in `checkpoint` where one is given; behind an API there are
    none.
    """
    places: dict[str, str] = {}
    for plan in plans:
        if not plan.here:
            continue
        if checkpoint is not None:
            places[plan.name] = str(checkpoint / plan.name)
        else:
            places[plan.name] = plan.source.weights_of(plan.first, ask_hub)
    return HostWeights(places, frozenset(adapters_among(places)))


def model_below(resolved: Resolved, name: str, weights: HostWeights, learn: bool) -> str | None:
    """The one model below all adapters of a host; None where each policy has a model of its own."""
    learner = resolved.config.hosts[name].learner
    if weights.adapters and learn and learner == "full":
        first = min(weights.places[policy] for policy in weights.adapters)
        raise UserMistake(
            f"base {first!r} is an adapter: set hosts.{name}.learner=adapters, or give a whole"
            " model"
        )
    if not weights.adapting(learner if learn else None):
        return None
    places: dict[str, str] = {}
    for plan in resolved.at(name):
        place = _below(resolved.config, plan, weights)
        if Path(place).is_dir():
            place = str(Path(place).resolve())
        places[place] = plan.agents[-1]
    if len(places) > 1:
        (one, first), (other, second), *_ = places.items()
        or_whole = "" if weights.adapters else f", or set hosts.{name}.learner=full"
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            f" share one base; give them hosts of their own{or_whole}"
        )
    return next(iter(places))


def _below(config: Config, plan: PolicyPlan, weights: HostWeights) -> str:
    """Find the whole model that a policy is, or is an adapter for."""
    base = plan.source.name
    if plan.name not in weights.adapters:
        place = place_of_model(weights.places[plan.name])
        if _lost(place):
            raise UserMistake(f"base {base!r}: no such folder")
        return place
    for agent in plan.agents:
        _agree(config, agent, weights.places[plan.name])
    below = _began(plan.source, plan.name)
    place = place_of_model(at_hand(below))
    if _lost(place):
        raise UserMistake(
            f"base {base!r} is an adapter for {below!r}, and there is no such folder: name where"
            " that lies as base_model_name_or_path in its adapter_config.json"
        )
    return place


def _lost(place: str) -> bool:
    return is_place(place) and not Path(place).exists()


def _began(source: Source, policy: str) -> str:
    """The whole model below an adapter that a policy of `source` is; through runs of runs, each of
    which knows where it began.
    """
    if source.kind != "run":
        return source.below or source.name
    # at whatever step: what it is does not change
    place = replace(source, step=None).weights_of(policy)
    if not is_adapter(place):
        return source.weights_of(policy)
    name = source.held_as(policy)
    plans = policies_of(checked(source.run().config()))
    earlier = next(plan for plan in plans if plan.name == name)
    return _began(earlier.source, name)


def _agree(config: Config, name: str, folder: str) -> None:
    """An adapter stays what it is: an error where this agent, or the host whose base it is, is
    given another shape.
    """
    from comas.learners.lora.peft_folder import spec_of

    agent = config.agents[name]
    there = spec_of(folder)
    for key in ONLY_ADAPTERS:
        where = f"agents.{name}"
        given = getattr(agent, key)
        if given is None and agent.base is None:
            where = f"hosts.{agent.host}"
            given = getattr(config.hosts[agent.host], key)
        found: Any = getattr(there, key)
        if given is None:
            continue
        if key == "targets":
            found = sorted(_layers(found))
            agrees = _layers(given) == set(found)
        else:
            agrees = math.isclose(given, found)
        if not agrees:
            raise UserMistake(
                f"{where}.{key} is {given}, but the adapter in {folder} has {found}: leave"
                f" {where}.{key} out"
            )


def _layers(targets: Iterable[str]) -> set[str]:
    """The last parts of names of layers."""
    return {target.rpartition(".")[2] for target in targets}
