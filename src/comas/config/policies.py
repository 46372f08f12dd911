"""Policies, resolved once: where each starts, how it learns, who speaks with it, where its weights
lie, and the one model below the adapters of a host.

Everybody else reads `Resolved`: what a base name means is asked in `models.sources` and this folder
only, and so is which policy an agent has. Leaves out: loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comas.config.schema import ONLY_ADAPTERS, Config
from comas.models.sources import (
    Source,
    adapters_among,
    at_hand,
    beneath,
    is_place,
    knows_few_words,
    place_of_model,
    recorded_base,
    source_of,
)
from comas.storage.run import Run
from comas.types import Method, Task, UserMistake

RANK = 16
"""Default rank of new adapters."""


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
    """Its own learning rate; None is that of its host."""
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
        for source in self.sources():
            if source.kind == "run" and source.step is not None:
                yield source.run(), source.step


def sources_of(config: Config) -> dict[str, Source]:
    """Decide what each base of a config means: name as written -> source; bases behind an API, and
    of a host of the caller's own, are left out.
    """
    here = {name for name, host in config.hosts.items() if host.here}
    bases = [config.hosts[name].base for name in here]
    bases += [a.base for a in config.agents.values() if a.base is not None and a.host in here]
    return {base: source_of(base) for base in bases}


def policies_of(
    config: Config, sources: Mapping[str, Source] | None = None
) -> tuple[PolicyPlan, ...]:
    """The policies of a config, in the order of the agents that name them first; `sources` are
    those of `sources_of`.

    What one agent of a policy says of it holds for all of them; `Config` has checked that they
    agree.
    """
    sources = sources_of(config) if sources is None else sources
    speakers: dict[str, list[str]] = {}
    for name, agent in config.agents.items():
        speakers.setdefault(agent.policy_name(name), []).append(name)
    plans: dict[str, PolicyPlan] = {}
    for policy, names in speakers.items():
        agents = [config.agents[name] for name in names]
        host = config.hosts[agents[0].host]
        said = {
            key: next((v for a in agents if (v := getattr(a, key)) is not None), None)
            for key in ("base", "lr", *ONLY_ADAPTERS)
        }
        base = said["base"] or host.base
        rank = said["rank"] or host.rank or RANK
        targets = said["targets"] or host.targets
        plans[policy] = PolicyPlan(
            name=policy,
            host=agents[0].host,
            source=sources[base] if host.here else source_of(base, api=True),
            adapter=Shape(
                rank,
                said["alpha"] or host.alpha or 2.0 * rank,
                tuple(targets) if targets else None,
            ),
            lr=said["lr"],
            learns=host.api is None and not all(agent.frozen for agent in agents),
            agents=tuple(names),
        )
    for name, agent in config.agents.items():
        if agent.lag is not None and agent.policy is not None:
            # an earlier self has all that its policy has
            plans[name] = replace(
                plans[agent.policy],
                name=name,
                agents=plans[name].agents,
                learns=False,
                behind=agent.policy,
                lag=agent.lag,
            )
    return tuple(plans.values())


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
        place = weights.places[plan.name]
        if plan.name in weights.adapters:
            for agent in plan.agents:
                _agree(resolved.config, agent, place)
            place = at_hand(recorded_base(place))
        place = place_of_model(place)
        if is_place(place) and not Path(place).exists():
            if plan.name not in weights.adapters:
                raise UserMistake(f"base {plan.source.name!r}: no such folder")
            raise UserMistake(
                f"base {plan.source.name!r} is an adapter for {place!r}, and there is no such"
                " folder: name where that lies as base_model_name_or_path in its"
                " adapter_config.json"
            )
        places[str(Path(place).resolve()) if Path(place).is_dir() else place] = plan.agents[-1]
    if len(places) > 1:
        (one, first), (other, second), *_ = places.items()
        or_whole = "" if weights.adapters else f", or set hosts.{name}.learner=full"
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            f" share one base; give them hosts of their own{or_whole}"
        )
    return next(iter(places))


def _agree(config: Config, name: str, folder: str) -> None:
    """Refuse a rank, alpha or targets of an agent, or of its host, that are not those of the
    adapter in this folder, which stays what it is.
    """
    from comas.learners.lora.peft_folder import spec_of

    agent = config.agents[name]
    shared = config.hosts[agent.host]
    adapter = spec_of(folder)
    for key in ONLY_ADAPTERS:
        where = f"agents.{name}"
        given = getattr(agent, key)
        # a host's shape is for new adapters, unless the adapter is the host's own base
        if given is None and agent.base is None:
            where = f"hosts.{agent.host}"
            given = getattr(shared, key)
        there: Any = getattr(adapter, key)
        if key == "targets" and given is not None:
            given = sorted({layer.rpartition(".")[2] for layer in given})
            there = sorted({layer.rpartition(".")[2] for layer in there})
        if given not in (None, there):
            raise UserMistake(
                f"{where}.{key} is {given}, but the adapter in {folder} has {there}: leave"
                f" {where}.{key} out"
            )
