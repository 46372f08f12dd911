"""Hosts of a config that are to be elsewhere: each gets its far end, all load side by side.

Leaves out: hosts here (`team.build`), what travels (`team.shipping`), how (`comas.transports`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from comas.config.plugins import load_builder
from comas.config.policies import Resolved
from comas.config.schema import HostConfig
from comas.hosts.line import Call, Transport
from comas.hosts.plan import HostPlan
from comas.hosts.remote import RemoteHost
from comas.machine import gpus, usable_cpus
from comas.team.shipping import method_files, pack
from comas.types import UserMistake


def call_up(resolved: Resolved, plan: HostPlan[Any]) -> RemoteHost:
    """Start the far end of a host that is planned; it loads while the caller goes on, until
    `RemoteHost.ready`.
    """
    config = resolved.config
    table: HostConfig = plan.table
    transport: Transport = load_builder("transports", table.where, f"hosts.{plan.name}.where")
    threads = table.threads or threads_of_each(resolved)
    sources = method_files(config.method)
    device = seen_there(table.device)
    travelling = replace(plan, table=table.model_copy(update={"device": device}))
    call = Call(
        host=plan.name,
        shipment=pack(travelling, sources, threads),
        device=table.device,
        threads=threads,
        address=table.address,
        secrets=frozenset(secrets_of(config.hosts)),
    )
    policies = list(plan.policies)
    host = RemoteHost(plan.name, policies, plan.method, table.patience, table.device)
    host.dial(transport.start(call, host.hear, host.end))
    return host


def check_transports(resolved: Resolved) -> None:
    """An error for a transport that cannot work here, before anything is loaded."""
    for name, table in resolved.config.hosts.items():
        if table.elsewhere and resolved.at(name):
            module = load_builder("transports", table.where, f"hosts.{name}.where")
            if hasattr(module, "check"):
                module.check(f"hosts.{name}")
            if table.on_this_machine:
                _check_gpus(name, table)


def _check_gpus(name: str, table: HostConfig) -> None:
    """An error for GPUs that are not here; the far end would tell of them by another number."""
    kind, _, first = table.device.partition(":")
    if kind == "cuda" and int(first or 0) >= (here := gpus()):
        raise UserMistake(
            f"hosts.{name}.device={table.device}: {here} GPUs can be seen here: set a lower number"
            f" or hosts.{name}.device=cpu, or see to CUDA_VISIBLE_DEVICES"
        )


def threads_of_each(resolved: Resolved) -> int:
    """Threads of a host elsewhere that names none: those of the run, or its share of the CPUs."""
    config = resolved.config
    if config.threads is not None:
        return config.threads
    elsewhere = [name for name, table in config.hosts.items() if table.elsewhere]
    return max(1, usable_cpus() // len(elsewhere))


def seen_there(device: str) -> str:
    """The device as a far end calls it that has one GPU in sight."""
    return "cuda:0" if device.startswith("cuda:") else device


def secrets_of(hosts: Mapping[str, HostConfig]) -> list[str]:
    """Names of environment variables that hold keys of endpoints."""
    return [table.key_env for table in hosts.values() if table.key_env is not None]
