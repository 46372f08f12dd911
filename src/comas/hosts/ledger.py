"""Ledger of a host behind an API: its costs, its failures, and the budgets that it keeps.

A budget is checked before each try: those that are open when it ends are billed all the same, so
that it is exceeded by `concurrency` requests at most. Leaves out: reading what an answer has cost
(`hosts.completion`), keeping accounts in a folder (`team.spending`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from comas.hosts.completion import Usage
from comas.hosts.keys import ApiTable as Table
from comas.program import Work
from comas.types import UserMistake

REST = 30.0
"""Seconds in which a server whose account is empty is not asked again: games that wait for their
turn would all ask it.
"""


class BudgetSpent(UserMistake):
    """No further request is made; those that are open may end."""


class Ledger:
    """Counts tokens, money and what went wrong, over all processes."""

    def __init__(self, host: str, config: Table) -> None:
        self.host = host
        self.config = config
        self.events: Counter[str] = Counter()
        """Failures, and how often each happened: `429`, `timeout`, `invalid body` ...; `given up`:
        requests that got no response.
        """
        self.spent: Counter[str] = Counter()
        """`requests` that were answered, their `prompt_tokens` and `tokens`, and those `without
        usage`, which count as 0.
        """
        self.unsettled: Counter[str] = Counter()
        """`requests` without an answer that may be billed, and the `prompt_tokens` and `tokens`
        that they cost at most.
        """
        self.elsewhere: tuple[int, float] = (0, 0.0)
        """Tokens and money that count against the same budgets: those of an evaluation's other
        systems.
        """
        self._refused: tuple[float, str] = (-math.inf, "")
        """When the account was last empty, and the message about it."""
        self.work = Work()
        """Run or evaluation in progress, for messages on how to go on."""

    def count(self, usage: Usage) -> None:
        """Add an answer."""
        self.spent["requests"] += 1
        if not usage.is_complete:
            self.spent["without usage"] += 1
        self.spent["prompt_tokens"] += usage.prompt_tokens or 0
        self.spent["tokens"] += usage.tokens or 0

    def count_unsettled(self, prompt_tokens: int, tokens: int) -> None:
        """Add a request whose cost is not known, with what it can have cost at most."""
        self.unsettled.update(requests=1, prompt_tokens=prompt_tokens, tokens=tokens)

    def money(self, counted: Mapping[str, int] | None = None) -> float | None:
        """Return the cost of the counted tokens; None without a price."""
        if self.config.price is None:
            return None
        counted = self.spent if counted is None else counted
        prompt, generated = self.config.price
        return (
            counted.get("prompt_tokens", 0) * prompt + counted.get("tokens", 0) * generated
        ) / 1e6

    def check_budget(self) -> None:
        """An error where a budget is spent, or cannot be held."""
        since, refusal = self._refused
        if time.monotonic() - since < REST:
            raise BudgetSpent(refusal)
        self.check_counted()
        used = self.spent + self.unsettled
        tokens = used["prompt_tokens"] + used["tokens"] + self.elsewhere[0]
        money = self.money(used)
        money = None if money is None else money + self.elsewhere[1]
        for name, amount in (("budget_tokens", tokens), ("budget_money", money)):
            budget = getattr(self.config, name)
            if budget is None or amount is None or amount < budget:
                continue
            key = f"hosts.{self.host}.{name}"
            cost = "" if money is None else f" at a cost of {money:.4f}"
            if self.unsettled:
                most = self.unsettled["prompt_tokens"] + self.unsettled["tokens"]
                requests = f"{self.unsettled['requests']} requests that were not answered"
                cost += f" (up to {most} of them by {requests})"
            raise BudgetSpent(
                f"host {self.host}: its budget is spent: {tokens} tokens{cost}, and {key} is"
                f" {budget:g}; raise it{self.work.going_on(f'{key}=NUMBER')}"
            )

    def out_of_credit(self, answer: str) -> BudgetSpent:
        """Record that credit at the server is used up, and return the error: waiting does not help,
        and what has been played is kept.
        """
        self.events["out of credit"] += 1
        answer = (
            f"host {self.host}: {answer}; its account is used up: add to it{self.work.going_on()}"
        )
        self._refused = (time.monotonic(), answer)
        return BudgetSpent(answer)

    def check_counted(self) -> None:
        """An error where there is a budget, and the server does not tell what its answers cost."""
        unknown = self.spent["without usage"]
        for name in ("budget_tokens", "budget_money"):
            if unknown and getattr(self.config, name) is not None:
                key = f"hosts.{self.host}.{name}"
                raise UserMistake(
                    f"host {self.host}: {unknown} replies came without usage, so {key} cannot be"
                    " held: have the server report it, or leave the budget"
                    f" out{self.work.going_on(f'{key}=none')}"
                )

    def account(self) -> dict[str, Any]:
        """Return costs and failures so far, as JSON."""
        account: dict[str, Any] = {
            "spent": dict(self.spent),
            "money": self.money(),
            "events": dict(self.events),
        }
        if self.unsettled:
            account["unsettled"] = {**self.unsettled, "money": self.money(self.unsettled)}
        return account

    def restore(self, account: Mapping[str, Any]) -> None:
        """The inverse of `account`."""
        unsettled = {**account.get("unsettled", {})}
        unsettled.pop("money", None)
        saved = account["spent"], account["events"], unsettled
        for counter, counts in zip((self.spent, self.events, self.unsettled), saved, strict=True):
            counter.clear()
            counter.update(counts)
