"""How exploitable a policy is, from its counted moves."""

from __future__ import annotations

import asyncio

import pytest

from comas.tasks import kuhn
from comas.testing import scripted_team
from comas.types import HostFailure, UserMistake
from tools.kuhn_policy import measured_bets, measured_exploitability


def test_bets_are_counted_at_each_view() -> None:
    (member,), _ = scripted_team(lambda *_: "bet", 1)
    assert asyncio.run(measured_bets(member, 3)) == dict.fromkeys(kuhn.BETS, 3)
    with pytest.raises(UserMistake, match="asked for 0 moves"):
        asyncio.run(measured_bets(member, 0))


def test_a_machine_that_broke_down_is_no_move() -> None:
    def breaks(*_: object) -> str:
        raise HostFailure("gone")

    (member,), _ = scripted_team(breaks, 1)
    with pytest.raises(HostFailure, match=r"no move of a0 at jack: .*gone"):
        asyncio.run(measured_bets(member, 1))


def test_few_moves_leave_much_open() -> None:
    never = measured_exploitability(dict.fromkeys(kuhn.BETS, 0), 3)
    assert never.mean == kuhn.exploitability(dict.fromkeys(kuhn.BETS, 0.0))
    assert never.low < never.mean - 0.05
    fair = {view: round(30 * share) for view, share in kuhn.BETS.items()}
    found = measured_exploitability(fair, 30)
    assert found.low <= found.mean <= found.high
