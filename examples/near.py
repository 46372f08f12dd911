"""A task of one's own: three of the four numbers, whose sum may miss the target by `slack`.  comas
train task=./examples/near.py

The puzzles, their wording and the reading of answers are those of the embedded task; what is right
is this file's. Questions have no answer: `verify` needs none, and the team is never told either.
"""

from dataclasses import replace

from comas.tasks.pick import extract
from comas.tasks.pick import task as pick
from comas.types import Question

SLACK = 2


def load(split, path=None, limit=None, seed=0, *, largest: int = 15):
    questions = pick.load(split, path, limit, seed, largest=largest)
    return [
        Question(id=f"near {question.prompt}", prompt=question.prompt) for question in questions
    ]


def verify(question, text):
    chosen = extract(question, text)
    if chosen is None:
        return "wrong"
    offered, target = question.prompt.split(" -> ")
    numbers = set(chosen.split())
    if len(numbers) != 3 or not numbers <= set(offered.split()):
        return "wrong"
    return "right" if abs(sum(map(int, numbers)) - int(target)) <= SLACK else "wrong"


task = replace(pick, name="near", load=load, verify=verify, check=None, pose=None)
