"""Dividing a pool of things that are worth different amounts to two seats (arXiv 1706.05125).

A question is a pool of books, hats and balls, and what one of each is worth to either seat; all of
the pool is worth 10 to each, and a seat sees its own values alone. In turn a seat says what it
would keep, or accepts what the other leaves to it; after `OFFERS` offers without agreement nobody
gets anything. Payoffs are the worth of what a seat gets, over 10. Splits are disjoint by a hash of
pool and values. Leaves out: talk besides offers.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence

from comas.game.moves import Move, at_the_end, verify_won
from comas.questions.sources import check_asked, split_of_text
from comas.types import Count, Question, Task, UserMistake

THINGS = ("book", "hat", "ball")
TOTAL = 10
"""Worth of the whole pool to each seat."""
OFFERS = 6
"""Offers after which the game ends without agreement."""
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
"""Share of the questions in each split."""
ACCEPT = "accept"
NOTHING = "keep nothing"
Amounts = tuple[int, ...]
"""A number for each of `THINGS`: how many there are, or what one is worth."""

WORDING = {
    "move": (
        "You and another player divide books, hats and balls. Each of you knows only what they are"
        " worth to yourself. In turn you say what you would keep, the rest being the other's; who"
        f" accepts ends the game. Without agreement after {OFFERS} offers nobody gets anything."
        "\n\n{question}\n\nYour move, one of: {legal}. End your reply with the move alone."
    ),
}


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    largest: Count = 3,
) -> list[Question]:
    """All pools of one to `largest` of each thing, 4 to 6 in all, with all values for both seats,
    that belong to the split, in an order drawn by `seed`.

    `path` must be None: the questions are generated.
    """
    check_asked("bargain", split, SHARES, path)
    questions: list[Question] = []
    most = min(largest, 4)  # of six things in all, with one at least of each
    for pool in itertools.product(range(1, most + 1), repeat=len(THINGS)):
        if not 4 <= sum(pool) <= 6:
            continue
        values = _values(pool)
        for first, second in itertools.product(values, values):
            text = " | ".join(" ".join(map(str, part)) for part in (pool, first, second))
            if first != second and split_of_text("bargain", text, SHARES) == split:
                name = "bargain-" + re.sub(r"\W+", ".", text)
                questions.append(Question(id=name, prompt=text, kind="bargain"))
    if not questions:
        raise UserMistake(
            f"task_options.largest is {largest}: no pool has 4 things, take 2 or more"
        )
    random.Random(f"bargain {split} {seed}").shuffle(questions)
    return questions[:limit]


def _values(pool: Amounts) -> list[Amounts]:
    """List what one of each thing may be worth, so that the pool is worth `TOTAL`."""
    options = itertools.product(range(TOTAL + 1), repeat=len(THINGS))
    return [values for values in options if _worth(pool, values) == TOTAL]


async def rules(question: Question, move: Move, rng: random.Random) -> Sequence[float]:
    """Ask for offers until one is accepted; what each seat then has is worth to it."""
    pool, *values = (tuple(map(int, part.split())) for part in question.prompt.split("|"))
    offers: list[str] = []
    # the least first: what is no move counts as the first one, and must not be worth writing
    legal = tuple(_kept(amounts) for amounts in reversed(_parts(pool)))
    for turn in range(OFFERS + 1):
        seat = turn % 2
        answers = (*legal, ACCEPT) if offers else legal
        if turn == OFFERS:
            answers = ("refuse", ACCEPT)
        reply = await move(seat, _view(pool, values[seat], offers), answers)
        if reply == ACCEPT:
            asked_amounts = amounts_of(offers[-1])
            left = tuple(amount - taken for amount, taken in zip(pool, asked_amounts, strict=True))
            parts = (left, asked_amounts) if seat == 0 else (asked_amounts, left)
            return tuple(_worth(*pair) / TOTAL for pair in zip(parts, values, strict=True))
        offers.append(reply)
    return 0.0, 0.0


def _view(pool: Amounts, values: Amounts, offers: Sequence[str]) -> str:
    """Write what a seat sees: the pool, its own values, and the offers so far, whose they are."""
    prices = ", ".join(f"a {thing} {value}" for thing, value in zip(THINGS, values, strict=True))
    lines = [f"In the pool: {_counted(pool)}.", f"Worth to you: {prices}."]
    for place_of, offer in enumerate(offers):
        is_own = (len(offers) - place_of) % 2 == 0
        lines.append(f"{'You' if is_own else 'The other'}: {offer}.")
    lines.append(f"Offers that are left: {OFFERS - len(offers)}.")
    return "\n".join(lines)


def _parts(pool: Amounts) -> list[Amounts]:
    """Everything that can be kept, most first."""
    return sorted(itertools.product(*(range(count + 1) for count in pool)), reverse=True)


def _counted(amounts: Amounts) -> str:
    """`2 books and 1 hat`; what there is none of is left out."""
    counts = [
        f"{count} {thing}{'s' if count > 1 else ''}"
        for count, thing in zip(amounts, THINGS, strict=True)
        if count
    ]
    return " and ".join(counts)


def _kept(amounts: Amounts) -> str:
    """An offer in words."""
    return f"keep {_counted(amounts)}" if any(amounts) else NOTHING


def amounts_of(text: str) -> Amounts:
    """How many of each thing a text counts."""
    counts = {thing: int(count) for count, thing in re.findall(r"(\d+) (book|hat|ball)s?\b", text)}
    return tuple(counts.get(thing, 0) for thing in THINGS)


def _worth(amounts: Amounts, values: Amounts) -> int:
    """Return what so many of each are worth."""
    return sum(count * value for count, value in zip(amounts, values, strict=True))


def fair(view: str, legal: Sequence[str], rng: random.Random) -> str:
    """A seat that accepts half of its total or more, and otherwise asks for as little above half
    of it as there is, drawn; it accepts anything rather than nothing in the end.
    """
    pool = amounts_of(view.splitlines()[0])
    prices = dict(re.findall(r"a (book|hat|ball) (\d+)", view.splitlines()[1]))
    values = tuple(int(prices[thing]) for thing in THINGS)
    others = re.findall(r"^The other: (.*)\.$", view, re.MULTILINE)
    if others:
        taken = amounts_of(others[-1])
        left = tuple(amount - gone for amount, gone in zip(pool, taken, strict=True))
        if _worth(left, values) >= TOTAL / 2 or "refuse" in legal:
            return ACCEPT
    worths = {part: _worth(part, values) for part in _parts(pool)}
    least = min(worth for worth in worths.values() if worth >= TOTAL / 2)
    return _kept(rng.choice([part for part, worth in worths.items() if worth == least]))


def extract(question: Question, text: str) -> str | None:
    """The offer, or `accept`, that a text ends with."""
    return at_the_end(text, EVERY)


EVERY = (ACCEPT, "refuse", *map(_kept, itertools.product(range(10), repeat=len(THINGS))))
"""Every move of any pool."""


task = Task(
    name="bargain",
    load=load,
    verify=verify_won,
    extract=extract,
    rules=rules,
    seats={"fair": fair},
    wording=WORDING,
    max_tokens={"move": 128},
)
