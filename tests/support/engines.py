"""Engines of tests: weights from models or a population, and publishing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comas.engines import auto, hf, stacked
from comas.engines.hf import HFEngine
from comas.engines.stacked import StackedEngine
from comas.learners.lora.population import Population
from comas.seams import Adapter, EnginePlan, Weights, WholeModel

ENGINES = {"auto": auto, "hf": hf, "stacked": stacked}


def weights_of(models: Mapping[str, Any] | Population) -> dict[str, Weights]:
    """Policy -> weights."""
    if isinstance(models, Population):
        return dict.fromkeys(models.policies, Adapter(models))
    return {
        p: m if isinstance(m, WholeModel | Adapter) else WholeModel(m) for p, m in models.items()
    }


def engine_of(
    models: Mapping[str, Any] | Population,
    end_ids: Sequence[int],
    pad_id: int,
    context: int,
    max_rows: int = 512,
    engine: str = "auto",
    **ways: Any,
) -> Any:
    """An engine for these models; `ways` are keywords of HFEngine."""
    plan = EnginePlan(end_ids=end_ids, pad_id=pad_id, context=context, max_rows=max_rows)
    weights = weights_of(models)
    if ways:
        return HFEngine(plan, weights, **ways)
    return ENGINES[engine].build(plan, weights)


def publish(engine: Any, models: Mapping[str, Any] | Population) -> None:
    """Have the engine sample from these."""
    for policy, weights in weights_of(models).items():
        engine.publish(policy, weights, engine.versions[policy] + 1)


def is_stacked(engine: Any) -> bool:
    return isinstance(engine, StackedEngine)
