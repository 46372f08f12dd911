"""`engine = "stacked"`: small plain Llamas of one shape on a CPU as one batched model.

Leaves out: everything else, which `hf` serves.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines.stacked.engine import StackedEngine
from comas.seams import Engine, EnginePlan, Weights


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where they cannot be stacked."""
    return StackedEngine(plan, models)
