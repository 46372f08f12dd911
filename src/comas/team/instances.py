"""Hosts that are instances of the caller's own: `comas.train(hosts={"mine": MyHost()})`.

Leaves out: hosts that a config describes (`team.build`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.config.mistakes import nearest
from comas.config.schema import Config, checked
from comas.types import Host, UserMistake


def check_instances(config: Config, hosts: Mapping[str, Host]) -> None:
    """An error for an instance without a seat, and for a seat without its instance."""
    inhabited = {agent.host for agent in config.agents.values()}
    for name, host in hosts.items():
        if name not in inhabited:
            known = nearest(name, inhabited)
            raise UserMistake(f"hosts={{{name!r}: ...}}: no agent is at such a host: {known}")
        if host.name != name:
            raise UserMistake(
                f"hosts={{{name!r}: ...}}: the instance is called {host.name!r}: give it the same"
                " name"
            )
    for name, table in config.hosts.items():
        if table.own and name not in hosts:
            raise UserMistake(
                f"host {name} was an instance of the caller's own, which no file can hold: give it"
                f" again in Python, as hosts={{{name!r}: ...}}"
            )


def seated(config: Config, hosts: Mapping[str, Host]) -> Config:
    """The config with these instances in the place of hosts that it would have built; agents of
    those that do not learn are frozen.
    """
    check_instances(config, {**hosts})
    if not hosts:
        return config
    data = config.model_dump(exclude_unset=True)
    tables = data.setdefault("hosts", {})
    for name in hosts:
        tables[name] = {"own": True}
    for name, agent in config.agents.items():
        if agent.host in hosts and not hosts[agent.host].learns:
            data["agents"][name]["frozen"] = True
    return checked(data)


def close_hosts(config: Config, hosts: Mapping[str, Host]) -> None:
    """Close those that are not the caller's own."""
    for name, host in hosts.items():
        if not config.hosts[name].own:
            host.close()
