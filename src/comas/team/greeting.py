"""Hosts behind an API are asked for one token each before anything is loaded, measured or written.

What that costs is in their accounts. Leaves out: how a host is asked (`hosts.api`), and what
happens then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from comas.config.policies import Resolved
from comas.config.trainable import check_seats
from comas.hosts.api import ApiHost
from comas.program import Work
from comas.team import spending
from comas.team.build import Team, api_hosts_of, build_team
from comas.types import Account, Host, Sampling

Note = Callable[[str], None]


async def assemble(
    resolved: Resolved,
    note: Note,
    *,
    accounts: Mapping[str, Account] | None = None,
    work: Work | None = None,
    hosts: Mapping[str, Host] | None = None,
    asks: bool = True,
    learn: bool = True,
    weights: Path | None = None,
) -> Team:
    """The team of `build_team`, whose hosts behind an API have answered first, unless `asks` says
    that they will not be asked.

    `accounts` are what they have cost in earlier processes on the run of `work`; `hosts` are the
    caller's own.
    """
    check_seats(resolved.config, resolved.method, learn)
    apis = api_hosts_of(resolved, work)
    spending.restore(apis, accounts or {})
    if asks or learn:
        await greet(apis, Sampling(resolved.config.temperature) if asks else None, note)
    made = {**apis, **(hosts or {})}
    return build_team(resolved, learn=learn, weights=weights, hosts=made)


async def greet(
    apis: Mapping[str, ApiHost],
    sampling: Sampling | None,
    note: Note,
    known: set[tuple[str, ...]] | None = None,
) -> None:
    """Find the keys and check the addresses of all hosts, which needs no request, then greet each;
    where something is wrong all of them are closed.

    Without `sampling` none is greeted. `known` is that of `ApiHost.greet`.
    """
    try:
        for host in apis.values():
            host.open()
        if sampling is not None:
            for host in apis.values():
                await host.greet(sampling, note, known)
    except BaseException:
        for host in apis.values():
            host.close()
        raise
