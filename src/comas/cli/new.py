"""`comas new`: the file of a method or a task to begin with, which passes its check.

Leaves out: the other kinds of files of one's own, whose examples stand in docs/extending.md.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from comas.program import command
from comas.types import UserMistake

METHOD = r'''"""A method of one's own: a peer's verdict is the reward.  comas train method=./NAME.py

Check it with `comas.testing.check_method`. Leaves out: a reward for the peer.
"""

from comas.game.prompts import defuse, words
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method

WORDING = {
    "solution": "{question}\n\nSolve it and end with the answer.",
    "evaluation": "{question}\n\nProposed:\n{work}\n\nCheck it. End with one word: right or wrong.",
}


async def play(question, agents, rng, task):
    author, peer = rng.sample(list(agents), 2)
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    solution = await author.ask("solution", prompt)
    work = defuse(task.shown(question, solution.text))
    asked = defuse(question.prompt)  # a quote: no line of it can be read as one of the prompt's own
    prompt = words(WORDING, task, "evaluation", question=asked, work=work)
    check = await peer.ask("evaluation", prompt, about=solution)
    verdict = check.text.split()[-1] if check.text.strip() else None
    check.info["verdict"] = verdict  # metrics and monitors read it, too
    return solution.text


def settle(episodes, task):
    for episode in episodes:
        solution, check = episode.turns
        # without a verdict no reward, and nothing is trained on
        solution.reward = {"right": 1.0, "wrong": 0.0}.get(check.info["verdict"])


method = Method(play, settle, reinforce_pp, clipped, kl={"solution": 0.1})
'''

TASK = '''"""A task of one's own: additions.  comas train task=./NAME.py base=MODEL lr=1e-4

Check it with `comas.testing.check_task`. Leaves out: questions of a file (`path`).
"""

import random

from comas.answers.boxed import WORDING, last_box
from comas.types import Question, Task


def load(split, path=None, limit=None, seed=0, *, largest: int = 40):
    pairs = [(a, b) for a in range(1, largest + 1) for b in range(1, largest + 1)]
    random.Random("NAME").shuffle(pairs)  # the splits do not depend on the seed
    fifth = len(pairs) // 5
    start, end = {"test": (0, 1), "validation": (1, 2), "train": (2, 5)}[split]
    part = pairs[start * fifth : end * fifth]
    random.Random(seed).shuffle(part)
    return [
        Question(id=f"NAME {a} {b}", prompt=f"What is {a} + {b}?", answer=str(a + b))
        for a, b in part[:limit]
    ]


def extract(question, text):
    return (last_box(text) or "").strip() or None  # None: nobody can read it


def verify(question, text):
    return "right" if extract(question, text) == question.answer else "wrong"


task = Task(name="NAME", load=load, verify=verify, extract=extract, wording=WORDING)
'''


class New(StrEnum):
    """Kinds of files that can be begun."""

    METHOD = "method"
    TASK = "task"


TEXTS = {New.METHOD: METHOD, New.TASK: TASK}
HOLE = "NAME"
"""The mark that stands for the name in these texts."""


def new(
    kind: Annotated[New, typer.Argument(help="What the file is.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="NAME.py is written here.")],
) -> None:
    """Write a first method or task of your own."""
    name = name.removesuffix(".py")
    if not name.isidentifier():
        raise UserMistake(f"{name}: letters, digits and _ are wanted, such as: {kind} mine")
    file = Path(f"{name}.py")
    try:
        with file.open("x", encoding="utf-8") as new_file:
            new_file.write(TEXTS[kind].replace(HOLE, name))
    except FileExistsError as error:
        raise UserMistake(f"{file} is there already: choose another name") from error
    print(f"{file}: it passes comas.testing.check_{kind}; change it (docs/extending.md)")
    print(f"next: {command()} play {kind}=./{file}" + (" base=MODEL" if kind is New.TASK else ""))
