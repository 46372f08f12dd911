"""`engine = "hf"`: any Hugging Face causal LM, whole or with adapters, with continuous batching.

Leaves out: paged caches, other processes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from comas.engines.hf.engine import HFEngine
from comas.engines.hf.packed import LARGEST, packs
from comas.engines.hf.prefill import PREFILL
from comas.engines.module import EngineLoad, EngineMemory
from comas.engines.tape import drawing_bytes
from comas.seams import Engine, EnginePlan, Weights


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies."""
    return HFEngine(plan, models)


def memory(load: EngineLoad) -> EngineMemory:
    """Packed copies of weights on a CPU, rounded adapters, and prompts in slices."""
    copies = 0
    dtype = torch.bfloat16 if load.half else torch.float32
    if not load.gpu and packs(dtype):
        packed = sum(m.parameters for m in load.models if m.parameters <= LARGEST)
        copies = dtype.itemsize * packed
    rounded = 2 * load.adapter_parameters * load.policies if load.half else 0
    peaks = [m.decoding(PREFILL) + drawing_bytes(m.vocabulary, load.rows) for m in load.models]
    return EngineMemory(copies=copies, sampling=max(peaks) + rounded)
