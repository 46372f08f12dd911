"""Arithmetic puzzles with a gap between finding and checking: the embedded task.

Of a few distinct numbers choose some that add up to a target. `10 5 6 9 -> 24` in the form `three`
asks for three of the four; in the form `two` for two. A solution is a list of tries divided by `;`,
the last one is the answer.

- `two` (visible work): a try is `10 + 14 = 24`; peers see the whole text; the sum that is written
  must be true.
- `three` (hidden work, the default): a try is `10 + 5 = 15 + 9 = 24`; peers see only the numbers
  that were chosen,
  taken out by program (`# 10 5 9`), so that judging them takes work of the judge's own.

Questions are divided into four disjoint parts by a hash of their *set of numbers*: `warm`
(demonstrations of the tiny model), `train`, `validation` and `test`. Agents may pose puzzles of
their own (`pose`), of the first two parts only. Leaves out: anything that a stranger would call a
benchmark.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

from comas.questions.sources import check_asked, split_of_numbers
from comas.types import Count, Question, Task, UserMistake, Verdict

SHARES = {"warm": 0.40, "train": 0.30, "validation": 0.10, "test": 0.20}
"""Share of the number sets in each split, in the order in which the hash is cut."""

HELD_OUT = ("validation", "test")
"""Splits whose number sets nobody may pose."""

CHOSEN = {"two": 2, "three": 3}
"""How many numbers each form asks for."""

WORDING = {
    "solution": "solve {question} {history}",
    "history": "peers {work} says {evaluation}",
    "remark": "peers {work} says {evaluation}",
    "history_bare": "peers {work}",
    "revision": "solve {question} {history}",
    "evaluation": "check {question} {work}",
    "proxy": "check {question} {work}",
    "end": "right",
    # a judge that is asked for its weights is asked as it is for a grade
    "scoring": "score {question} {work} says {evaluation}",
    "scoring_bare": "score {question} {work}",
    "expected": "score {question} {work} says {evaluation}",
    "expected_bare": "score {question} {work}",
    "p_true": "score {question} {work} says {evaluation}",
    "p_true_bare": "score {question} {work}",
    "judging": "judge {question} {work}",
    "judging_expected": "judge {question} {work}",
    "judging_p_true": "judge {question} {work}",
    "rating": "rate {question}",
    "rating_expected": "rate {question}",
    "rating_p_true": "rate {question}",
    "mark": "<score> {mark}",
    "yes": "<score> 3",
    "no": "<score> 1",
    "sabotage": "spoil {question} {work}",
    "propose": "propose {history}",
    "evolve": "propose peers {question}",
    "reference": "peers {question}",
    "assess": "assess {question}",
    "hint": "solve {answer} {question}",
}
"""The task's wording per role: words of the tiny model's small vocabulary."""

_NUMBER = r"[0-9]{1,9}"
_LINE = re.compile(rf"{_NUMBER}(?: \+ {_NUMBER}(?: = {_NUMBER})?)*")
_OPERAND = re.compile(rf"(?:^|\+ )({_NUMBER})")
_PUZZLE = re.compile(r"([0-9]{1,2}(?: [0-9]{1,2}){1,14}) -> ([0-9]{1,2})")


def split_of(numbers: tuple[int, ...]) -> str:
    """The split that a set of numbers belongs to, whatever their order and the target."""
    return split_of_numbers("pick", numbers, SHARES)


def number_sets(split: str, count: int, largest: int) -> list[tuple[int, ...]]:
    """All sets of `count` distinct numbers in 1..`largest` that belong to `split`, in lexicographic
    order.
    """
    return [s for s in itertools.combinations(range(1, largest + 1), count) if split_of(s) == split]


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "three",
    largest: Count = 15,
    count: Count | None = None,
) -> list[Question]:
    """All questions of a split in an order drawn by `seed`, at most `limit`.

    `form` is `two` or `three`; `largest` bounds the numbers and `count` says how many are offered
    (default: four in `three`, three or four in `two`): both set the difficulty. `path` must be
    None: the puzzles are generated.
    """
    check_asked("pick", split, SHARES, path, form, CHOSEN)
    counts = [count] if count is not None else ([4] if form == "three" else [3, 4])
    if min(counts) <= CHOSEN[form] or not max(counts) <= largest <= 15:
        raise UserMistake(
            f"task pick cannot offer {counts} numbers of 1..{largest} in form {form!r} (largest: at"
            " most 15)"
        )
    pairs = [
        (numbers, target)
        for offers in counts
        for numbers in number_sets(split, offers, largest)
        for target in sorted({sum(c) for c in itertools.combinations(numbers, CHOSEN[form])})
    ]
    random.Random(f"pick {split} {form} {seed}").shuffle(pairs)
    questions = []
    for numbers, target in pairs[:limit]:
        key = f"pick-{form}-{'.'.join(map(str, numbers))}-{target}"
        offered = list(numbers)
        random.Random(key).shuffle(offered)
        questions.append(make_question(tuple(offered), target, form, key))
    return questions


def make_question(numbers: tuple[int, ...], target: int, form: str, key: str = "") -> Question:
    """The question that offers `numbers` in this order; its `answer` is the first right choice."""
    right = next(c for c in itertools.combinations(numbers, CHOSEN[form]) if sum(c) == target)
    return Question(
        id=key or f"pick-{form}-{'.'.join(map(str, numbers))}-{target}",
        prompt=f"{' '.join(map(str, numbers))} -> {target}",
        kind=form,
        answer=" ".join(map(str, sorted(right))),
        meta={"numbers": list(numbers), "target": target},
    )


def form_of(question: Question) -> str:
    """The form of a puzzle: the first word of its kind, behind which may stand its level."""
    return question.kind.partition(" ")[0]


def _last_line(text: str) -> str | None:
    """The last try, if the whole text keeps to the form."""
    lines = [line.strip() for line in text.split(";")]
    return lines[-1] if all(_LINE.fullmatch(line) for line in lines) else None


def _chosen(text: str) -> list[int] | None:
    line = _last_line(text)
    return [int(n) for n in _OPERAND.findall(line)] if line is not None else None


def extract(question: Question, text: str) -> str | None:
    """The chosen numbers in ascending order (`5 9 10`), or None where a line of the text does not
    keep to the form.
    """
    chosen = _chosen(text)
    return None if chosen is None else " ".join(map(str, sorted(chosen)))


def shown(question: Question, text: str) -> str:
    """Return what peers see: all of it in `two`; in `three` the chosen numbers in the order of
    writing, or `#` for none.
    """
    if form_of(question) == "two":
        return "# " + text
    return " ".join(["#", *map(str, _chosen(text) or [])])


def verify(question: Question, text: str) -> Verdict:
    """Right: the right count of distinct numbers, all offered, that add up to the target (in `two`:
    also as written).
    """
    chosen = _chosen(text)
    form = form_of(question)
    if chosen is None or len(chosen) != CHOSEN[form] or len(set(chosen)) != len(chosen):
        return "wrong"
    if not set(chosen) <= set(question.meta["numbers"]) or sum(chosen) != question.meta["target"]:
        return "wrong"
    if form == "two" and (_last_line(text) or "").split(" = ")[-1] != str(sum(chosen)):
        return "wrong"
    return "right"


def pose(text: str) -> Question | None:
    """The puzzle of form `three` that a text proposes, solvable or not; None where it proposes
    none, or where the set of numbers belongs to a held-out split.
    """
    proposal = read_proposal(text)
    if proposal is None or split_of(tuple(proposal[0])) in HELD_OUT:
        return None
    numbers, target = proposal
    return Question(
        id=f"posed-three-{'.'.join(map(str, numbers))}-{target}",
        prompt=f"{' '.join(map(str, numbers))} -> {target}",
        kind="three",
        meta={"numbers": numbers, "target": target},
    )


def read_proposal(text: str) -> tuple[list[int], int] | None:
    """Read the four distinct numbers of 1..15 and the target of a puzzle that ends a text, after
    any tries that its author made.

    Puzzles of form `two` cannot be proposed: four numbers read the same in both forms.
    """
    *tries, last = (part.strip() for part in text.split(";"))
    puzzle = _read_puzzle(last)
    if puzzle is None or not all(_LINE.fullmatch(line) for line in tries):
        return None
    distinct = set(puzzle[0])
    if len(puzzle[0]) != 4 or len(distinct) != 4 or min(distinct) < 1 or max(distinct) > 15:
        return None
    return puzzle


def check(question: Question, text: str) -> Verdict:
    """`verify` by what the question's own text offers and asks for, so that it holds for posed
    questions too; no work is right where that text is no puzzle.
    """
    puzzle = _read_puzzle(question.prompt)
    if puzzle is None or form_of(question) not in CHOSEN:
        return "wrong"
    numbers, target = puzzle
    return verify(replace(question, meta={"numbers": numbers, "target": target}), text)


def rephrase(question: Question, rng: random.Random) -> Question | None:
    """Put the numbers into another order, in which none has kept its place; None where the text is
    no puzzle.
    """
    puzzle = _read_puzzle(question.prompt)
    if puzzle is None:
        return None
    numbers, target = puzzle
    places = list(range(len(numbers)))
    while any(index == before for before, index in enumerate(places)):
        rng.shuffle(places)
    moved = " ".join(str(numbers[index]) for index in places)
    prompt = f"{moved} -> {target}"
    return replace(question, prompt=prompt) if prompt != question.prompt else None


def _read_puzzle(text: str) -> tuple[list[int], int] | None:
    """The offered numbers and the target of `10 5 6 9 -> 24`."""
    match = _PUZZLE.fullmatch(text)
    if match is None:
        return None
    return [int(n) for n in match[1].split()], int(match[2])


task = Task(
    name="pick",
    load=load,
    wording=WORDING,
    extract=extract,
    shown=shown,
    verify=verify,
    quick=True,
    pose=pose,
    check=check,
    rephrase=rephrase,
    max_tokens={
        "solution": 64,
        "revision": 64,
        "evaluation": 24,
        "proxy": 24,
        "scoring": 8,
        "judging": 32,
        "sabotage": 64,
        "propose": 32,
        "evolve": 32,
        "rating": 40,
        "assess": 40,
        "hint": 64,
    },
    base="tiny",
)
