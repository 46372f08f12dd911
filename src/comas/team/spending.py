"""What hosts behind an API have cost and what went wrong there: kept in the folder of a run or an
evaluation, told in words.

Also what of them may be changed when a run or an evaluation goes on: how much and how is asked,
never what. Leaves out: counting (`hosts.api`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.config.schema import Config, parse_pair
from comas.hosts.api import ApiHost
from comas.team.build import Team
from comas.types import Account, Host, UserMistake

EVERY = 5.0
"""Seconds between two notes of what has been spent: so much a process that is killed may leave
uncounted.
"""
CHANGEABLE = (
    "budget_tokens",
    "budget_money",
    "price",
    "timeout",
    "retries",
    "concurrency",
    "key_env",
)
"""Keys of a host behind an API on which no text depends."""
ROOM = ("max_rows", "tokens_per_pass", "checkpointing")
"""Keys of a host with weights that bound its memory, and change what it computes by rounding only.
"""


def accounts(hosts: Mapping[str, Host]) -> dict[str, Account]:
    """Host -> what it has cost so far; without those that cost nothing."""
    known = {name: host.account() for name, host in hosts.items()}
    return {name: account for name, account in known.items() if account}


def read(path: Path) -> dict[str, Any]:
    """What was written last; nothing where nothing was."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserMistake(
            f"{path} is damaged ({error}): remove it to go on without what it said"
        ) from error


def kept_in(checkpoint: Path | None, config: Config) -> dict[str, Account]:
    """The accounts as they were saved with a checkpoint: older than those in `spent.json`, for
    where that is lost.
    """
    files = (
        {
            name: checkpoint / f"{name}.json"
            for name, host in config.hosts.items()
            if host.built_by == "api"
        }
        if checkpoint
        else {}
    )
    return {name: read(path) for name, path in files.items() if path.exists()}


def restore(
    hosts: Mapping[str, ApiHost],
    mine: Mapping[str, Account],
    others: Sequence[Mapping[str, Account]] = (),
) -> None:
    """Go on counting where earlier processes stopped; `others` count against the budgets of hosts
    of the same name.
    """
    for name, host in hosts.items():
        if name in mine:
            host.ledger.restore(mine[name])
        known = [account[name] for account in others if name in account]
        counts = [
            count for account in known for count in (account["spent"], account.get("unsettled", {}))
        ]
        tokens: int = sum(
            count.get("prompt_tokens", 0) + count.get("tokens", 0) for count in counts
        )
        money = [
            amount
            for account in known
            for amount in (account["money"], account.get("unsettled", {}).get("money"))
        ]
        host.ledger.elsewhere = (tokens, math.fsum(amount or 0.0 for amount in money))


@asynccontextmanager
async def kept(team: Team, write: Callable[[], None]) -> AsyncIterator[None]:
    """Have it written every few seconds and at the end, however that comes; nothing where no host
    costs anything.
    """
    if not accounts(team.hosts):
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


def records(found: Mapping[str, Mapping[str, Account]]) -> list[dict[str, Any]]:
    """The accounts of an evaluation as rows."""
    return [
        {"system": run, "host": host, **account}
        for run, hosts in found.items()
        for host, account in hosts.items()
    ]


def told(found: Mapping[str, Account]) -> Iterator[str]:
    """A line per host: requests, tokens, money, and how often what went wrong."""
    for name, account in found.items():
        spent = account["spent"]
        money = account["money"]
        parts = [
            f"{spent.get('requests', 0):,} answers",
            f"{spent.get('prompt_tokens', 0):,} prompt tokens",
        ]
        parts += [f"{spent.get('tokens', 0):,} generated tokens"]
        parts += [f"{spent['without usage']:,} without usage"] if spent.get("without usage") else []
        parts += [f"cost {money:.4f}"] if money is not None else []
        if unsettled := account.get("unsettled"):
            most = unsettled.get("prompt_tokens", 0) + unsettled.get("tokens", 0)
            count = unsettled.get("requests", 0)
            parts += [
                f"{count:,} requests without an answer that may be billed, for {most:,} tokens at"
                " most"
            ]
        wrong = ", ".join(
            f"{kind} {times:,} x" for kind, times in sorted(account["events"].items())
        )
        yield (
            f"host {name}, behind an API: {', '.join(parts)};"
            f" {'went wrong: ' + wrong if wrong else 'nothing went wrong'}"
        )


def check_changes(pairs: Sequence[str]) -> None:
    """Only `hosts.judge.budget_tokens=5000` or `hosts.home.max_rows=64`: anything else would change
    what is computed.
    """
    for pair in pairs:
        key, _ = parse_pair(pair)
        table, _, name = key.rpartition(".")
        if table.count(".") != 1 or not table.startswith("hosts.") or name not in CHANGEABLE + ROOM:
            raise UserMistake(
                f"{key} cannot be changed here: what goes on takes hosts.<name>.<key> of a host"
                f" behind an API, <key> one of {', '.join(CHANGEABLE)}; of a host with weights"
                f" {', '.join(ROOM)}; for anything else begin anew"
            )


def concerning(pairs: Sequence[str], config: Config) -> list[str]:
    """Those changes whose host this config has, of the kind that the key is for."""
    return [pair for pair in pairs if pair.split(".")[1] in _takers(pair, config)]


def check_hosts(pairs: Sequence[str], configs: Sequence[Config]) -> None:
    """An error for a change that concerns none of them."""
    for pair in pairs:
        takers = {name for config in configs for name in _takers(pair, config)}
        if (name := pair.split(".")[1]) not in takers:
            kind = "with weights" if _key(pair) in ROOM else "behind an API"
            raise UserMistake(
                f"{pair}: there is no host {name!r} {kind} here: {nearest(name, takers)}"
            )


def _takers(pair: str, config: Config) -> set[str]:
    """Hosts to which a change may belong."""
    return {
        name
        for name, host in config.hosts.items()
        if host.built_by == ("local" if _key(pair) in ROOM else "api")
    }


def _key(pair: str) -> str:
    return parse_pair(pair)[0].rpartition(".")[2]
