"""Where the weights of a host's policies lie, and the one model below its adapters.

Leaves out: loading them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comas.config.policies import PolicyPlan, Resolved, policies_of
from comas.config.schema import Config, checked
from comas.models.sources import (
    Source,
    adapters_among,
    at_hand,
    beneath,
    is_adapter,
    is_place,
    place_of_model,
)
from comas.types import UserMistake


@dataclass(frozen=True)
class HostWeights:
    """What a host loads."""

    places: Mapping[str, str]
    """Policy -> folder, GGUF file or hub name."""
    adapters: frozenset[str]
    """Policies that are adapters already."""

    def adapting(self, learner: str | None) -> bool:
        """Whether its policies are adapters on one model, or become such."""
        return bool(self.adapters) or learner == "adapters"

    def models(self) -> list[str]:
        """Where the whole models are, a place per policy: of an adapter the one below it."""
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
    found: dict[str, str] = {}
    for plan in resolved.at(name):
        place = _below(resolved.config, plan, weights)
        if Path(place).is_dir():
            place = str(Path(place).resolve())
        found[place] = plan.agents[-1]
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        or_whole = "" if weights.adapters else f", or set hosts.{name}.learner=full"
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            f" share one base; give them hosts of their own{or_whole}"
        )
    return next(iter(found))


def _below(config: Config, plan: PolicyPlan, weights: HostWeights) -> str:
    """Where the whole model is that a policy is, or is an adapter for."""
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
    for key in ("rank", "alpha", "targets"):
        where = f"agents.{name}"
        given = getattr(agent, key)
        if given is None and agent.base is None:
            where = f"hosts.{agent.host}"
            given = getattr(config.hosts[agent.host], key)
        found: Any = getattr(there, key)
        if key == "targets":
            found = sorted(_layers(found))
        if given is not None and not _equal(given, found):
            raise UserMistake(
                f"{where}.{key} is {given}, but the adapter in {folder} has {found}: leave"
                f" {where}.{key} out"
            )


def _layers(targets: Iterable[str]) -> set[str]:
    """The last parts of names of layers."""
    return {target.rpartition(".")[2] for target in targets}


def _equal(given: Any, found: Any) -> bool:
    if isinstance(found, list):
        return _layers(given) == set(found)
    return math.isclose(given, found)
