"""`engine = "vllm"`: vLLM in this process, for adapters on one base or one whole model.

At each publish it is proved that vLLM serves what was learnt. Leaves out: several whole models on
one host, several GPUs, servers elsewhere (`hosts.api`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines.module import EngineLoad, EngineMemory
from comas.engines.tape import drawing_bytes
from comas.seams import Engine, EnginePlan, Weights

READ = 2048
"""Padded tokens of prompts that are read in one pass."""


def check(host: str) -> None:
    """An error where vLLM is not installed; `host` is `hosts.<name>`."""
    from comas.engines.vllm import start

    start.check(host)


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where vLLM cannot serve them."""
    from comas.engines.vllm import parts

    check(f"hosts.{plan.host}")
    return parts.build(plan, models)


def memory(load: EngineLoad) -> EngineMemory:
    """Weights of its own, adapters twice and in a slot each, and keys and values of all rows.

    It takes room for rows of the whole context when it starts, at most a share of what is free then
    (`start.SHARES`); what is told here is what the run's rows fill of it.
    """
    width = 2 if load.half else 4
    base = width * sum(model.parameters for model in load.models)
    adapters = width * load.adapter_parameters * (3 * load.policies + 2)
    peaks = [m.decoding(READ) + drawing_bytes(m.vocabulary, load.rows) for m in load.models]
    return EngineMemory(copies=base + adapters, sampling=max(peaks))
