"""Games of seats and moves: what methods and evaluation share of a task with `rules`.

A seat is an agent or a script. An agent is asked in the role `move`, with the task's wording or the
one below; policies that descend from shipped models are asked with `move_seed`, where the task has
that: they know few words. Replies are read by `Task.extract`, and a move that is not legal becomes
the first legal one. Leaves out: what games are worth (methods), other roles than `move`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from typing import Any

from comas.game.agent import Agent, choose
from comas.game.play import brief, own_file
from comas.game.prompts import clean, words
from comas.types import Episode, Question, Task, Turn, UserMistake, Verdict

WORDING = {
    "move": (
        "{question}\n\nIt is your turn. Your move, one of: {legal}. End your reply with the move"
        " alone."
    ),
}
FREE = "anything, in your own words"
"""Words for the legal moves where any text is one."""
LONGEST = 200
"""Moves after which a game is given up: nobody has won, and nobody is rewarded."""

Move = Callable[[int, str, Sequence[str]], Awaitable[str]]
"""`move(seat, view, legal)`: what the seat does that sees `view`; one of `legal`, or any text where
that is empty.
"""
Script = Callable[[str, Sequence[str], random.Random], str]
"""`script(view, legal, rng)`: the move of a seat that no agent has."""


def at_random(view: str, legal: Sequence[str], rng: random.Random) -> str:
    """A script that draws any legal move, and says nothing where any text is one."""
    return rng.choice(legal) if legal else ""


class Unended(Exception):
    """A game asks for more than `LONGEST` moves."""


@dataclass
class Match:
    """A game that is being played."""

    question: Question
    task: Task
    seats: Sequence[Agent | Script]
    rng: random.Random
    moves: int = 0
    open: int = 0
    """Moves that are waited for."""
    answered: int = 0
    """Moves that have been made since there was none open."""
    last: dict[int, Turn] = field(default_factory=dict[int, Turn])
    """Seat -> its latest turn."""

    def move(self, seat: int, view: str, legal: Sequence[str]) -> Coroutine[Any, Any, str]:
        """Have a seat move. The turn is named, and a script draws, when this is called."""
        self._check(seat, view, legal)
        if self.open == 0:
            self.answered = 0
        elif self.answered:
            raise UserMistake(
                f"task {self.task.name}: rules ask for a move while only some of the moves asked"
                " for side by side have come: wait for all of them, so that no name of a turn"
                " follows arrival"
            )
        if self.moves == LONGEST:
            raise Unended
        self.moves += 1
        self.open += 1
        player = self.seats[seat]
        if not isinstance(player, Agent):
            return self._made(self._scripted(player, view, legal))
        few = player.member.few_words and "move_seed" in self.task.wording
        role = "move_seed" if few else "move"
        legal_text = ", ".join(legal) or FREE
        prompt = words(WORDING, self.task, role, question=view, legal=legal_text)
        reply = player.ask("move", prompt, round=self.moves - 1)
        return self._read(reply, seat, view, legal)

    def _check(self, seat: Any, view: Any, legal: Any) -> None:
        """An error where rules ask for a move as nobody can be asked for one."""
        name = self.task.name
        if not isinstance(seat, int) or not 0 <= seat < len(self.seats):
            raise UserMistake(
                f"task {name}: rules ask seat {brief(seat)} for a move, and there are"
                f" {len(self.seats)} seats, from 0"
            )
        if not isinstance(view, str):
            raise UserMistake(f"task {name}: rules show {brief(view)} to a seat, wanted is a text")
        if not isinstance(legal, list | tuple) or not all(isinstance(m, str) for m in legal):
            raise UserMistake(
                f"task {name}: rules allow the moves {brief(legal)}, wanted is a list of texts,"
                " empty where any text is a move"
            )

    def _scripted(self, script: Script, view: str, legal: Sequence[str]) -> str:
        """The move of a script, which has to be legal."""
        if not callable(script):
            raise UserMistake(
                f"task {self.task.name}: a scripted seat is {brief(script)}, wanted is a function"
                " of what it sees, the legal moves and an rng"
            )
        move = script(view, legal, self.rng)
        if legal and move not in legal:
            raise UserMistake(
                f"task {self.task.name}: a scripted seat moves {brief(move)}, which is not legal:"
                f" one of {', '.join(legal)}"
            )
        return move

    async def _made(self, move: str) -> str:
        self.open -= 1
        self.answered += 1
        return move

    async def _read(
        self, asked: Coroutine[Any, Any, Turn], seat: int, view: str, legal: Sequence[str]
    ) -> str:
        """The move that an agent's reply makes; free words are defused, since rules quote them to
        other seats.
        """
        turn = await asked
        self.last[seat] = turn
        reply = turn.text if turn.finished else None
        if legal and reply is not None:
            reply = self.task.extract(self.question, reply)
        is_legal = reply is not None and (reply in legal or not legal)
        turn.info |= {"seat": seat, "view": view, "readable": reply is not None, "legal": is_legal}
        if legal:
            move = reply if reply is not None and is_legal else legal[0]
            turn.info["move"] = move
        else:
            move = clean(reply or "")
        return await self._made(move)


async def played(
    question: Question, seats: Sequence[Agent | Script], rng: random.Random, task: Task
) -> list[float] | None:
    """Play a game to its end: the payoff of each seat, which its last turn has as
    `info["payoff"]`; None where it does not end, and nobody has one.
    """
    assert task.rules is not None, "needs"
    match = Match(question, task, seats, rng)
    returned: Any = None
    ended = False
    try:
        with own_file(task.rules, f"task {task.name}: rules"):
            returned = await task.rules(question, match.move, rng)
            ended = True
    except* Unended:  # bare, or out of the game's own task groups
        for turn in match.last.values():
            turn.info["unended"] = True
    if not ended:
        return None
    if not _are_payoffs(returned, len(seats)):
        raise UserMistake(
            f"task {task.name}: rules returned {brief(returned)}, wanted is a payoff for each of"
            f" {len(seats)} seats, a finite number"
        )
    payoffs = [float(payoff) for payoff in returned]
    for seat, turn in match.last.items():
        turn.info["payoff"] = payoffs[seat]
    return payoffs


def _are_payoffs(returned: Any, seats: int) -> bool:
    if not isinstance(returned, Sequence) or len(returned) != seats:
        return False
    return all(isinstance(p, Real) and math.isfinite(p) for p in returned)


async def facing(
    question: Question,
    rows: Sequence[Agent],
    columns: Sequence[Agent],
    rng: random.Random,
    task: Task,
) -> float | None:
    """Play a game of two, one of `rows` in the first seat and one of `columns` in the second; the
    payoff of the first, None where it does not end.
    """
    seats = [choose(rows, rng, "move"), choose(columns, rng, "move")]
    payoffs = await played(question, seats, rng, task)
    return None if payoffs is None else payoffs[0]


def by_seat(episode: Episode) -> dict[int, list[Turn]]:
    """Seat -> its turns in a game that ended; nothing of one that did not."""
    seats: dict[int, list[Turn]] = {}
    for turn in episode.turns:
        if "seat" in turn.info:
            seats.setdefault(turn.info["seat"], []).append(turn)
    return {seat: turns for seat, turns in seats.items() if "payoff" in turns[-1].info}


def outcome(payoffs: Sequence[float] | None, seat: int) -> str | None:
    """Say what a game of two came to for a seat, as the text that answers: `won`, `drawn` or
    `lost`, by whether its payoff is greater than the other's, and the payoff; None where it did not
    end.
    """
    if payoffs is None:
        return None
    own_payoff = payoffs[seat]
    other = payoffs[1 - seat]
    word = "drawn" if own_payoff == other else "won" if own_payoff > other else "lost"
    return f"{word} {own_payoff:g}"


_OUTCOME = re.compile(r"(won|drawn|lost) (-?[\d.]+(?:e[+-]?\d+)?)")


def payoff_in(text: str | None) -> float | None:
    """The payoff of an answer that `outcome` wrote; None for any other text."""
    match = _OUTCOME.fullmatch(text or "")
    return None if match is None else float(match[2])


def won(text: str) -> bool:
    """Whether an answer is the outcome of a game that was won."""
    match = _OUTCOME.fullmatch(text)
    return match is not None and match[1] == "won"


def verify_won(question: Question, text: str) -> Verdict:
    """Right where a duel was won: `Task.verify` of games."""
    return "right" if won(text) else "wrong"


_NUMBER = re.compile(r"(?:\d[.,]|(?<!\S)[-\u2212])\Z")
"""Signs that make the digits behind them a part of another number: `1.5`, `-3`."""
_TAIL = re.compile(r"[\s.!?*_`'\")\]]*\Z")


def at_the_end(text: str, moves: Sequence[str]) -> str | None:
    """The move that a text ends with, whatever its case, blanks and the marks behind it; None
    where it ends otherwise. Of moves that end alike it is the longest.
    """
    plain = " " + _plain(text[-400:])
    ends = _ends_of(tuple(moves))
    fitting = [move for move, end in ends.items() if _ends_with(plain, end)]
    return max(fitting, key=len, default=None)


@lru_cache(maxsize=64)
def _ends_of(moves: tuple[str, ...]) -> dict[str, str]:
    """Move -> what a reply that makes it ends with; a game asks for the same ones again and again.
    A move that is nothing but marks cannot be told from those behind a sentence.
    """
    ends = {move: _plain(move) for move in moves}
    return {move: end for move, end in ends.items() if end}


def _plain(text: str) -> str:
    """A text in small letters, with single blanks and without the marks behind it."""
    return " ".join(_TAIL.sub("", text.casefold()).split())


def _ends_with(plain: str, end: str) -> bool:
    """Whether a text ends with this, as words of their own."""
    before = plain[-len(end) - 1 : -len(end)]
    if not plain.endswith(end) or before.isalnum() or before == "_":
        return False
    return not (end[0].isdigit() and _NUMBER.search(plain[: -len(end)]))
