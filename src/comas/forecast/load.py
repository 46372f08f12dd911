"""What a host is asked to do, as forecasts know it, and as its engine is told of it.

Leaves out: what a learner takes (`memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comas.config.schema import HostConfig
from comas.engines.module import EngineLoad, EngineModule, ModelSize


@dataclass(frozen=True)
class Load:
    """What a host is asked to do; `longest` row of prompt and reply, `rows` sampled at once."""

    host: HostConfig
    longest: int
    rows: int
    reference: bool
    engine: EngineModule
    scattered: float = 0.0
    """Further share of a learner's pass that an allocator holds in blocks which are free but do not
    fit.
    """


def on_gpu_in_half(host: HostConfig) -> tuple[bool, bool]:
    """Whether it is on a GPU, and whether its passes are in bfloat16."""
    import torch

    gpu = host.device != "cpu" and (host.device != "auto" or torch.cuda.is_available())
    return gpu, host.dtype == "bfloat16" or (host.dtype == "auto" and gpu)


def shape_of(load: Load, folder: str, fact: Any) -> Any:
    """A model with the longest row that it gets."""
    from comas.learners.memory import Shape

    longest = min(load.longest, load.host.context or fact.positions)
    return Shape(folder, on_gpu_in_half(load.host)[1], longest)


def model_size(shape: Any, fact: Any, rows: int) -> ModelSize:
    """A model as an engine's `memory` is told of it; decoding is counted when it asks."""
    from comas.learners import memory as fake

    def decoding(slice_tokens: int | None) -> int:
        tokens = slice_tokens or shape.longest * rows
        return fake.counted(fake.decode_bytes, shape.folder, shape, rows, tokens)

    return ModelSize(fact.parameters, fact.vocabulary, fact.family, decoding)


def engine_load(
    load: Load, models: Sequence[ModelSize], policies: int, adapter_parameters: int = 0
) -> EngineLoad:
    """What the engine's `memory` is asked."""
    gpu, half = on_gpu_in_half(load.host)
    return EngineLoad(
        models=models,
        policies=policies,
        rows=load.rows,
        adapter_parameters=adapter_parameters,
        gpu=gpu,
        half=half,
    )
