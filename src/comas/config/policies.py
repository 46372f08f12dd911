"""Policies of a config: which agent speaks with which, where each starts, how it learns.

What a base name means is asked in `models.sources` and here only. Leaves out: loading weights
(`config.weights`), what else a run is (`config.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from comas.config.schema import ONLY_ADAPTERS, Config
from comas.models.sources import Source, knows_few_words, source_of
from comas.seams import AdapterSpec

RANK = 16
"""Default rank of new adapters."""


@dataclass(frozen=True)
class PolicyPlan:
    """Where a policy starts and how it learns."""

    name: str
    host: str
    source: Source
    adapter: AdapterSpec
    """Used where it gets a new adapter; an adapter that is its base keeps its own shape."""
    lr: float | None
    """Learning rate of its own; None is that of its host."""
    learns: bool
    """Whether an agent that speaks with it is trained; never behind an API."""
    agents: tuple[str, ...]
    behind: str | None = None
    """The policy of which this is an earlier self."""
    lag: int = 0
    """Lag in steps: the weights are those of the last multiple of so many steps."""

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
        """Whether its weights are ours; behind an API, and at a host of a user's own kind, they are
        somebody else's.
        """
        return self.source.kind != "api"

    @property
    def few_words(self) -> bool:
        """Whether it knows the words of its task only."""
        return knows_few_words(self.source)


def sources_of(config: Config) -> dict[str, Source]:
    """Decide what each base of a config means: name as written -> source; bases behind an API, and
    of a host of a user's own kind, are left out.
    """
    here = {name for name, host in config.hosts.items() if host.here}
    bases = [config.hosts[name].base for name in here]
    bases += [a.base for a in config.agents.values() if a.base is not None and a.host in here]
    return {base: source_of(base) for base in bases}


def bases_of(config: Mapping[str, Any]) -> set[str]:
    """Name the bases of all policies, as the config.toml of a run has them."""
    bases: dict[str, str] = {}
    hosts: dict[str, str] = {}
    for name, agent in config["agents"].items():
        policy = agent.get("policy") or name
        hosts[policy] = agent["host"]
        if agent.get("base"):
            bases[policy] = agent["base"]
    return {bases.get(policy) or config["hosts"][host]["base"] for policy, host in hosts.items()}


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
        own_keys = {
            key: next((v for a in agents if (v := getattr(a, key)) is not None), None)
            for key in ("base", "lr", *ONLY_ADAPTERS)
        }
        base = own_keys["base"] or host.base
        rank = own_keys["rank"] or host.rank or RANK
        targets = own_keys["targets"] or host.targets
        plans[policy] = PolicyPlan(
            name=policy,
            host=agents[0].host,
            source=sources[base] if host.here else source_of(base, api=True),
            adapter=AdapterSpec(rank, 2.0 * rank, tuple(targets) if targets else None),
            lr=own_keys["lr"],
            learns=host.built_by != "api" and not all(agent.frozen for agent in agents),
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
