"""Kuhn poker: three cards, one chip each, one bet; the smallest game in which bluffing wins.

A question is a deal: the card of the first seat, then that of the second. Seats pass or bet in
turn; who passes behind a bet folds. A seat sees its own card and the moves so far, so that there
are 12 things that it may see (information sets). Every split has all six deals: what is held out
is the draw of moves, not the deal, and there is nothing to memorise. Leaves out: how far a policy
is from an equilibrium (`tools/kuhn_policy.py`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from comas.game.moves import Move, at_the_end, verify_won
from comas.questions.sources import check_asked
from comas.types import Count, Question, Task

CARDS = ("jack", "queen", "king")
"""From the lowest to the highest."""
MOVES = ("pass", "bet")
ENDS = ("pass pass", "pass bet pass", "pass bet bet", "bet pass", "bet bet")
"""The lines of moves with which a game is over."""
DEALS = tuple(itertools.permutations(CARDS, 2))
SPLITS = ("train", "validation", "test")
BLUFF = 0.2
"""Frequency of first bets with a jack, which picks one of the family of equilibria; 0 to 1/3."""
BETS = {
    "jack": BLUFF,
    "queen": 0.0,
    "king": 3 * BLUFF,
    "jack pass": 1 / 3,
    "queen pass": 0.0,
    "king pass": 1.0,
    "jack bet": 0.0,
    "queen bet": 1 / 3,
    "king bet": 1.0,
    "jack pass bet": 0.0,
    "queen pass bet": BLUFF + 1 / 3,
    "king pass bet": 1.0,
}
"""View of a seat -> how often it bets in an equilibrium (Kuhn, 1950)."""

WORDING = {
    "move": (
        "Kuhn poker: a deck of a jack, a queen and a king; two players get a card each and put one"
        " chip into the pot. In turn they pass or bet one more chip. If both pass, or a bet is"
        " answered by a bet, the higher card takes the pot; who passes behind a bet folds and loses"
        " the chip.\n\nYour card, then the moves so far: {question}\n\nYour move, one of: {legal}."
        " End your reply with the move alone."
    ),
    "move_seed": "kuhn {question}",
}


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    copies: Count = 64,
) -> list[Question]:
    """All six deals, `copies` times over: the same in every split, with ids of their own.

    `path` must be None: there is nothing to read. The order is that of the deals, whatever `seed`.
    """
    check_asked("kuhn", split, SPLITS, path)
    questions: list[Question] = []
    for copy, deal in itertools.product(range(copies), DEALS):
        name = f"kuhn-{split}-{'-'.join(deal)}-{copy}"
        questions.append(Question(id=name, prompt=" ".join(deal), kind="kuhn"))
    return questions[:limit]


async def rules(question: Question, move: Move, rng: random.Random) -> Sequence[float]:
    """Ask for moves until a line ends; the chips that each seat wins."""
    cards = question.prompt.split()
    moves: list[str] = []
    while " ".join(moves) not in ENDS:
        seat = len(moves) % 2
        moves.append(await move(seat, " ".join([cards[seat], *moves]), MOVES))
    first = chips(cards[0], cards[1], " ".join(moves))
    return first, -first


def chips(first: str, second: str, line: str) -> float:
    """Return what the first seat wins with these cards and a line of `ENDS`."""
    if line == "bet pass":
        return 1.0
    if line == "pass bet pass":
        return -1.0
    stake = 1.0 if line == "pass pass" else 2.0
    return stake if CARDS.index(first) > CARDS.index(second) else -stake


def extract(question: Question, text: str) -> str | None:
    """The move that a text ends with."""
    return at_the_end(text, MOVES)


def equilibrium(view: str, legal: Sequence[str], rng: random.Random) -> str:
    """A seat that nobody beats in the mean: it bets as often as `BETS` says."""
    return "bet" if rng.random() < BETS[view] else "pass"


task = Task(
    name="kuhn",
    load=load,
    verify=verify_won,
    extract=extract,
    rules=rules,
    seats={"best": equilibrium},
    wording=WORDING,
    max_tokens={"move": 64},
    base="tiny-games",
)
