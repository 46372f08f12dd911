"""What a run is refused for without an estimate, which takes seconds.

Leaves out: what can be told from its config alone (`config.roles`).
"""

from __future__ import annotations

from comas.config.policies import Resolved
from comas.config.schema import HostConfig
from comas.config.weights import weights_at
from comas.forecast.memory import weight_bytes
from comas.machine import memory_of
from comas.models.loading import place_of
from comas.models.sources import check_speaks
from comas.types import UserMistake


def check_weights(resolved: Resolved) -> None:
    """An error for a folder that nobody can talk to, and where a device cannot hold the weights
    alone: both are known at once, and the estimate takes seconds.
    """
    weights: dict[str, int] = {}
    for name, host in resolved.config.hosts.items():
        places = weights_at(resolved.at(name), ask_hub=False)
        for plan in resolved.at(name):
            if plan.source.kind in ("folder", "gguf"):
                check_speaks(plan.source.where)
        if places.places and host.on_this_machine:
            device = device_of(host)
            weights[device] = weights.get(device, 0) + weight_bytes(places, host)
    for device, needed in weights.items():
        usable = memory_of(device).usable
        there = "are free"
        if resolved.config.memory is not None:
            usable = int(resolved.config.memory * 1e9)
            there = f"memory={resolved.config.memory:g} allows"
        if usable is not None and needed > usable:
            raise UserMistake(
                f"the run does not fit into memory: its weights alone take {needed / 1e9:.1f} GB,"
                f" and {usable / 1e9:.1f} GB {there} on {device}: have fewer agents, take a smaller"
                " base, or set memory=GB where there is more"
            )


def device_of(host: HostConfig) -> str:
    """The device that a host is going to use."""
    return str(place_of(host.device, host.dtype)[0])
