"""A small world to search in: each of the numbers 0 to 60 points to another one, and nobody can
know which without looking.

`7 -> -> ->` asks where three steps from 7 lead. The tool `search` answers `7` with `7 -> 12`, and
`-> 12`, which asks what points there, with the same. Chains are divided into disjoint splits by a
hash of their text; agents may pose those of the first two splits (`warm`, of which demonstrations
are made, and `train`), with an answer of their own behind `=` or without. Leaves out: words.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from comas.questions.sources import check_asked, split_of_text
from comas.types import Count, Question, Task, Tool, ToolFailure, UserMistake, Verdict

SIZE = 61
SHARES = {"warm": 0.35, "train": 0.25, "validation": 0.10, "test": 0.30}
"""Share of the chains in each split, in the order in which the hash is cut."""
FORMS = ("chains", "answers", "documents", "pages")
HELD_OUT = ("validation", "test")
"""Splits whose chains nobody may pose."""
LONGEST = 6
"""Steps of a chain that can be posed, at most."""
NOTHING = "nothing"
"""Reply to a search for what is no number."""

WORDING = {
    "tools": "",
    "solution": "find {question}",
    "repair": "find {question}",
    "reading": "{documents} find {question}",
    "propose": "ask {history}",
    "propose_for": "ask for {answer}",
    "propose_from": "ask from {document} in {hops}",
    "propose_within": "{documents} ask {history}",
    "reference": "peers {question}",
    "comparing": "same {answer} {work}",
    "given": "{question}",
    "document": "{document} ;",
}
"""The task's wording per role: words of the tiny model's small vocabulary."""

_CHAIN = re.compile(r"([0-9]{1,2})((?: ->)+)(?: = ([0-9]{1,2}))?")


class World:
    """Where each number points, drawn from a name."""

    def __init__(self, name: str) -> None:
        self.points = [*range(SIZE)]
        random.Random(name).shuffle(self.points)
        self.pointed = {end: start for start, end in enumerate(self.points)}

    def follow(self, start: int, steps: int) -> int:
        """Where so many steps from a number lead."""
        for _ in range(steps):
            start = self.points[start]
        return start

    def fact(self, start: int) -> str:
        """Where a number points, as `search` says it."""
        return f"{start} -> {self.points[start]}"

    def look_up(self, words: str) -> str:
        """The fact about a number (`7`), or the one that leads to it (`-> 7`)."""
        match = re.fullmatch(r"(-> )?([0-9]{1,2})", words.strip())
        if match is None or int(match[2]) >= SIZE:
            raise ToolFailure(NOTHING)
        number = int(match[2])
        return self.fact(number if match[1] is None else self.pointed[number])

    def some_fact(self, seed: str) -> str:
        """A fact that `seed` draws."""
        return self.fact(random.Random(seed).randrange(SIZE))


WORLD = World("facts")
"""The one that questions are asked about."""


def chain(start: int, steps: int) -> str:
    """The question that asks for so many steps."""
    return f"{start}{' ->' * steps}"


def split_of(text: str) -> str:
    """The split that a chain belongs to."""
    return split_of_text("facts", text, SHARES)


def read_chain(text: str) -> tuple[int, int, int | None] | None:
    """Start, steps and the answer that is given with it (None without) of a text that ends with a
    chain, behind `;` where anything stands before it; None of any other text.
    """
    match = _CHAIN.fullmatch(text.rpartition(";")[2].strip())
    if match is None:
        return None
    start = int(match[1])
    steps = match[2].count("->")
    answer = None if match[3] is None else int(match[3])
    if start >= SIZE or steps > LONGEST or (answer or 0) >= SIZE:
        return None
    return start, steps, answer


def pose(text: str) -> Question | None:
    """The chain that a text proposes, with the answer that it gives to it; None where it proposes
    none, or one of a held-out split.
    """
    proposal = read_chain(text)
    if proposal is None:
        return None
    start, steps, answer = proposal
    if split_of(chain(start, steps)) in HELD_OUT:
        return None
    return make_question(start, steps, None if answer is None else str(answer))


def make_question(start: int, steps: int, answer: str | None) -> Question:
    """The question of a chain."""
    prompt = chain(start, steps)
    kind = f"{steps} hop" + ("s" if steps > 1 else "")
    return Question(id=f"facts-{start}-{steps}", prompt=prompt, kind=kind, answer=answer)


def load(
    split: str,
    path: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    form: str = "chains",
    hops: Count = 3,
    least: Count = 1,
    pages: Count = 8,
) -> list[Question]:
    """Chains of `least` to `hops` steps of a split in an order drawn by `seed`, at most `limit`.

    `form = "answers"` makes the training questions numbers that others are to ask for, and
    `"documents"` facts to start from; held-out questions are chains all the same. `"pages"` makes
    the training questions `pages` facts to ask about, and puts as many before each held-out chain.
    `path` must be None: the world is generated.
    """
    check_asked("facts", split, SHARES, path, form, FORMS)
    if not least <= hops <= LONGEST:
        raise UserMistake(f"task facts has no chains of {least} to {hops} steps (1 to {LONGEST})")
    if form == "pages" and pages < hops:
        raise UserMistake(
            f"task_options.pages is {pages}, and chains of {hops} steps need as many facts: set"
            f" task_options.pages={hops}, or fewer task_options.hops"
        )
    if form != "chains" and split == "train":
        questions = [_given(number, form, pages) for number in range(SIZE)]
    else:
        pairs = [(start, steps) for steps in range(least, hops + 1) for start in range(SIZE)]
        held = [pair for pair in pairs if split_of(chain(*pair)) == split]
        questions = [make_question(*pair, str(WORLD.follow(*pair))) for pair in held]
        if form == "pages":
            questions = [_with_pages(question, pages) for question in questions]
    random.Random(f"facts {split} {seed}").shuffle(questions)
    return questions[:limit]


def _given(number: int, form: str, pages: int) -> Question:
    """Make the question that a proposer starts from: an answer, a document, or several."""
    if form == "pages":
        prompt = facts_around(number, pages)
        return Question(id=f"facts-within-{number}", prompt=prompt, kind="documents")
    if form == "answers":
        return Question(id=f"facts-for-{number}", prompt=str(number), kind="answer")
    return Question(id=f"facts-from-{number}", prompt=WORLD.fact(number), kind="document")


def _with_pages(question: Question, pages: int) -> Question:
    """A chain behind facts among which are those that it needs."""
    start = int(question.prompt.split()[0])
    prompt = f"{facts_around(start, pages)} find {question.prompt}"
    return replace(question, prompt=prompt)


def facts_around(start: int, pages: int) -> str:
    """So many facts: those of the longest chain from a number, as far as they go, and others."""
    rng = random.Random(f"facts around {start}")
    numbers = [WORLD.follow(start, step) for step in range(LONGEST)]
    others = rng.sample(range(SIZE), SIZE)
    chosen = list(dict.fromkeys([*numbers, *others]))[:pages]
    rng.shuffle(chosen)
    return " ".join(f"{WORLD.fact(number)} ;" for number in chosen)


def extract(question: Question, text: str) -> str | None:
    """The number that ends a text, or None."""
    words = text.split()
    if not words or not re.fullmatch(r"[0-9]{1,2}", words[-1]):
        return None
    return str(int(words[-1]))


def check(question: Question, text: str) -> Verdict:
    """Whether a text ends with where the chain leads; nothing is right where there is no chain."""
    read = read_chain(question.prompt.rpartition("find ")[2])
    if read is None:
        return "wrong"
    start, steps, _ = read
    return "right" if extract(question, text) == str(WORLD.follow(start, steps)) else "wrong"


search = Tool(
    name="search",
    does="says where a number points (7), or what points to it (-> 7)",
    argument="number",
    run=WORLD.look_up,
    some=WORLD.some_fact,
)
task = Task(
    name="facts",
    load=load,
    verify=check,
    extract=extract,
    quick=True,
    pose=pose,
    check=check,
    tools={"search": search},
    wording=WORDING,
    max_tokens={"propose": 24, "reading": 16, "solution": 12, "repair": 12, "comparing": 4},
    base="tiny-facts",
)
