"""What the hosts of a team have spent, in seconds by kind of work.

Leaves out: money and tokens (`team.spending`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.types import Host

Clocks = dict[str, dict[str, float]]
"""Host -> kind of work -> seconds."""


def clocks_of(hosts: Mapping[str, Host]) -> Clocks:
    """Seconds so far."""
    return {name: dict(host.clock()) for name, host in hosts.items()}


def seconds_since(before: Clocks, hosts: Mapping[str, Host]) -> dict[str, float]:
    """Kind of work -> seconds since then, summed over hosts."""
    spent: dict[str, float] = {}
    for name, clock in clocks_of(hosts).items():
        earlier = before[name]
        for kind, seconds in clock.items():
            of_host = seconds - earlier.get(kind, 0.0)
            total = spent.get(kind, 0.0)
            spent[kind] = total + of_host
    return spent
