"""Tic-tac-toe, which perfect players draw: nine cells, three in a row win.

A question is a position: nine cells row by row, each `x` (the first seat's), `o` (the second's) or
its number while it is empty. A seat sees the board with its own marks as `x`, whichever seat it
is. Every split has the empty board `copies` times; with `plies` a split has positions of its own
after so many moves. Leaves out: boards of other sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from comas.game.moves import Move, at_the_end, won
from comas.questions.number_splits import split_of_numbers
from comas.types import Count, Question, Task, UserMistake, Verdict, Whole

CELLS = tuple("123456789")
EMPTY = " ".join(CELLS)
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
"""Places of three in a row."""
SHARES = {"train": 0.6, "validation": 0.1, "test": 0.3}
"""Share of the positions in each split, where there are any but the empty board."""
PLIES = 4
"""Most moves before a question begins: nobody can have won."""
SWAP = str.maketrans("xo", "ox")
Board = tuple[str, ...]

WORDING = {
    "move": (
        "Tic-tac-toe: cells 1 to 9, row by row; three of your marks in a row, a column or a"
        " diagonal win. Yours are x, the other player's o, and an empty cell shows its"
        " number:\n\n{question}\n\nYour move, one of: {legal}. End your reply with the number of a"
        " cell alone."
    ),
    "move_seed": "board {question}",
}


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    plies: Whole = 0,
    copies: Count = 512,
) -> list[Question]:
    """The empty board `copies` times, in every split; with `plies` (at most 4) the positions after
    so many moves that belong to the split, in an order drawn by `seed`.

    `path` must be None: positions are generated.
    """
    if path is not None:
        raise UserMistake(f"task tictactoe makes its positions: leave out path={path!r}")
    if split not in SHARES:
        raise UserMistake(f"task tictactoe has no split {split!r}: one of {', '.join(SHARES)}")
    if plies > PLIES:
        raise UserMistake(
            f"task_options.plies is {plies}: at most {PLIES}, since later positions can be won"
        )
    if plies == 0:
        names = [f"tictactoe-{split}-{copy}" for copy in range(copies)]
        return [Question(id=name, prompt=EMPTY, kind="tictactoe") for name in names[:limit]]
    positions = sorted(board for board in _after(plies) if _split_of(board) == split)
    random.Random(f"tictactoe {split} {seed}").shuffle(positions)
    questions: list[Question] = []
    for board in positions[:limit]:
        name = f"tictactoe-{''.join(board)}"
        questions.append(Question(id=name, prompt=" ".join(board), kind="tictactoe"))
    return questions


def _after(plies: int) -> set[Board]:
    """All boards after so many moves."""
    boards = {CELLS}
    for ply in range(plies):
        mark = "xo"[ply % 2]
        boards = {_with(board, cell, mark) for board in boards for cell in _empty(board)}
    return boards


def _split_of(board: Board) -> str:
    """The split that a position belongs to, by the cells of either seat."""
    firsts = [place for place, cell in enumerate(board) if cell == "x"]
    seconds = [10 + place for place, cell in enumerate(board) if cell == "o"]
    return split_of_numbers("tictactoe", firsts + seconds, SHARES)


async def rules(question: Question, move: Move, rng: random.Random) -> Sequence[float]:
    """Ask for cells until three in a row or a full board: 1 for who wins, -1 for who loses."""
    board: Board = tuple(question.prompt.split())
    while _empty(board):
        seat = (len(CELLS) - len(_empty(board))) % 2
        cell = await move(seat, _seen_by(seat, board), _empty(board))
        mark = "xo"[seat]
        board = _with(board, cell, mark)
        if _has_won(board, mark):
            return (1.0, -1.0) if seat == 0 else (-1.0, 1.0)
    return 0.0, 0.0


def _seen_by(seat: int, board: Board) -> str:
    """The board in three rows, with the seat's own marks as `x`."""
    cells = [cell.translate(SWAP) for cell in board] if seat else list(board)
    rows = [" ".join(cells[start : start + 3]) for start in (0, 3, 6)]
    return "\n".join(rows)


def _empty(board: Board) -> Board:
    """The cells that are free, in their order."""
    return tuple(cell for cell in board if cell in CELLS)


def _with(board: Board, cell: str, mark: str) -> Board:
    """The board with one more mark."""
    return tuple(mark if other == cell else other for other in board)


def _has_won(board: Board, mark: str) -> bool:
    """Whether this mark has three in a row."""
    return any(all(board[place] == mark for place in line) for line in LINES)


def extract(question: Question, text: str) -> str | None:
    """The cell that a text ends with."""
    return at_the_end(text, CELLS)


def verify(question: Question, text: str) -> Verdict:
    """Right where a duel was won; a draw is not."""
    return "right" if won(text) else "wrong"


def perfect(view: str, legal: Sequence[str], rng: random.Random) -> str:
    """A seat that never loses: one of the moves of greatest value, drawn."""
    board: Board = tuple(view.split())
    values = {cell: -_value(_turned(_with(board, cell, "x"))) for cell in legal}
    most = max(values.values())
    return rng.choice([cell for cell, value in values.items() if value == most])


@cache
def _value(board: Board) -> int:
    """What the seat to move gets between perfect players, its own marks being `x`."""
    if _has_won(board, "o"):
        return -1
    values = [-_value(_turned(_with(board, cell, "x"))) for cell in _empty(board)]
    return max(values, default=0)


def _turned(board: Board) -> Board:
    """The board as the other seat sees it."""
    return tuple(cell.translate(SWAP) for cell in board)


task = Task(
    name="tictactoe",
    load=load,
    verify=verify,
    extract=extract,
    rules=rules,
    seats={"best": perfect},
    wording=WORDING,
    max_tokens={"move": 64},
    base="seed-games",
)
