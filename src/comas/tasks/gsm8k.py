r"""GSM8K (arXiv 2110.14168): grade-school word problems with one number as the answer; the first real task.

Questions come from JSON Lines with the columns `question` and `answer` (worked solution, the number follows `####`): from
`path`, else from the folder that the environment variable COMAS_DATA names, else from the hub (`openai/gsm8k`). A reply
answers by its last `\boxed{...}`, or by `#### n` where nothing is boxed. Leaves out: guessing an answer from prose.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

from comas.types import Question, Task, UserMistake, Verdict

HUB, SUBSET = "openai/gsm8k", "main"
SPLITS = ("train", "validation", "test")
VALIDATION = 0.1
"""Share of the train file, cut by a hash of the question, that is the validation split."""
DIGITS = 60
"""Longest number and largest exponent that are read: beyond that a reply is noise, and exact arithmetic is slow."""

WORDING = {
    "solution": "Solve this problem:\n{question}\n\n{history}\nReason step by step in your own words, and check each "
    "calculation. Put the final answer, a single number, in \\boxed{}.",
    "history": "Another student's attempt, which may be wrong:\n{work}\n\nA reviewer's remarks on it:\n{evaluation}\n",
    "history_bare": "Another student's attempt, which may be wrong:\n{work}\n",
    "evaluation": "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nReview the attempt. Redo every step yourself, and name "
    "each error you find: a misread fact, a wrong operation, a wrong calculation, a missing step. Do not invent errors; if all of "
    "it holds, say so.",
    "scoring": "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nA reviewer's remarks on it:\n{evaluation}\n\nDecide how "
    "good the attempt is, and do not take the remarks on trust.\n3: the final answer is right, and the remarks do not shake it.\n"
    "2: it is right but for small flaws.\n1: the final answer is wrong.\nGive a short reason, then end your reply with the grade: "
    "<score>3</score>, <score>2</score> or <score>1</score>.",
    "scoring_bare": "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nDecide how good the attempt is.\n3: the final answer "
    "is right.\n2: it is right but for small flaws.\n1: the final answer is wrong.\nGive a short reason, then end your reply with "
    "the grade: <score>3</score>, <score>2</score> or <score>1</score>.",
    "verdict": "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nA reviewer's remarks on it:\n{evaluation}\n\nIs the final "
    "answer right? Give a short reason, then end your reply with one word: right or wrong.",
    "verdict_bare": "Problem:\n{question}\n\nA student's attempt:\n{work}\n\nIs the final answer right? Give a short reason, then "
    "end your reply with one word: right or wrong.",
}
"""For instruction-tuned models of any family."""

_BOX = re.compile(r"\\boxed\s*\{")
_MARK = re.compile(r"####[ \t]*([^\n]*)")
_UNIT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{[^{}]*\}\s*\Z")
_THIN, _WIDE = re.compile(r"\\[,!]"), re.compile(r"\\[;: ]|~|\s+")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}\Z")
_POWER = re.compile(r"(?:\\times|\\cdot|×|\*)10\^(?:\{([+-]?[0-9]+)\}|([+-]?[0-9]+))\Z")
_NUMBER = re.compile(r"([+-]?)\$?([+-]?)((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?%?\.?")


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number and nothing else; None for anything else, NaN and infinity included.

    Understands `1,000`, `$5`, `50%` (fifty: percent signs are dropped), `.5`, `3.0`, `-7`, `3/4`, `\\frac{3}{4}`, `1e3`,
    `2 \\times 10^3`, LaTeX spaces, and a unit at the end in `\\text{...}`.
    """
    if len(text) > 4 * DIGITS:
        return None
    text = _UNIT.sub("", text.strip().strip("$").strip())
    for mark, plain in (("{,}", ","), ("\\$", "$"), ("\\%", "%"), ("−", "-")):
        text = text.replace(mark, plain)
    text = _WIDE.sub(" ", _THIN.sub("", text))
    if re.search(r"[0-9] [0-9]", text):  # `3 4` is two numbers, and what `1 1/2` means is a guess
        return None
    text = text.replace(" ", "")
    if found := _FRACTION.match(text):
        text = f"{found[1]}{found[2]}/{found[3]}"
    text = _POWER.sub(lambda found: f"e{found[1] or found[2]}", text)
    above, slash, below = text.partition("/")
    top, bottom = _plain(above), _plain(below) if slash else Fraction(1)
    return top / bottom if top is not None and bottom else None


def _plain(text: str) -> Fraction | None:
    found = _NUMBER.fullmatch(text)
    if found is None or (found[1] and found[2]):
        return None
    digits, power = found[3].replace(",", ""), found[4] or "0"
    if len(digits) > DIGITS or len(power) > 4 or abs(int(power)) > DIGITS:
        return None
    value = Fraction(Decimal(f"{digits}e{power}"))
    return -value if "-" in (found[1], found[2]) else value


def canonical(value: Fraction) -> str:
    """`72`, `-0.75` where the decimals end, otherwise `1/3`."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest > 1 or value.denominator == 1:
        return str(value)
    with localcontext(prec=8 * DIGITS):
        return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"


def extract(question: Question, text: str) -> str | None:
    r"""The number in the last `\boxed{...}`, or after the last `####` where nothing is boxed; None if it is not one number."""
    boxes, marks = list(_BOX.finditer(text)), _MARK.findall(text)
    inside = _braced(text[boxes[-1].end() :]) if boxes else marks[-1] if marks else None
    value = number(inside) if inside is not None else None
    return canonical(value) if value is not None else None


def _braced(text: str) -> str | None:
    """What stands before the brace that closes; None where none does."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return text[:place]
    return None


def same(a: str, b: str) -> bool:
    """Whether two answers are the same number."""
    left, right = number(a), number(b)
    return left is not None and left == right


def verify(question: Question, text: str) -> Verdict:
    """Right if the reply's answer equals the reference; failed only where the reference itself is not a number."""
    if question.answer is None or number(question.answer) is None:
        return "failed"
    found = extract(question, text)
    return "right" if found is not None and same(found, question.answer) else "wrong"


def verify_many(pairs: Iterable[tuple[Question, str]]) -> list[Verdict]:
    """A verdict per pair, for a pool of processes."""
    return [verify(question, text) for question, text in pairs]


def load(split: str, path: str | None = None, limit: int | None = None, seed: int = 0) -> list[Question]:
    """The questions of a split in an order drawn by `seed`, at most `limit`.

    `path` is a folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl`, or one file that serves whatever split is asked for.
    `train` and `validation` are disjoint parts of the train file; `test` is the test file.
    """
    if split not in SPLITS:
        raise UserMistake(f"task gsm8k has no split {split!r}: one of {', '.join(SPLITS)}")
    stem = "test" if split == "test" else "train"
    place = path or os.environ.get("COMAS_DATA")
    rows = _hub_rows(stem) if not place else _file_rows(Path(place), stem)
    found = {q.id: q for q in map(_question, rows)}  # the same text twice would be one id twice
    chosen = [q for q in found.values() if split == "test" or (_place(q) < VALIDATION) == (split == "validation")]
    random.Random(f"gsm8k {split} {seed}").shuffle(chosen)
    return chosen[:limit]


def _place(question: Question) -> float:
    """Where in [0, 1) a question falls, by its text alone."""
    digest = hashlib.sha256(f"gsm8k {question.prompt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _question(row: Mapping[str, str]) -> Question:
    prompt, worked = row["question"].strip(), row["answer"].strip()
    solution, mark, last = worked.rpartition("####")
    value = number(last)
    answer = None if not mark else canonical(value) if value is not None else last.strip()
    name = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    return Question(f"gsm8k-{name}", prompt, "math", answer, {"solution": solution.strip() if mark else worked})


def _file_rows(place: Path, stem: str) -> Iterator[Mapping[str, str]]:
    file = place / f"gsm8k_{stem}.jsonl" if place.is_dir() else place
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserMistake(
            f"task gsm8k cannot read {file} ({error.strerror}): set data=FOLDER or COMAS_DATA, or unset both for the hub"
        ) from error
    for at, line in enumerate(lines, 1):
        if line.strip():
            yield _checked(line, f"{file}:{at}")


def _checked(line: str, where: str) -> Mapping[str, str]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserMistake(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("question", "answer")):
        raise UserMistake(f"{where}: expected an object with the texts `question` and `answer`, got {line.strip()[:60]}")
    return row


def _hub_rows(stem: str) -> Iterable[Mapping[str, str]]:
    try:
        import datasets
    except ImportError as error:
        raise UserMistake(
            'task gsm8k reads the hub with `datasets`, which is not installed: pip install "comas[hub]", or set COMAS_DATA to a '
            "folder with gsm8k_train.jsonl and gsm8k_test.jsonl"
        ) from error
    try:
        return datasets.load_dataset(HUB, SUBSET, split=stem)  # type: ignore[return-value]
    except (OSError, ValueError, RuntimeError) as error:
        raise UserMistake(
            f"task gsm8k cannot get {HUB} from the hub ({type(error).__name__}): go online, or set COMAS_DATA to a folder with "
            "gsm8k_train.jsonl and gsm8k_test.jsonl"
        ) from error


task = Task(
    name="gsm8k", load=load, verify=verify, extract=extract, same=same, wording=WORDING,
    max_tokens={"solution": 512, "evaluation": 512, "scoring": 256, "verdict": 256},
    recipe={"lr": 1e-6, "betas": (0.9, 0.999), "weight_decay": 0.0, "grad_norm": 1.0},  # CoMAS, appendix on settings
)
