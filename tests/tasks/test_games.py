"""Tasks that are games: rules against closed forms, and the contract of tasks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from comas.game.moves import at_random, at_the_end
from comas.tasks import bargain, kuhn, tictactoe
from comas.testing import check_task
from comas.types import Question, Task, UserMistake

PAYOFFS = {
    "pass pass": (1.0, -1.0),
    "pass bet pass": (-1.0, -1.0),
    "pass bet bet": (2.0, -2.0),
    "bet pass": (1.0, 1.0),
    "bet bet": (2.0, -2.0),
}
"""Line -> what the first seat gets with the higher card, and with the lower one (Kuhn, 1950)."""


def outcome(task: Task, start: str, moves: Sequence[str]) -> tuple[Sequence[float], list[Any]]:
    """The payoffs of a game in which these moves are made, and what seats saw."""
    left = iter(moves)
    asked: list[Any] = []

    async def move(seat: int, view: str, legal: Sequence[str]) -> str:
        asked.append((seat, view, tuple(legal)))
        return next(left)

    assert task.rules is not None
    rules = task.rules(Question(id="q", prompt=start), move, random.Random(0))
    payoffs = asyncio.run(rules)  # type: ignore[arg-type]
    assert next(left, None) is None, "a move was left over"
    return payoffs, asked


def between(task: Task, start: str, players: Sequence[Any], seed: int) -> Sequence[float]:
    """The payoffs of a game between scripted seats."""
    rng = random.Random(seed)

    async def move(seat: int, view: str, legal: Sequence[str]) -> str:
        return players[seat](view, legal, rng)

    assert task.rules is not None
    return asyncio.run(task.rules(Question(id="q", prompt=start), move, rng))  # type: ignore[arg-type]


@pytest.mark.parametrize("task", [kuhn.task, tictactoe.task], ids=lambda task: task.name)
def test_contract(task: Task) -> None:
    check_task(task)


def test_tictactoe_is_learnt_from_many_starts_and_measured_from_one() -> None:
    moved = Counter(
        sum(cell in "xo" for cell in question.prompt.split())
        for question in tictactoe.load("train")
    )
    assert set(moved) == {0, 1, 2, 3, 4}
    assert min(moved.values()) > 70
    for split in ("validation", "test"):
        assert {question.prompt for question in tictactoe.load(split)} == {tictactoe.EMPTY}
    starts = tictactoe.load("test", plies=3, copies=9)
    assert len(starts) == 9
    assert starts != tictactoe.load("test", plies=3, copies=9, seed=1)
    for question in tictactoe.load("train"):
        assert question.prompt.count("x") - question.prompt.count("o") in (0, 1)
    with pytest.raises(UserMistake, match=r"task_options.plies is 5: at most 4"):
        tictactoe.load("train", plies=5)


@pytest.mark.parametrize("seat", [0, 1])
def test_rubbish_divides_nothing_to_its_own_seat(seat: int) -> None:
    """What is no move counts as the first one that is legal."""

    def rubbish(view: str, legal: Sequence[str], rng: random.Random) -> str:
        return legal[0]

    players = [bargain.fair, bargain.fair]
    players[seat] = rubbish
    for question in bargain.load("test", limit=50):
        payoffs = between(bargain.task, question.prompt, players, 0)
        assert payoffs[seat] == 0.0
        assert payoffs[1 - seat] >= 0.5


def test_kuhn_has_every_deal_in_every_split() -> None:
    for split in kuhn.SPLITS:
        assert len({q.prompt for q in kuhn.load(split, limit=6)}) == 6


@pytest.mark.parametrize("line", PAYOFFS)
def test_kuhn_pays_every_line(line: str) -> None:
    for first, second in kuhn.DEALS:
        higher = kuhn.CARDS.index(first) > kuhn.CARDS.index(second)
        payoffs, asked = outcome(kuhn.task, f"{first} {second}", line.split())
        assert payoffs == (PAYOFFS[line][not higher], -PAYOFFS[line][not higher])
        cards = itertools.cycle([first, second])
        said = line.split()
        for at, (seat, view, legal) in enumerate(asked):
            assert seat == at % 2
            assert view.split() == [next(cards), *said[:at]], "a seat sees its own card alone"
            assert legal == kuhn.MOVES


def test_the_equilibrium_is_not_beaten_by_random_play() -> None:
    players = (kuhn.equilibrium, at_random)
    games = [
        between(kuhn.task, " ".join(deal), players, seed)[0]
        for seed, deal in enumerate(kuhn.DEALS * 200)
    ]
    assert sum(games) / len(games) > 0.0


def test_tictactoe_in_rows_columns_and_diagonals() -> None:
    payoffs, asked = outcome(tictactoe.task, tictactoe.EMPTY, list("14253"))
    assert payoffs == (1.0, -1.0)
    assert asked[0][1:] == ("1 2 3\n4 5 6\n7 8 9", tictactoe.CELLS)
    assert asked[1][1] == "o 2 3\n4 5 6\n7 8 9", "one's own marks are x"
    assert asked[2][1] == "x 2 3\no 5 6\n7 8 9"
    assert "1" not in asked[1][2]
    assert outcome(tictactoe.task, tictactoe.EMPTY, list("132547"))[0] == (-1.0, 1.0)
    drawn = outcome(tictactoe.task, tictactoe.EMPTY, list("153284697"))
    assert drawn[0] == (0.0, 0.0)
    began = "x o 3 4 x o 7 8 9"
    assert outcome(tictactoe.task, began, ["9"])[0] == (1.0, -1.0), "a position goes on"


def test_perfect_players_draw_and_never_lose() -> None:
    best = tictactoe.perfect
    assert {tuple(between(tictactoe.task, tictactoe.EMPTY, (best, best), s)) for s in range(3)} == {
        (0.0, 0.0)
    }
    for seed in range(20):
        first = between(tictactoe.task, tictactoe.EMPTY, (best, at_random), seed)
        second = between(tictactoe.task, tictactoe.EMPTY, (at_random, best), seed)
        assert first[0] >= 0
        assert second[1] >= 0


@pytest.mark.parametrize("task", [kuhn, tictactoe], ids=["kuhn", "tictactoe"])
def test_a_file_or_a_split_that_is_none(task: Any) -> None:
    with pytest.raises(UserMistake, match="leave out data='x'"):
        task.load("train", path="x")
    with pytest.raises(UserMistake, match="'warm': one of train, validation"):
        task.load("warm")


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("bet", "bet"),
        ("I should bluff.\n\n**BET**.", "bet"),
        ("I pass", "pass"),
        ("bet or pass?", "pass"),
        ("bets", None),
        ("alphabet", None),
        ("bet, since it wins", None),
        ("", None),
    ],
)
def test_moves_are_read_at_the_end(text: str, move: str | None) -> None:
    assert kuhn.extract(Question(id="q", prompt=""), text) == move


@pytest.mark.parametrize(
    ("text", "move"),
    [("I play A1.", "A1"), ("then E8=q", "e8=Q"), ("**f(x)**", "f(x)"), ("B12", "B12")],
)
def test_moves_of_a_game_of_ones_own_are_read_whatever_their_case(text: str, move: str) -> None:
    assert at_the_end(text, ["A1", "B2", "e8=Q", "f(x)", "B12"]) == move


def test_a_move_of_marks_alone_is_not_read_out_of_every_sentence() -> None:
    assert at_the_end("I do not know.", ["!", "a1"]) is None


@pytest.mark.parametrize("text", ["1.5", "I play -5", "cells 2,5", "1. 5.5"])
def test_a_digit_of_another_number_is_no_move(text: str) -> None:
    assert tictactoe.extract(Question(id="q", prompt=""), text) is None
    assert tictactoe.extract(Question(id="q", prompt=""), "1.5 or 2, no: 5.") == "5"


def test_pools_of_a_bargain_hold_six_things_however_many_of_one_there_may_be() -> None:
    assert bargain.load("test", largest=10**9) == bargain.load("test", largest=4)


POOL = "2 1 2 | 1 4 2 | 3 0 2"


def test_bargaining_divides_the_pool() -> None:
    said = ["keep 1 hat and 2 balls", "keep 2 books", "accept"]
    payoffs, asked = outcome(bargain.task, POOL, said)
    assert payoffs == (0.8, 0.6)
    seats = [seat for seat, _, _ in asked]
    assert seats == [0, 1, 0]
    assert asked[1][1].splitlines() == [
        "In the pool: 2 books and 1 hat and 2 balls.",
        "Worth to you: a book 3, a hat 0, a ball 2.",
        "The other: keep 1 hat and 2 balls.",
        "Offers that are left: 5.",
    ]
    assert "You: keep 1 hat and 2 balls." in asked[2][1]
    assert "accept" not in asked[0][2], "there is nothing to accept yet"
    assert len(asked[0][2]) == 3 * 2 * 3
    assert all(bargain.extract(Question(id="q", prompt=""), move) == move for move in asked[2][2])


def test_without_agreement_nobody_gets_anything() -> None:
    payoffs, asked = outcome(bargain.task, POOL, ["keep nothing"] * bargain.OFFERS + ["refuse"])
    assert payoffs == (0.0, 0.0)
    assert asked[-1][2] == ("refuse", "accept")


def test_fair_seats_agree_on_a_half_or_more() -> None:
    for question in bargain.load("test", limit=50):
        payoffs = between(bargain.task, question.prompt, (bargain.fair, bargain.fair), 0)
        assert min(payoffs) >= 0.0
        against = between(bargain.task, question.prompt, (bargain.fair, at_random), 0)
        assert against[0] >= 0.0
    agreed = [
        between(bargain.task, question.prompt, (bargain.fair, bargain.fair), 0)
        for question in bargain.load("test", limit=50)
    ]
    assert sum(max(payoffs) >= 0.5 for payoffs in agreed) > 40


def test_bargains_are_divided() -> None:
    check_task(bargain.task)
    with pytest.raises(UserMistake, match=r"task_options\.largest is 1"):
        bargain.load("train", largest=1)
