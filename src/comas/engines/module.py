"""What the file of an engine defines: `build(plan, models)` and `memory(load)`.

Nothing heavy is imported here. Leaves out: the engine itself (`comas.seams.Engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from comas.seams import Engine, EnginePlan, Weights


@dataclass(frozen=True)
class ModelSize:
    """A model that is to be sampled from, by its config.json."""

    parameters: int
    """Tied ones once."""
    vocabulary: int
    family: str
    """`model_type` of its config."""
    decoding: Callable[[int | None], int]
    """Bytes at the peak of decoding all rows to their full length, besides weights and the drawing,
    with prompts read in slices of so many padded tokens; None: at once.
    """


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """What an engine would be built for and asked, as forecasts know it."""

    models: Sequence[ModelSize]
    """Of each policy; the base alone where policies are adapters."""
    policies: int
    rows: int
    """Rows that are decoded at once."""
    adapter_parameters: int = 0
    """Of the adapter of one policy; 0 where policies are whole models."""
    gpu: bool = False
    half: bool = False
    """Whether it samples in bfloat16."""


class EngineModule(Protocol):
    """A file or folder that defines an engine.

    It may define `check(host)` as well, which raises a UserMistake where the engine cannot run here
    at all; it is called with `hosts.<name>` before models are loaded.
    """

    def build(self, plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
        """An engine for these policies; UserMistake where it cannot serve them."""
        ...

    def memory(self, load: EngineLoad) -> EngineMemory:
        """What the engine would take."""
        ...


@dataclass(frozen=True)
class EngineMemory:
    """Bytes that an engine takes, by what they are for."""

    copies: int
    """Of weights, besides those that it is given."""
    sampling: int
    """At the peak of sampling: caches, activations, probabilities."""
