"""`engine = "auto"`: a stack where a host's models are small plain Llamas of one shape on a CPU,
otherwise `hf`.

Leaves out: engines of others, which are asked for by name or file.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines import hf, stacked
from comas.engines.stacked import serves
from comas.seams import Engine, EnginePlan, Weights


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """The engine that fits these policies."""
    chosen = stacked if serves(models) else hf
    return chosen.build(plan, models)
