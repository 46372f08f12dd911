"""`engine = "auto"`: vLLM where it is installed and a host has one large model on the first GPU;
a stack where its models are small plain Llamas of one shape on a CPU; otherwise `hf`.

Leaves out: engines of others, which are asked for by name or file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from comas.engines import hf, stacked
from comas.engines.stacked import model_of, serves
from comas.seams import Engine, EnginePlan, StaleWeights, Weights
from comas.types import UserMistake

LOG = logging.getLogger("comas")

LARGE = 50_000_000
"""Parameters below which vLLM is not started: it compiles and captures before its first token."""


def takes_vllm(device: str, parameters: int, models: int) -> bool:
    """Whether vLLM is tried for so many models on this device, the largest of which has so many
    parameters; a base with adapters is one model.
    """
    first_gpu = device in ("cuda", "cuda:0")
    return first_gpu and models == 1 and parameters >= LARGE and find_spec("vllm") is not None


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """The engine that fits these policies."""
    distinct = {id(model): model for model in map(model_of, models.values())}
    largest = max(distinct.values(), key=lambda model: model.num_parameters())
    if takes_vllm(str(largest.device), largest.num_parameters(), len(distinct)):
        from comas.engines import vllm

        try:
            return vllm.build(plan, models)
        except (UserMistake, StaleWeights) as reason:
            LOG.warning("hosts.%s samples with engine hf, not vllm: %s", plan.host, reason)
    chosen = stacked if serves(models) else hf
    return chosen.build(plan, models)
