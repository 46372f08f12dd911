"""Tic-tac-toe, which perfect players draw: nine cells, three in a row win.

A question is a position: nine cells row by row, each `x` (the first seat's), `o` (the second's) or
its number while it is empty. A seat sees the board with its own marks as `x`, whichever seat it
is. Training begins in positions after up to four random moves, since a policy that plays itself
soon visits few others (in a pilot half as many after 80 steps) and then loses to who does not play
like it; validation and test begin with the empty board. What is held out is the opponent, not the
position. Leaves out: boards of other sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from comas.game.moves import Move, at_the_end, verify_won
from comas.questions.sources import check_asked
from comas.types import Count, Question, Task, UserMistake, Whole

CELLS = tuple("123456789")
EMPTY = " ".join(CELLS)
"""The empty board."""
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
"""Places of three in a row."""
SPLITS = ("train", "validation", "test")
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
    plies: Whole | None = None,
    copies: Count = 512,
) -> list[Question]:
    """So many starts (`copies`) of a split, each after up to `plies` random moves (at most 4; None
    is 4 in training and 0 elsewhere), drawn by `seed`; positions may come again.

    `path` must be None: positions are generated.
    """
    check_asked("tictactoe", split, SPLITS, path)
    most = plies if plies is not None else PLIES if split == "train" else 0
    if most > PLIES:
        raise UserMistake(
            f"task_options.plies is {plies}: at most {PLIES}, since later positions can be won"
        )
    questions: list[Question] = []
    for copy in range(copies if limit is None else min(limit, copies)):
        name = f"tictactoe-{split}-{copy}"
        board = _after(most, random.Random(f"{name} {seed}"))
        questions.append(Question(id=name, prompt=" ".join(board), kind="tictactoe"))
    return questions


def _after(most: int, rng: random.Random) -> Board:
    """The board after up to `most` random moves, any number of them equally often."""
    board: Board = CELLS
    for ply in range(rng.randint(0, most)):
        board = _with(board, rng.choice(_empty(board)), "xo"[ply % 2])
    return board


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
    return any(all(board[cell] == mark for cell in line) for line in LINES)


def extract(question: Question, text: str) -> str | None:
    """The cell that a text ends with."""
    return at_the_end(text, CELLS)


def perfect(view: str, legal: Sequence[str], rng: random.Random) -> str:
    """A seat that never loses: one of the moves of greatest value, drawn."""
    board: Board = tuple(view.split())
    values = {cell: -_value(_turned(_with(board, cell, "x"))) for cell in legal}
    most = max(values.values())
    return rng.choice([cell for cell, value in values.items() if value == most])


@cache
def _value(board: Board) -> int:
    """Return what the seat to move gets between perfect players, its own marks being `x`."""
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
    verify=verify_won,
    extract=extract,
    rules=rules,
    seats={"best": perfect},
    wording=WORDING,
    max_tokens={"move": 64},
    base="tiny-games",
)
