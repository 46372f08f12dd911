"""How exploitable a policy is, from its counted moves."""

from __future__ import annotations

import asyncio

import pytest

from comas.tasks import kuhn
from comas.testing import scripted_team
from comas.types import HostFailure, UserMistake
from tools.kuhn_policy import (
    UNIFORM,
    best_response,
    exploitability,
    measured_bets,
    measured_exploitability,
)


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
    assert never.mean == exploitability(dict.fromkeys(kuhn.BETS, 0.0))
    assert never.low < never.mean - 0.05
    fair = {view: round(30 * share) for view, share in kuhn.BETS.items()}
    found = measured_exploitability(fair, 30)
    assert found.low <= found.mean <= found.high


def test_exploitability_in_closed_form() -> None:
    assert exploitability(UNIFORM) == pytest.approx(11 / 24)
    assert exploitability(kuhn.BETS) == pytest.approx(0.0, abs=1e-12)
    assert best_response(kuhn.BETS, 0) == pytest.approx(-1 / 18)
    for bluff in (0.0, 1 / 3):
        bets = {
            **kuhn.BETS,
            "jack": bluff,
            "king": 3 * bluff,
            "queen pass bet": bluff + 1 / 3,
        }
        assert exploitability(bets) == pytest.approx(0.0, abs=1e-12)
    always = dict.fromkeys(kuhn.BETS, 1.0)
    # against who always bets a king calls or bets (2 of either card), a queen comes out even, and a
    # jack folds (-1 of either card), in both seats
    assert best_response(always, 0) == pytest.approx((2 + 2 - 1 - 1) / 6)
    assert best_response(always, 1) == pytest.approx((2 + 2 - 1 - 1) / 6)


def test_exploitability_is_what_a_best_response_wins_in_play() -> None:
    """Who never bets, and folds behind every bet, loses a chip a game."""
    timid = dict.fromkeys(kuhn.BETS, 0.0)
    assert exploitability(timid) == pytest.approx(1.0)
