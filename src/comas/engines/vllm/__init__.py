"""`engine = "vllm"`: vLLM in this process, for adapters on one base or one whole model.

At each publish it is proved that vLLM serves what was learnt. Leaves out: several whole models on
one host, several GPUs, servers elsewhere (`hosts.api`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from comas.seams import Engine, EnginePlan, Weights
from comas.types import UserMistake


def check(host: str) -> None:
    """An error where vLLM is not installed; `host` is `hosts.<name>`."""
    if find_spec("vllm") is None:
        raise UserMistake(
            f"{host}.engine = 'vllm' needs vLLM, which is not installed: pip install"
            f' "comas[vllm]", or set {host}.engine=hf'
        )


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
    """An engine for these policies; UserMistake where vLLM cannot serve them."""
    check(f"hosts.{plan.host}")
    from comas.engines.vllm import engine

    return engine.build(plan, models)
