"""Plan from which the module of a kind of host builds one.

Leaves out: what follows from it, which each kind knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from comas.hosts.keys import HostTable
from comas.seams import EngineModule
from comas.types import Method

T = TypeVar("T", bound=HostTable, covariant=True)
"""The table of a kind of host."""


class Lag(NamedTuple):
    """Origin of an earlier self: a policy, some steps ago."""

    policy: str
    steps: int
    """It has the weights that the policy had after the last multiple of so many steps."""


@dataclass(frozen=True, kw_only=True)
class HostPlan(Generic[T]):
    """One host of a resolved config."""

    name: str
    table: T
    """`[hosts.<name>]`."""
    policies: Mapping[str, str]
    """Policy -> what it starts from; behind an API the model's name there."""
    method: Method | None = None
    """Method that the host learns by; None where it does not."""
    recipe: Any = None
    """`learners.recipe.Recipe`: rates and limits of its optimizer steps."""
    engine: EngineModule | None = None
    """The module of the engine that samples; None where the host has none."""
    under: str | None = None
    """The one base below all adapters; None where each policy has a model of its own."""
    shapes: Mapping[str, Any] | None = None
    """Policy -> shape of a new adapter."""
    lags: Mapping[str, Lag] = field(default_factory=dict[str, Lag])
    """Earlier selves among the policies."""
    seed: int = 0
    cpus: int = 1
    """CPUs of a host elsewhere, where its table names no number."""
    gpus: int = 1
    """GPUs that its engine may use; its models, and its learner, are on the first."""
    secrets: frozenset[str] = frozenset()
    """Names of environment variables that no process of a host elsewhere may see."""
