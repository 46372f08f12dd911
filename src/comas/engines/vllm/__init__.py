"""`engine = "vllm"`: vLLM in this process, for adapters on one base or one whole model.

At each publish it is proved that vLLM serves what was learnt. Leaves out: several whole models on
one host, several GPUs, servers elsewhere (`hosts.api`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.seams import Engine, EnginePlan, Weights


def check(host: str) -> None:
    """An error where vLLM is not installed; `host` is `hosts.<name>`."""
    from comas.engines.vllm import start

    start.check(host)


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where vLLM cannot serve them."""
    from comas.engines.vllm import parts

    check(f"hosts.{plan.host}")
    return parts.build(plan, models)
