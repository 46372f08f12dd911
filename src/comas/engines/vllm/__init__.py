"""`engine = "vllm"`: vLLM in this process, for adapters on one base or one whole model.

At each publish it is proved that vLLM serves what was learnt. Leaves out: several whole models on
one host, whole models over several GPUs, servers elsewhere (`hosts.api`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.engines.module import EngineLoad, EngineMemory, TensorParallel
from comas.engines.tape import drawing_bytes
from comas.seams import Engine, EnginePlan, Weights

PROCESS = 800_000_000
"""Resident bytes of a rank with vLLM and its libraries."""
READ = 2048
"""Padded tokens of prompts that are read in one pass."""


def check(host: str) -> None:
    """An error where vLLM is not installed; `host` is `hosts.<name>`."""
    from comas.engines.vllm import start

    start.check(host)


def check_tensor_parallel(asked: TensorParallel) -> None:
    """An error where vLLM cannot spread these models over so many GPUs."""
    from comas.engines.vllm import ranks

    ranks.check(asked)


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where vLLM cannot serve them."""
    from comas.engines.vllm import parts

    check(f"hosts.{plan.host}")
    return parts.build(plan, models)


def memory(load: EngineLoad) -> EngineMemory:
    """Weights of its own, adapters twice and in a slot each, and keys and values of all rows.

    It takes room for rows of the whole context when it starts, at most a share of what is free then
    (`start.SHARES`); what is told here is what the run's rows fill of it. Over several GPUs it is
    what the first one holds at most, on a CPU what all ranks hold there.
    """
    width = 2 if load.half else 4
    base = width * sum(model.parameters for model in load.models)
    adapters = width * load.adapter_parameters * (3 * load.policies + 2)
    peaks = [m.decoding(READ) + drawing_bytes(m.vocabulary, load.rows) for m in load.models]
    ranks = load.tensor_parallel
    if ranks == 1:
        return EngineMemory(copies=base + adapters, sampling=max(peaks))
    if load.gpu:  # one of them; of an adapter each has one half whole
        return EngineMemory(copies=base // ranks + adapters, sampling=max(peaks))
    return EngineMemory(copies=base + ranks * (adapters + PROCESS), sampling=ranks * max(peaks))
