"""The dtype of a new run's passes on a CPU, where the config leaves it open: bfloat16 for large
models where this processor multiplies it clearly faster.

It is tried once, before a run; its config keeps the answer. Seed models stay in float32. Leaves
out: GPUs, where it is bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

from comas.config.policies import Resolved
from comas.config.weights import weights_at
from comas.forecast.at_once import device_of
from comas.forecast.memory import parameters
from comas.models.sources import config_folder


def with_dtypes(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config with bfloat16 at hosts that have a large model on a CPU which is clearly faster
    with it; a note for each.
    """
    from comas.learners.products import CLEARLY, bfloat16_speed

    config = resolved.config
    hosts = dict(config.hosts)
    for name, host in config.hosts.items():
        folder = _large_model(resolved, name)
        if folder is None:
            continue
        speed = bfloat16_speed(folder)
        if speed >= CLEARLY:
            hosts[name] = host.model_copy(update={"dtype": "bfloat16"})
            note(
                f"hosts.{name}.dtype=bfloat16: this processor multiplies it {speed:.1f} times as"
                f" fast as float32 (hosts.{name}.dtype=float32 for exacter numbers)"
            )
    return resolved.with_config(config.model_copy(update={"hosts": hosts}))


def _large_model(resolved: Resolved, name: str) -> str | None:
    """The folder of a host's model for which bfloat16 is worth a try; None where there is none such
    or the dtype is settled.
    """
    from comas.learners.products import LARGE

    host = resolved.config.hosts[name]
    plans = resolved.at(name)
    if not (host.on_this_machine and plans) or host.dtype != "auto" or device_of(host) != "cpu":
        return None
    if not any(plan.learns for plan in plans) or any(plan.source.seeded for plan in plans):
        return None
    for model in weights_at(plans, ask_hub=False).models():
        folder = config_folder(model)
        if folder is not None and (parameters(model) or 0) >= LARGE:
            return folder
    return None
