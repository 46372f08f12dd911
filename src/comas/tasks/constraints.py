"""Questions with many right answers, generated: name something that fulfils every condition.

- `ending` (the default): `Name a whole number between 211 and 254 that ends with the digit 9.`
- `multiple`: `Name a whole number between 211 and 233 that is divisible by 11.`
- `prime`: `Name a prime number between 54 and 70.`
- `three`: `Choose three of the numbers 4, 7, 15, 22 whose sum is 33.`
- `factors`: `Name two whole numbers, both greater than 1, whose product is 91.`

A vote counts equal answers, and here right answers differ: a judge that can check knows more than a
majority. Bounds belong to a range. A reply answers by the numbers in its last `\\boxed{...}`, or
those of its last line that has numbers. Questions are divided into disjoint splits by a hash of
their numbers, whatever the form. Leaves out: posing and rephrasing questions.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from comas.answers import boxed
from comas.questions.sources import check_asked, split_of_numbers
from comas.types import Question, Task, Verdict

SHARES = {"train": 0.45, "validation": 0.15, "test": 0.40}
"""Share of the sets of numbers in each split, in the order in which the hash is cut."""
DRAWS = 20_000
"""Tries to draw another question of a split before it counts as exhausted."""

Facts = Mapping[str, int]
"""Numbers of a question, by their names in its form's templates."""
Answer = tuple[int, ...]
"""Numbers that a reply names, in ascending order."""
Condition = tuple[str, Callable[[Answer, Facts], bool]]
"""A template that says what an answer has to fulfil, and whether it does."""


@dataclass(frozen=True)
class Form:
    """A kind of question."""

    template: str
    """A question, with a field for each of its facts."""
    size: int
    """Numbers in an answer."""
    draw: Callable[[random.Random], Facts]
    conditions: tuple[Condition, ...]
    answers: Callable[[Facts], Iterable[Answer]]
    """Answers among which all right ones are."""

    def facts_in(self, prompt: str) -> Facts | None:
        """Read the facts of a question; None where the text is no question of this form."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[0-9]{1,4})", re.escape(self.template))
        match = re.fullmatch(pattern, prompt)
        return {name: int(text) for name, text in match.groupdict().items()} if match else None

    def fulfils(self, answer: Answer, facts: Facts) -> bool:
        """Whether an answer fulfils every condition."""
        return all(holds(answer, facts) for _, holds in self.conditions)


def _in_range(answer: Answer, facts: Facts) -> bool:
    return facts["low"] <= answer[0] <= facts["high"]


def _range(facts: Facts) -> Iterable[Answer]:
    return ((number,) for number in range(facts["low"], facts["high"] + 1))


IN_RANGE: Condition = ("The number lies between {low} and {high}.", _in_range)


def _draw_ending(rng: random.Random) -> Facts:
    low = rng.randint(100, 800)
    return {"low": low, "high": low + rng.randint(20, 60), "digit": rng.randint(0, 9)}


def _draw_multiple(rng: random.Random) -> Facts:
    divisor = rng.randint(7, 13)
    low = rng.randint(100, 800)
    return {"low": low, "high": low + 2 * divisor, "divisor": divisor}


def _draw_prime(rng: random.Random) -> Facts:
    low = rng.randint(10, 400)
    return {"low": low, "high": low + rng.randint(10, 20)}


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _draw_three(rng: random.Random) -> Facts:
    numbers = rng.sample(range(1, 60), 4)
    return dict(zip("abcd", numbers, strict=True)) | {"total": sum(rng.sample(numbers, 3))}


def _offered(facts: Facts) -> list[int]:
    return [facts[name] for name in "abcd"]


def _threes(facts: Facts) -> Iterable[Answer]:
    return (tuple(sorted(three)) for three in itertools.combinations(_offered(facts), 3))


def _draw_factors(rng: random.Random) -> Facts:
    return {"product": rng.randint(3, 30) * rng.randint(3, 30)}


def _pairs(facts: Facts) -> Iterable[Answer]:
    return (
        (divisor, facts["product"] // divisor)
        for divisor in range(2, int(facts["product"] ** 0.5) + 1)
    )


FORMS = {
    "ending": Form(
        "Name a whole number between {low} and {high} that ends with the digit {digit}.",
        1,
        _draw_ending,
        (
            IN_RANGE,
            ("The number ends with the digit {digit}.", lambda a, f: a[0] % 10 == f["digit"]),
        ),
        _range,
    ),
    "multiple": Form(
        "Name a whole number between {low} and {high} that is divisible by {divisor}.",
        1,
        _draw_multiple,
        (
            IN_RANGE,
            ("The number is divisible by {divisor}.", lambda a, f: a[0] % f["divisor"] == 0),
        ),
        _range,
    ),
    "prime": Form(
        "Name a prime number between {low} and {high}.",
        1,
        _draw_prime,
        (IN_RANGE, ("The number is a prime number.", lambda a, _: _is_prime(a[0]))),
        _range,
    ),
    "three": Form(
        "Choose three of the numbers {a}, {b}, {c}, {d} whose sum is {total}.",
        3,
        _draw_three,
        (
            (
                "Three different numbers are named, each one of {a}, {b}, {c}, {d}.",
                lambda a, f: len(set(a)) == len(a) and set(a) <= set(_offered(f)),
            ),
            ("The sum of the numbers is {total}.", lambda a, f: sum(a) == f["total"]),
        ),
        _threes,
    ),
    "factors": Form(
        "Name two whole numbers, both greater than 1, whose product is {product}.",
        2,
        _draw_factors,
        (
            ("Both numbers are greater than 1.", lambda a, _: a[0] > 1),
            ("The product of the numbers is {product}.", lambda a, f: a[0] * a[1] == f["product"]),
        ),
        _pairs,
    ),
}

WORDING = {
    "solution": "{question} Reply with numbers only.\n\n{history}",
    "history": "Somebody answered: {work}\nA remark on that: {evaluation}\n",
    "history_bare": "Somebody answered: {work}\n",
    "remark": "A remark on that: {evaluation}\n",
    "revision": "{question} Reply with numbers only.\n\nYour answer so far: {own}\n\n{history}",
    "evaluation": (
        "Question: {question}\nProposed answer: {work}\n\nCheck each condition, then say whether"
        " the proposed answer is right or wrong."
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

_NUMBER = re.compile(r"(?<![\d.,])-?\d{1,6}(?![\d]|[.,]\d)")
"""A whole number of at most six digits, alone: no part of a longer one or of a decimal."""


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "ending",
) -> list[Question]:
    """Questions of a split in an order drawn by `seed`, at most `limit`; where there is none, those
    of 20,000 draws.

    `form` is `ending`, `multiple`, `prime`, `three` or `factors`. `path` must be None: the
    questions are generated.
    """
    check_asked("constraints", split, SHARES, path, form, FORMS)
    asked = FORMS[form]
    rng = random.Random(f"constraints {split} {form} {seed}")
    questions: dict[str, Question] = {}
    for _ in range(DRAWS):
        if limit is not None and len(questions) >= limit:
            break
        facts = asked.draw(rng)
        numbers = tuple(facts.values())
        if split_of_numbers("constraints", numbers, SHARES) != split:
            continue
        right = [answer for answer in asked.answers(facts) if asked.fulfils(answer, facts)]
        if right:
            prompt = asked.template.format(**facts)
            key = f"constraints-{form}-{'-'.join(map(str, numbers))}"
            questions.setdefault(
                key, Question(id=key, prompt=prompt, kind=form, answer=_as_text(right[0]))
            )
    return list(questions.values())


def _as_text(answer: Answer) -> str:
    return ", ".join(map(str, answer))


def read_question(prompt: str) -> tuple[Form, Facts] | None:
    """The form and the facts of a question's text; None where it is no question of this task."""
    for form in FORMS.values():
        facts = form.facts_in(prompt)
        if facts is not None:
            return form, facts
    return None


def conditions(question: Question) -> list[str]:
    """Sentences that say what an answer has to fulfil, one per condition, from the question alone;
    none where that is no question of this task.
    """
    asked = read_question(question.prompt)
    if asked is None:
        return []
    form, facts = asked
    return [template.format(**facts) for template, _ in form.conditions]


def extract(question: Question, text: str) -> str | None:
    """The numbers of the last box, or of the last line that has any, in ascending order; None where
    these are not as many as are asked for. What follows an equals sign is not among them.
    """
    asked = read_question(question.prompt)
    if asked is None:
        return None
    if boxed.BOX.search(text):
        part = boxed.last_box(text) or ""
    else:
        lines = [line for line in text.splitlines() if _NUMBER.search(line)]
        part = lines[-1] if lines else ""
    numbers = _NUMBER.findall(part.partition("=")[0])
    return _as_text(tuple(sorted(map(int, numbers)))) if len(numbers) == asked[0].size else None


def check(question: Question, text: str) -> Verdict:
    """Right if the answer fulfils every condition that the question's text names; nothing is right
    where that is no question of this task.
    """
    asked = read_question(question.prompt)
    answer = extract(question, text)
    if asked is None or answer is None:
        return "wrong"
    form, facts = asked
    numbers = tuple(map(int, answer.split(", ")))
    return "right" if form.fulfils(numbers, facts) else "wrong"


task = Task(
    name="constraints",
    load=load,
    wording=WORDING,
    extract=extract,
    verify=check,
    check=check,
    quick=True,
    max_tokens={"solution": 16, "revision": 16, "evaluation": 60, "scoring": 32},
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
