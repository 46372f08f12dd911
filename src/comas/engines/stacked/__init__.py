"""`engine = "stacked"`: small plain Llamas of one shape on a CPU as one batched model.

Leaves out: everything else, which `hf` serves.
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines.module import EngineLoad, EngineMemory
from comas.engines.stacked.engine import StackedEngine
from comas.engines.stacked.llama import SMALL
from comas.engines.tape import drawing_bytes
from comas.seams import Engine, EnginePlan, Weights


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where they cannot be stacked."""
    return StackedEngine(plan, models)


def expects(load: EngineLoad) -> bool:
    """Whether models of these sizes can be stacked, as far as their config.json tells."""
    if load.gpu or load.half:
        return False
    families = {m.family for m in load.models}
    sizes = {m.parameters for m in load.models}
    return families == {"llama"} and len(sizes) == 1 and max(sizes) <= SMALL


def memory(load: EngineLoad) -> EngineMemory:
    """A copy of all weights, and prompts that are read at once."""
    parameters = [m.parameters for m in load.models]
    if load.adapter_parameters:
        parameters = parameters * load.policies
    peaks = [m.decoding(None) + drawing_bytes(m.vocabulary, load.rows) for m in load.models]
    return EngineMemory(copies=4 * sum(parameters), sampling=max(peaks))
