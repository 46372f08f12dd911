"""A task of one's own: pay a bill with exactly three of the four coins in the purse.  comas train
task=./examples/coins.py

Worded in the tiny model's vocabulary, so that the embedded team can learn it. `data=FILE` reads own
questions, one `4 8 7 13 -> 19` per line (the first fifth is the test split, the next the validation
split); without it they are drawn.
"""

import itertools
import random
import re
from pathlib import Path

from comas.types import Question, Task

WORDING = {
    "solution": "solve {question} {history}",
    "evaluation": "check {question} {work}",
    "scoring": "score {question} {work} says {evaluation}",
    "scoring_bare": "score {question} {work}",
    "history": "peers {work} says {evaluation}",
    "remark": "peers {work} says {evaluation}",
    "history_bare": "peers {work}",
}


def load(split, path=None, limit=None, seed=0, *, largest: int = 12):
    if path:
        lines = [
            line.strip()
            for line in Path(path).read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    else:
        purses = itertools.combinations(range(1, largest + 1), 4)
        lines = [
            f"{' '.join(map(str, p))} -> {sum(c)}"
            for p in purses
            for c in itertools.combinations(p, 3)
        ]
        # which question is in which split does not depend on the seed
        random.Random("coins").shuffle(lines)
    fifth = len(lines) // 5
    part = {
        "test": lines[:fifth],
        "validation": lines[fifth : 2 * fifth],
        "train": lines[2 * fifth :],
    }[split]
    random.Random(seed).shuffle(part)
    return [Question(id=f"coins {line}", prompt=line) for line in part[:limit]]


def chosen(text):
    """The coins of the last try: `4 + 8 = 12 + 7 = 19` -> 4, 8, 7."""
    last = text.split(";")[-1].strip()
    return (
        re.findall(r"(?:^|\+ )(\d+)", last)
        if re.fullmatch(r"\d+( \+ \d+( = \d+)?)*", last)
        else None
    )


def extract(question, text):
    return " ".join(sorted(chosen(text), key=int)) if chosen(text) else None


def shown(question, text):
    return " ".join(["#", *(chosen(text) or [])])  # peers see the coins, not the sums


def verify(question, text):
    coins, purse, bill = chosen(text) or [], *question.prompt.split(" -> ")
    fits = (
        len(coins) == len(set(coins)) == 3
        and set(coins) <= set(purse.split())
        and sum(map(int, coins)) == int(bill)
    )
    return "right" if fits else "wrong"


room = {"solution": 64, "evaluation": 24, "scoring": 8}
task = Task(
    name="coins",
    load=load,
    verify=verify,
    extract=extract,
    shown=shown,
    wording=WORDING,
    max_tokens=room,
)
