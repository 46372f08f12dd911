"""`engine = "hf"`: any Hugging Face causal LM, whole or with adapters, with continuous batching.

Leaves out: paged caches, other processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines.hf.engine import HFEngine
from comas.seams import Engine, EnginePlan, Weights


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies."""
    return HFEngine(plan, models)
