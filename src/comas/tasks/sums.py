"""Arithmetic in plain language, generated, for models that speak: additions, calculations, stories.

- `addition` (the default): `What is 4 + 12?`
- `arithmetic`: `What is (4 + 12) x 3?`, with the four operations
- `story`: `Mia has 4 apples. She finds 12 more. How many apples does Mia have now?`

`steps` operations on numbers of 1..`largest` set the difficulty. Questions are divided into
disjoint splits by a hash of their *numbers*, whatever the order, the operations and the words, so
that no problem on held-out numbers is trained on or posed. A reply answers by its last
`\\boxed{...}`, or by the last number in it. Leaves out: negative numbers, fractions, words for
numbers.
"""

from __future__ import annotations

import hashlib
import operator
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from comas.answers import boxed
from comas.answers.numbers import as_canonical
from comas.questions.sources import check_asked, split_of_numbers
from comas.types import Count, Question, Task, UserMistake, Verdict

SHARES = {"train": 0.45, "validation": 0.15, "test": 0.40}
"""Share of the sets of numbers in each split, in the order in which the hash is cut."""
HELD_OUT = ("validation", "test")
"""Splits whose numbers nobody may pose."""
OPERATIONS = {"addition": "+", "arithmetic": "+-x/", "story": "+-x/"}
"""Operations that each form does with numbers."""
OPERATORS = {"+": operator.add, "-": operator.sub, "x": operator.mul, "/": operator.floordiv}
MOST = 999
"""Largest number in a problem, results on the way included."""
MOST_STEPS = 3
DRAWS = 20_000
"""Tries to draw another question of a split before it counts as exhausted."""

NAMES = ("Mia", "Tom", "Ana", "Ben", "Lea", "Sam", "Eva", "Max")
THINGS = ("apples", "books", "coins", "cards", "pens", "shells", "stamps", "cookies")
BEGINNING = "{name} has {n} {things}."
SENTENCES = {
    "+": ("{name} buys {n} more.", "{name} finds {n} more.", "A friend gives {name} {n} more."),
    "-": ("{name} loses {n} of them.", "{name} sells {n} of them.", "{name} eats {n} of them."),
    "x": ("A year later {name} has {n} times as many.",),
    "/": ("{name} packs them into {n} equal boxes and keeps only one box.",),
}
"""Sentences of a story, by operation."""
ENDING = "How many {things} does {name} have now?"

REWORDED = ("Compute {}.", "Calculate {}.", "How much is {}?")
"""Other words for `What is 4 + 12?`: of rephrased questions, never of posed ones."""

WORDING = {
    "solution": "{question} Give a short answer.\n\n{history}",
    "history": "Somebody answered: {work}\nA remark on that: {evaluation}\n",
    "history_bare": "Somebody answered: {work}\n",
    "remark": "A remark on that: {evaluation}\n",
    "revision": "{question} Give a short answer.\n\nYour answer so far: {own}\n\n{history}",
    "evaluation": (
        "Question: {question}\nProposed answer: {work}\n\nWork out the answer yourself, then say"
        " whether the proposed answer is right or wrong."
    ),
    "scoring": (
        "Question: {question}\nProposed answer: {work}\nA remark on it: {evaluation}\n\nHow good is"
        " the proposed answer? 3: right; 2: right, with small flaws; 1: wrong. End with"
        " <score>3</score>, <score>2</score> or <score>1</score>."
    ),
    "scoring_bare": (
        "Question: {question}\nProposed answer: {work}\n\nHow good is the proposed answer? 3:"
        " right; 2: right, with small flaws; 1: wrong. End with <score>3</score>,"
        " <score>2</score> or <score>1</score>."
    ),
}

_NUMBER = re.compile(r"(?<![\d.])(?:(?<![\w)])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
"""A number in prose; a minus is its sign where nothing precedes that it could subtract from."""
_OPERAND = re.compile(r"(?<=[\d)])\s*[-−+x×*/÷]\s*\(*[\d.,]*\d\W*\Z")
"""The end of a calculation without its result."""
_CALCULATION = re.compile(r"What is ([(]*[0-9][0-9 +x/()-]*)\?")
_TERM = re.compile(r"([+x/-]) ([0-9]{1,3})")


@dataclass(frozen=True)
class Problem:
    """Numbers, and what is done with them from left to right."""

    numbers: tuple[int, ...]
    """The first, and one per operation."""
    operations: str
    """Operations, each one of `+-x/`."""

    @property
    def answer(self) -> int | None:
        """Return the result; None where one on the way is no number of 0..MOST."""
        value: int | None = self.numbers[0]
        for operation, operand in zip(self.operations, self.numbers[1:], strict=True):
            value = _applied(value, operation, operand) if value is not None else None
        return value

    def __str__(self) -> str:
        pairs = zip(self.operations, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{sign}{operand}" for sign, operand in pairs)


def _applied(value: int, operation: str, operand: int) -> int | None:
    """One operation; None where nobody would ask for it: a result outside of 0..MOST, a remainder,
    times or divided by one.
    """
    if (operation in "x/" and operand < 2) or (operation == "/" and value % operand):
        return None
    result = OPERATORS[operation](value, operand)
    return result if 0 <= result <= MOST else None


@lru_cache(maxsize=65536)
def split_of(numbers: tuple[int, ...]) -> str:
    """The split that numbers belong to, whatever their order and what is done with them."""
    return split_of_numbers("sums", numbers, SHARES)


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "addition",
    steps: Count = 1,
    largest: Count = 20,
) -> list[Question]:
    """Questions of a split in an order drawn by `seed`, at most `limit`; all of them where numbers
    and steps are few, otherwise those of 20,000 draws.

    `form` is `addition`, `arithmetic` or `story`; `steps`, one to three, counts the operations, and
    `largest` bounds the numbers. `path` must be None: the questions are generated.
    """
    check_asked("sums", split, SHARES, path, form, OPERATIONS)
    if steps > MOST_STEPS or not 5 <= largest <= 100:
        raise UserMistake(
            f"task sums cannot make problems of {steps} steps on numbers of 1..{largest}: steps are"
            f" at most {MOST_STEPS}, largest is 5 to 100"
        )
    rng = random.Random(f"sums {split} {form} {steps} {largest} {seed}")
    questions: dict[str, Question] = {}
    for _ in range(DRAWS):
        if limit is not None and len(questions) >= limit:
            break
        problem = _drawn(rng, OPERATIONS[form], steps, largest)
        if problem is None or split_of(problem.numbers) != split:
            continue
        key = f"sums-{form}-{problem}"
        if key not in questions:
            questions[key] = _question(key, form, problem)
    return list(questions.values())


def _drawn(rng: random.Random, operations: str, steps: int, largest: int) -> Problem | None:
    """A problem whose results on the way are numbers of 0..MOST; None where one cannot go on."""
    value = rng.randint(1, largest)
    numbers = [value]
    signs = ""
    for _ in range(steps):
        sign = rng.choice(operations)
        results = {n: _applied(value, sign, n) for n in range(1, largest + 1)}
        possible = {n: result for n, result in results.items() if result is not None}
        if not possible:
            return None
        operand = rng.choice(list(possible))
        numbers.append(operand)
        signs += sign
        value = possible[operand]
    return Problem(tuple(numbers), signs)


def _question(key: str, form: str, problem: Problem) -> Question:
    """The question that asks for a problem's answer; `key` draws the words of a story."""
    prompt = _story(key, problem) if form == "story" else f"What is {_formula(problem)}?"
    return Question(id=key, prompt=prompt, kind=form, answer=str(problem.answer))


def _formula(problem: Problem) -> str:
    """`(4 + 12) x 3`; a sum of sums needs no parentheses."""
    brackets = set(problem.operations) != {"+"}
    text = str(problem.numbers[0])
    for at, (sign, operand) in enumerate(zip(problem.operations, problem.numbers[1:], strict=True)):
        text = f"({text})" if brackets and at else text
        text += f" {sign} {operand}"
    return text


def _story(key: str, problem: Problem) -> str:
    """A story in which a problem's operations happen one after the other."""
    rng = random.Random(key)
    facts = {"name": rng.choice(NAMES), "things": rng.choice(THINGS)}
    sentences = [BEGINNING.format(n=problem.numbers[0], **facts)]
    for sign, operand in zip(problem.operations, problem.numbers[1:], strict=True):
        sentences.append(rng.choice(SENTENCES[sign]).format(n=operand, **facts))
    sentences.append(ENDING.format(**facts))
    return " ".join(sentences)


def read_problem(prompt: str) -> tuple[str, Problem] | None:
    """The form and the problem of a question's text; None where it is not one that this task could
    have made.
    """
    calculation = _CALCULATION.fullmatch(prompt)
    problem = _read_calculation(calculation[1]) if calculation else _read_story(prompt)
    if problem is None or problem.answer is None:
        return None
    if calculation is None:
        return "story", problem
    form = "addition" if set(problem.operations) == {"+"} else "arithmetic"
    return (form, problem) if _formula(problem) == calculation[1] else None


def _read_calculation(text: str) -> Problem | None:
    first = re.match(r"\(*([0-9]{1,3})\b", text)
    terms = _TERM.findall(text)
    if first is None or not 1 <= len(terms) <= MOST_STEPS:
        return None
    numbers = (int(first[1]), *(int(operand) for _, operand in terms))
    return Problem(numbers, "".join(sign for sign, _ in terms))


def _read_story(text: str) -> Problem | None:
    beginning = re.match(r"([A-Z][a-z]+) has ([0-9]{1,3}) ([a-z]+)\. ", text)
    if beginning is None:
        return None
    facts = {"name": beginning[1], "things": beginning[3]}
    ending = " " + ENDING.format(**facts)
    if not text.endswith(ending):
        return None
    numbers = [int(beginning[2])]
    signs = ""
    for sentence in re.findall(r"[^.]+\.", text[beginning.end() : -len(ending)]):
        event = _read_event(sentence.strip(), facts)
        if event is None:
            return None
        signs += event[0]
        numbers.append(event[1])
    return Problem(tuple(numbers), signs) if 1 <= len(signs) <= MOST_STEPS else None


def _read_event(sentence: str, facts: Mapping[str, str]) -> tuple[str, int] | None:
    """The operation and the number of a sentence of a story."""
    for sign, templates in SENTENCES.items():
        for template in templates:
            pattern = re.escape(template.format(n="#", **facts)).replace("\\#", "([0-9]{1,3})")
            if match := re.fullmatch(pattern, sentence):
                return sign, int(match[1])
    return None


def extract(question: Question, text: str) -> str | None:
    """The number in the last box, or the last number of the text where nothing is boxed; None where
    that number is an operand: a calculation without its result (`31 - 2`) gives no answer.
    """
    if not boxed.BOX.search(text) and _OPERAND.search(text):
        return None
    return as_canonical(boxed.answer_in(text, _NUMBER))


def verify(question: Question, text: str) -> Verdict:
    """Right if the reply's answer is the number that is asked for."""
    return boxed.compared(extract(question, text), question.answer)


def pose(text: str) -> Question | None:
    """The question in the last line of a text; None where that is no question of this task, or one
    on held-out numbers.
    """
    lines = text.strip().splitlines()
    prompt = lines[-1].strip() if lines else ""
    proposal = read_problem(prompt)
    if proposal is None or split_of(proposal[1].numbers) in HELD_OUT:
        return None
    key = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    return Question(id=f"posed-sums-{key}", prompt=prompt, kind=proposal[0])


def check(question: Question, text: str) -> Verdict:
    """`verify` by the question's own text, so that it holds for posed and rephrased questions too;
    nothing is right where that text is no question of this task.
    """
    asked = read_problem(question.prompt) or _read_reworded(question.prompt)
    right = asked is not None and extract(question, text) == str(asked[1].answer)
    return "right" if right else "wrong"


def rephrase(question: Question, rng: random.Random) -> Question | None:
    """Put the numbers into other words, the terms of an addition into another order; None where the
    text is no question of this task.
    """
    asked = read_problem(question.prompt)
    if asked is None:
        return None
    form, problem = asked
    if form != "story":
        moved = _with_terms_moved(problem, rng)
        prompt = rng.choice(REWORDED).format(_formula(moved))
        return replace(question, prompt=prompt)
    prompt = question.prompt
    while prompt == question.prompt:  # the same events, of somebody else or of other things
        prompt = _story(f"retold {rng.random()}", problem)
    return replace(question, prompt=prompt)


def _with_terms_moved(problem: Problem, rng: random.Random) -> Problem:
    """The problem with the terms that it begins by adding up in an order that begins otherwise."""
    terms = 1 + len(problem.operations) - len(problem.operations.lstrip("+"))
    by = rng.randrange(1, terms) if terms > 1 else 0
    added = problem.numbers[:terms]
    numbers = (*added[by:], *added[:by], *problem.numbers[terms:])
    return replace(problem, numbers=numbers)


def _read_reworded(prompt: str) -> tuple[str, Problem] | None:
    """The form and the problem of a rephrased calculation; None of any other text."""
    for template in REWORDED:
        before, after = template.split("{}")
        if prompt.startswith(before) and prompt.endswith(after):
            formula = prompt[len(before) : len(prompt) - len(after)]
            return read_problem(f"What is {formula}?")
    return None


task = Task(
    name="sums",
    load=load,
    wording=WORDING,
    extract=extract,
    verify=verify,
    quick=True,
    pose=pose,
    check=check,
    rephrase=rephrase,
    max_tokens={
        "solution": 24,
        "revision": 24,
        "evaluation": 40,
        "scoring": 32,
    },
    recipe={
        "lr": 3e-5,
        "betas": (0.9, 0.95),
        "weight_decay": 0.0,
        "grad_norm": 1.0,
        "steps": 20,
        "questions": 24,
        "temperature": 0.8,
        "checkpoint_every": 5,
        "eval_every": 5,
        "eval_questions": 48,
    },
)
