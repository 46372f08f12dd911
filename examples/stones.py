"""A game of one's own: take 1 to 3 stones in turn; who takes the last one wins.  comas train
method=mars task=./examples/stones.py base=./my-model lr=1e-4

`best` is a script that never loses from a won position: `comas eval RUN --tasks
./examples/stones.py --setups duel:against=best`.
"""

from comas.game.moves import at_the_end, won
from comas.types import Question, Task


async def rules(question, move, rng):
    stones = int(question.prompt)
    seat = 0
    while True:
        legal = [str(n) for n in (1, 2, 3) if n <= stones]
        stones -= int(await move(seat, f"Stones: {stones}.", legal))
        if stones == 0:
            return (1.0, -1.0) if seat == 0 else (-1.0, 1.0)
        seat = 1 - seat


def load(split, path=None, limit=None, seed=0):
    stones = {"train": range(5, 12), "validation": range(12, 16), "test": range(16, 24)}[split]
    return [Question(id=f"stones-{n}", prompt=str(n), kind="stones") for n in stones][:limit]


def extract(question, text):
    return at_the_end(text, ["1", "2", "3"])


def verify(question, text):
    return "right" if won(text) else "wrong"


def leave_fours(view, legal, rng):
    stones = int(view.removeprefix("Stones: ").rstrip("."))
    return str(stones % 4) if stones % 4 else rng.choice(legal)


task = Task(
    name="stones",
    load=load,
    extract=extract,
    verify=verify,
    rules=rules,
    seats={"best": leave_fours},
)
