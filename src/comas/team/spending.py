"""Costs and failures of hosts behind an API: kept in the folder of a run or an evaluation, put into
words.

Also what of them may be changed when a run or an evaluation goes on: how much and how is asked,
never what. Leaves out: counting (`hosts.api`).
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from comas.config.mistakes import nearest
from comas.config.schema import Config
from comas.hosts.api import ApiHost
from comas.hosts.keys import ApiTable, Key, RayTable, keys_that
from comas.program import Work
from comas.types import Account, Host, UserMistake

EVERY = 5.0
"""Seconds between two notes of what has been spent: so much a process that is killed may leave
uncounted.
"""
CHANGEABLE = keys_that(ApiTable, Key.CHANGES)
"""Keys of a host behind an API on which no text depends."""
PLACE = ("kind", *keys_that(RayTable, Key.CHANGES))
"""Keys of a host with weights on which no text depends either: where it lives."""
ROOM = keys_that(RayTable, Key.BOUNDS)
"""Keys of a host with weights that bound its memory, and change what it computes by rounding only.
"""


def halved(hosts: Mapping[str, Host]) -> dict[str, int]:
    """`hosts.<name>.<key>` -> its value since there was no memory left for twice as much."""
    return {
        f"hosts.{name}.{key}": value
        for name, host in hosts.items()
        for key, value in host.facts().get("halved", {}).items()
    }


def accounts(hosts: Mapping[str, Host]) -> dict[str, Account]:
    """Host -> what it has cost so far; without those that cost nothing."""
    by_host = {name: host.account() for name, host in hosts.items()}
    return {name: account for name, account in by_host.items() if account}


def restore(
    hosts: Mapping[str, ApiHost],
    mine: Mapping[str, Account],
    others: Sequence[Mapping[str, Account]] = (),
    *,
    work: Work | None = None,
) -> None:
    """Go on counting where earlier processes of this `work` stopped; `others` count against the
    budgets of hosts of the same name.
    """
    for name, host in hosts.items():
        host.ledger.work = work or Work()
        if name in mine:
            host.ledger.restore(mine[name])
        tokens = 0
        money: list[float] = []
        for account in (accounts[name] for accounts in others if name in accounts):
            unsettled = account.get("unsettled", {})
            tokens += _tokens(account["spent"]) + _tokens(unsettled)
            money += [account["money"] or 0.0, unsettled.get("money") or 0.0]
        host.ledger.elsewhere = (tokens, math.fsum(money))


def _tokens(count: Mapping[str, int]) -> int:
    """Prompt and generated tokens."""
    return count.get("prompt_tokens", 0) + count.get("tokens", 0)


@asynccontextmanager
async def kept(hosts: Mapping[str, Host], write: Callable[[], None]) -> AsyncIterator[None]:
    """Have it written every few seconds and at the end, however that comes; nothing where no host
    costs anything.
    """
    if not accounts(hosts):
        yield
        return

    async def tick() -> None:
        while True:
            await asyncio.sleep(EVERY)
            with suppress(OSError):  # a disk that stays full is the news of the last one
                write()

    ticking = asyncio.create_task(tick())
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what went wrong before is the news
            write()
        raise
    else:
        write()
    finally:
        ticking.cancel()


def records(by_system: Mapping[str, Mapping[str, Account]]) -> list[dict[str, Any]]:
    """The accounts of an evaluation as rows."""
    rows: list[dict[str, Any]] = []
    for system, hosts in by_system.items():
        rows += [{"system": system, "host": host, **account} for host, account in hosts.items()]
    return rows


def cost_lines(by_host: Mapping[str, Account]) -> Iterator[str]:
    """A line per host: requests, tokens, money, and how often what went wrong."""
    for name, account in by_host.items():
        spent = account["spent"]
        money = account["money"]
        parts = [f"{spent.get('requests', 0):,} answers"]
        parts.append(f"{spent.get('prompt_tokens', 0):,} prompt tokens")
        parts.append(f"{spent.get('tokens', 0):,} generated tokens")
        if unknown := spent.get("without usage"):
            parts.append(f"{unknown:,} without usage")
        if money is not None:
            parts.append(f"cost {money:.4f}")
        if unsettled := account.get("unsettled"):
            count = unsettled.get("requests", 0)
            parts.append(
                f"{count:,} requests without an answer that may be billed, for"
                f" {_tokens(unsettled):,} tokens at most"
            )
        failures = [f"{kind} {times:,} x" for kind, times in sorted(account["events"].items())]
        outcome = f"went wrong: {', '.join(failures)}" if failures else "nothing went wrong"
        yield f"host {name}, behind an API: {', '.join(parts)}; {outcome}"


def check_changes(
    changes: Mapping[str, Any], configs: Sequence[Config], others: Sequence[str] = ()
) -> None:
    """Only keys such as `hosts.judge.budget_tokens` or `hosts.home.max_rows`, of a host that one of
    these configs has: anything else would change what is computed. `others` are the keys that may
    be changed besides, which the message names.
    """
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        is_of_host = table.startswith("hosts.") and table.count(".") == 1
        if not is_of_host or name not in CHANGEABLE + ROOM + PLACE:
            of_run = f"{', '.join(others)}, and " if others else ""
            near = difflib.get_close_matches(key, others, 1, 0.6)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise UserMistake(
                f"{key} cannot be changed here{meant}: what goes on takes {of_run}"
                f"hosts.<name>.<key> of a host behind an API, <key> one of {', '.join(CHANGEABLE)};"
                f" of a host with weights {', '.join(ROOM + PLACE)}; for anything else begin anew"
            )
        if name == "kind" and value not in ("local", "ray"):
            raise UserMistake(
                f"{key}={value}: a host with weights goes on as local or ray; for another kind"
                " begin anew"
            )
        takers = {host for config in configs for host in _takers(name, config)}
        host = table.removeprefix("hosts.")
        if host not in takers:
            kind = "with weights" if name in ROOM + PLACE else "behind an API"
            near = nearest(host, takers)
            raise UserMistake(f"{key}: there is no host {host!r} {kind} here: {near}")


def concerning(changes: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Keep the changes whose host this config has, of the kind that the key is for."""
    return {
        key: value
        for key, value in changes.items()
        if key.split(".")[1] in _takers(key.rpartition(".")[2], config)
    }


def _takers(name: str, config: Config) -> set[str]:
    """Hosts to which a change of the key of this name may belong."""
    hosts = config.hosts.items()
    if name in ROOM + PLACE:
        return {host for host, table in hosts if table.here}
    return {host for host, table in hosts if table.built_by == "api"}
