"""Where the weights of policies lie: folders, GGUF files or names on the hub, and the one model
below all adapters of a host.

Leaves out: what a base name means (`models.sources`), loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comas.config.plan import Plan
from comas.config.policies import PolicyPlan
from comas.config.schema import ONLY_ADAPTERS, Config
from comas.models.sources import (
    adapters_among,
    at_hand,
    beneath,
    check_place,
    is_place,
    place_of_model,
    recorded_base,
)
from comas.types import UserMistake


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
    policies: Iterable[PolicyPlan], checkpoint: Path | None = None, ask_hub: bool = True
) -> HostWeights:
    """Find the weights of policies, in `checkpoint` where one is given; behind an API there are
    none.
    """
    places: dict[str, str] = {}
    for policy in policies:
        if not policy.here:
            continue
        if checkpoint is not None:
            places[policy.name] = str(checkpoint / policy.name)
        else:
            places[policy.name] = policy.source.weights_of(policy.first, ask_hub)
    return HostWeights(places, frozenset(adapters_among(places)))


def model_below(plan: Plan, name: str, weights: HostWeights) -> str | None:
    """The one model below all adapters of a host; None where each policy has a model of its own."""
    learner = plan.config.hosts[name].learner if plan.learns else None
    if weights.adapters and learner == "full":
        first = min(weights.places[policy] for policy in weights.adapters)
        raise UserMistake(
            f"base {first!r} is an adapter: set hosts.{name}.learner=adapters, or give a whole"
            " model"
        )
    if not weights.adapting(learner):
        return None
    places: dict[str, str] = {}
    for policy in plan.at(name):
        model = weights.places[policy.name]
        if policy.name in weights.adapters:
            for agent in policy.agents:
                _agree(plan.config, agent, model)
            model = at_hand(recorded_base(model))
        model = place_of_model(model)
        if policy.name not in weights.adapters:
            check_place(model)
        elif is_place(model) and not Path(model).exists():
            raise UserMistake(
                f"base {policy.source.name!r} is an adapter for {model!r}, and there is no such"
                " folder: name where that lies as base_model_name_or_path in its"
                " adapter_config.json"
            )
        places[str(Path(model).resolve()) if Path(model).is_dir() else model] = policy.agents[-1]
    if len(places) > 1:
        (one, first), (other, second), *_ = places.items()
        or_whole = "" if weights.adapters else f", or set hosts.{name}.learner=full"
        raise UserMistake(
            f"agents {first} and {second} of host {name} start from {one!r} and {other!r}: adapters"
            f" share one base; give them hosts of their own{or_whole}"
        )
    return next(iter(places))


def _agree(config: Config, name: str, folder: str) -> None:
    """Refuse a rank or targets of an agent, or of its host, that are not those of the
    adapter in this folder, which stays what it is.
    """
    from comas.learners.lora.peft_folder import spec_of

    agent = config.agents[name]
    shared = config.hosts[agent.host]
    adapter = spec_of(folder)
    for key in ONLY_ADAPTERS:
        where = f"agents.{name}"
        wanted = getattr(agent, key)
        # a host's shape is for new adapters, unless the adapter is the host's own base
        if wanted is None and agent.base is None:
            where = f"hosts.{agent.host}"
            wanted = getattr(shared, key)
        actual: Any = getattr(adapter, key)
        if key == "targets" and wanted is not None:
            wanted = sorted({layer.rpartition(".")[2] for layer in wanted})
            actual = sorted({layer.rpartition(".")[2] for layer in actual})
        if wanted not in (None, actual):
            raise UserMistake(
                f"{where}.{key} is {wanted}, but the adapter in {folder} has {actual}: leave"
                f" {where}.{key} out"
            )
