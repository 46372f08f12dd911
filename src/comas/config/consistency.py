"""Whether the tables of a config agree with each other: agents with their hosts, policies with
their agents, keys with the kind of their host, names with the folders that are called after them.

Errors are `ValueError`s, as pydantic wants them. Leaves out: single values (`config.schema`), what
follows from method, task and bases (`config.resolve`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from comas.config.mistakes import nearest
from comas.hosts import local_table
from comas.hosts.endpoint import table as api_table
from comas.hosts.table import Key, keys_that

if TYPE_CHECKING:
    from comas.config.schema import AgentConfig, Config, HostConfig

Agents = Mapping[str, "AgentConfig"]

ONLY_API = keys_that(api_table.Table, Key.OF_API)
ONLY_WEIGHTS = keys_that(local_table.Table, Key.OF_WEIGHTS)
ONLY_ADAPTERS = keys_that(local_table.Table, Key.OF_ADAPTERS)
"""Of agents as well."""
ONLY_ELSEWHERE = keys_that(local_table.Table, Key.ELSEWHERE)

NAME = re.compile(r"\w([\w .+-]*[\w+-])?")
"""Of hosts and policies: what a folder may be called anywhere, and no path that leads elsewhere."""
FILES = (".json", ".toml", ".md", ".py")
"""Names of what lies beside the folders of policies end so."""
DEVICES = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, whatever stands behind a dot."""


def _names_a_folder(name: str) -> bool:
    """Whether a folder may be called so on any system, and is not taken for
    something else there.
    """
    return (
        NAME.fullmatch(name) is not None
        and not name.endswith(FILES)
        and not DEVICES.fullmatch(name)
    )


def check_hosts_are_known(agents: Agents, hosts: Iterable[str]) -> None:
    """An error for an agent at a host that there is not."""
    hosts = list(hosts)
    for name, agent in agents.items():
        if agent.host not in hosts:
            raise ValueError(f"agents.{name}.host is {agent.host!r}: {nearest(agent.host, hosts)}")


def check_policies(agents: Agents) -> None:
    """An error for a policy at two hosts, or with two learning rates."""
    homes: dict[str, str] = {}
    rates: dict[str, float] = {}
    for name, agent in agents.items():
        policy = agent.policy_name(name)
        home = homes.setdefault(policy, agent.host)
        if home != agent.host:
            raise ValueError(
                f"policy {policy!r} is at hosts {home} and {agent.host}: give it two names"
            )
        if agent.lr is None:
            continue
        rate = rates.setdefault(policy, agent.lr)
        if rate != agent.lr:
            raise ValueError(
                f"agents.{name}.lr is {agent.lr:g}, but policy {policy!r} has lr {rate:g} already"
            )


def check_lags(agents: Agents, hosts: Mapping[str, HostConfig]) -> None:
    """An error for an earlier self of nobody, of itself or of another host's, and for keys of its
    own.
    """
    leaders = {
        agent.policy_name(name): agent for name, agent in agents.items() if agent.lag is None
    }
    for name, agent in agents.items():
        if agent.lag is None:
            continue
        key = f"agents.{name}.lag"
        if agent.policy in (None, name):
            raise ValueError(
                f"{key}: a policy cannot lag behind itself: set agents.{name}.policy to the policy"
                f" of another agent ({', '.join(leaders) or 'name one: none is left here'})"
            )
        leader = leaders.get(agent.policy)
        if name in leaders:
            raise ValueError(
                f"policy {name!r} belongs to an earlier self (agents.{name}.lag): name the other"
                " one differently"
            )
        if leader is None:
            raise ValueError(
                f"agents.{name}.policy is {agent.policy!r}, which nobody without a lag speaks with:"
                f" {nearest(agent.policy, leaders)}"
            )
        if leader.host != agent.host or not hosts[agent.host].here:
            raise ValueError(
                f"{key}: policy {agent.policy!r} is at host {leader.host}, and an earlier self is"
                " kept where its policy learns: a host with weights here, the same for both"
            )
        for own in ("base", "lr", *ONLY_ADAPTERS):
            if getattr(agent, own) is not None:
                raise ValueError(
                    f"agents.{name}.{own}: an earlier self is what its policy was: leave it out"
                )


def check_schedule(config: Config) -> None:
    """An error for a schedule of learning rates that has no steps."""
    if config.schedule == "constant" and config.warmup == 0:
        return
    if config.steps == 0:
        raise ValueError(
            f"schedule = {config.schedule}, warmup = {config.warmup}: a schedule needs steps, and"
            " steps = 0"
        )
    if config.warmup >= config.steps:
        raise ValueError(
            f"warmup = {config.warmup}: learning rates would never arrive in steps ="
            f" {config.steps}: lower it"
        )


def check_names(agents: Agents, hosts: Iterable[str]) -> None:
    """An error for a name of a host or policy that no folder, or no key, can be called."""
    hosts = list(hosts)
    policies = list(dict.fromkeys(agent.policy_name(name) for name, agent in agents.items()))
    _check_folders("host", hosts, taken=("manifest", "state", "monitors"))
    _check_folders("policy", policies)
    for host in hosts:
        if "." in host:
            other = host.replace(".", "-")
            raise ValueError(
                f"host {host!r}: a dot divides the parts of a key, as in hosts.NAME.base: name"
                f" it {other}"
            )
    folders: dict[str, str] = {}
    for policy in policies:
        other = folders.setdefault(policy.casefold(), policy)
        if other != policy:  # macOS and Windows
            raise ValueError(
                f"policies {other!r} and {policy!r} would share a folder where capitals do not"
                " count: rename one"
            )


def _check_folders(kind: str, names: Iterable[str], taken: Iterable[str] = ()) -> None:
    for name in names:
        if not _names_a_folder(name) or name in taken:
            raise ValueError(
                f"{kind} {name!r}: files are named after it: take letters, digits, - and _,"
                " such as a0"
            )


def check_keys_of_kind(name: str, host: HostConfig, agents: Agents) -> None:
    """An error for a key that says nothing at this kind of host, or needs another one."""
    if host.kind in ("local", "api") and (host.kind == "api") != (host.api is not None):
        raise ValueError(
            f"hosts.{name}.kind is {host.kind!r}, and a host behind an API is one with"
            f" hosts.{name}.api: leave hosts.{name}.kind out"
        )
    if host.learner == "full" or not host.here:
        _check_adapters(name, host, agents)
    for key in ONLY_API:
        if getattr(host, key) is not None and host.api is None:
            raise ValueError(
                f"hosts.{name}.{key} is for a host behind an API: set hosts.{name}.api, or leave it"
                " out"
            )
    for key in ONLY_WEIGHTS if host.built_by == "api" else ():
        if getattr(host, key) != type(host).model_fields[key].default:
            raise ValueError(
                f"hosts.{name}.{key} is for a host with weights of our own, and says nothing to one"
                " behind an API: leave it out"
            )
    if host.where != "here" and not host.here:
        raise ValueError(f"hosts.{name}.where is for hosts with weights of our own: leave it out")
    for key in ONLY_ELSEWHERE:
        if getattr(host, key) is not None and not host.elsewhere:
            raise ValueError(
                f"hosts.{name}.{key} is for a host elsewhere: set hosts.{name}.where, or leave it"
                " out"
            )
    if host.budget_money is not None and host.price is None:
        raise ValueError(
            f"hosts.{name}.budget_money needs a price: set hosts.{name}.price = [prompt, generated]"
        )


def _check_adapters(name: str, host: HostConfig, agents: Agents) -> None:
    tables = {f"hosts.{name}": host}
    tables |= {f"agents.{a}": agent for a, agent in agents.items() if agent.host == name}
    for key in ONLY_ADAPTERS:
        for place, table in tables.items():
            if getattr(table, key) is not None:
                raise ValueError(
                    f"{place}.{key} is for hosts.{name}.learner=adapters: set that, or leave it out"
                )
