r"""Benchmarks whose rows need no more than a reader: where they come from, and how a row is asked
and checked.

| task | what it is | hub |
|---|---|---|
| `aime` | AIME 2024: thirty problems, answers from 0 to 999 | `Maxwell-Jia/AIME_2024` |
| `amc` | AMC 2023: forty problems, without their choices | `math-ai/amc23` |
| `math500` | MATH-500 (arXiv 2305.20050; of MATH, 2103.03874) | `HuggingFaceH4/MATH-500` |
| `scibench` | SciBench (arXiv 2307.10635): college textbooks | `xw27/scibench` |
| `mmlu` | MMLU (arXiv 2009.03300): choice, 57 subjects | `cais/mmlu` |
| `gpqa` | GPQA (arXiv 2311.12022): choice, graduate-level | `Idavidrein/gpqa`, gated |
| `humaneval` | HumanEval (arXiv 2107.03374): functions | `openai/openai_humaneval` |
| `kodcode` | KodCode (arXiv 2503.02951): made by models | `KodCode/KodCode-V1` |

Files are called `<task>_test.jsonl`, with the hub's columns; those of `mmlu` also
`mmlu_validation.jsonl`, and that of `kodcode` is `kodcode_train.jsonl`, from which train,
validation and test are cut by a hash of each question. Leaves out: examples in prompts, worked
solutions, converting units; whoever asks GPQA keeps its transcripts private, as its authors wish.
"""

from __future__ import annotations

import random

from comas.answers import boxed, choice, code, maths, numbers
from comas.questions.sources import DataSource, Record, identity
from comas.types import Question, UserMistake

# --- science: right within 5 %, in the unit that the question asks for


def _of_scibench(row: Record, where: str) -> Question:
    """A unit may begin with a power of ten (`$10^{-8} \\mathrm{C}$`), with which the number may be
    given, or without it.
    """
    unit = " ".join(row["unit"].split())
    prompt = row["problem_text"].strip()
    if unit.strip("$ "):
        prompt += f"\n\nGive the number in this unit: {unit}"
    meta = {"power": numbers.power_of(unit), "percent": "%" in unit}
    answer = numbers.reference(numbers.written(row["answer_number"]), where)
    name = identity("scibench", prompt)
    return Question(id=name, prompt=prompt, kind="science", answer=answer, meta=meta)


# --- multiple choice: the letter in the last box


def _of_mmlu(row: Record, where: str) -> Question:
    choices = row.get("choices")
    right = row["answer"]
    if (
        not isinstance(choices, list | tuple)
        or type(right) is not int
        or not 0 <= right < min(len(choices), 26)
    ):
        raise UserMistake(
            f"{where}: expected texts `choices`, and `answer`, an index into them, got {right!r} of"
            f" {choices!r}"
        )
    prompt = choice.asked(row["question"], choices)
    kind = row.get("subject") or "choice"
    letter = choice.LETTERS[right]
    return Question(id=identity("mmlu", prompt), prompt=prompt, kind=kind, answer=letter)


ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _of_gpqa(row: Record, where: str) -> Question:
    """The four answers are shuffled, each question's in an order of its own that never changes."""
    name = identity("gpqa", row["Question"])
    columns = random.Random(name).sample(ANSWERS, len(ANSWERS))
    prompt = choice.asked(row["Question"], [row[column].strip() for column in columns])
    letter = choice.LETTERS[columns.index("Correct Answer")]
    kind = row.get("Subdomain") or "choice"
    return Question(id=name, prompt=prompt, kind=kind, answer=letter)


# --- programs: their tests are run in the sandbox

LEAD = "Complete this function:\n"


def _of_humaneval(row: Record, where: str) -> Question:
    """A program gets what stands before the function in its prompt (imports, helpers)."""
    prompt = row["prompt"]
    function = row["entry_point"]
    if missing := code.not_in_the_sandbox(row["test"]):
        raise UserMistake(
            f"{where}: its tests import {missing}, and the sandbox has the standard library only:"
            " take the tests of HumanEval itself (openai/openai_humaneval)"
        )
    if function not in code.defined(f"{prompt}\n    pass\n"):
        raise UserMistake(
            f"{where}: expected a `prompt` that is the head of a Python function, and its name as"
            f" `entry_point`, got {function!r} and {prompt[:60]!r}"
        )
    if "check" not in code.defined(row["test"]):
        raise UserMistake(
            f"{where}: expected a `test` that defines `check(candidate)`, got {row['test'][:60]!r}"
        )
    meta = {
        "tests": row["test"],
        "names": [function],
        "check": function,
        "setup": prompt + "\n    pass\n",
        "before": _before(prompt),
    }
    name = identity("humaneval", prompt)
    asked = LEAD + prompt.strip()
    return Question(id=name, prompt=asked, kind="coding", answer="tests", meta=meta)


def _before(prompt: str) -> str:
    """Return what stands before the function that is asked for: the last one."""
    start = prompt.rfind("\ndef ") + 1  # 0 where there is none
    return prompt[:start] + "\n"


def humaneval_ballot(question: Question, answer: str) -> str | None:
    """As of any program, which gets what stands before the function here as well."""
    return code.ballot(question, answer, _before(question.prompt.removeprefix(LEAD)))


def _of_kodcode(row: Record, where: str) -> Question:
    """Tests that need more than functions and literal values are none."""
    return code.question("kodcode", row["question"].strip(), row["test"])


# --- the table

CUT = {"train": 0.7, "validation": 0.1, "test": 0.2}
"""Shares of splits that are cut from one file."""
TASKS = {
    task.name: task
    for task in (
        maths.benchmark("aime", "Maxwell-Jia/AIME_2024", "Problem", "Answer", {"test": "train"}),
        maths.benchmark("amc", "math-ai/amc23", "question", "answer"),
        maths.benchmark("math500", "HuggingFaceH4/MATH-500", "problem", "answer"),
        boxed.benchmark(
            DataSource(
                *("scibench", "xw27/scibench", ("problem_text", "unit"), ("answer_number",)),
                splits={"test": "train"},
            ),
            _of_scibench,
            verify=numbers.verify,
            extract=numbers.extract,
            same=numbers.same,
        ),
        choice.benchmark(
            DataSource(
                *("mmlu", "cais/mmlu", ("question",), ("answer",), "all"),
                splits={"validation": "validation", "test": "test"},
            ),
            _of_mmlu,
        ),
        choice.benchmark(
            DataSource(
                *("gpqa", "Idavidrein/gpqa", ("Question", *ANSWERS), (), "gpqa_main"),
                splits={"test": "train"},
            ),
            _of_gpqa,
        ),
        code.benchmark(
            DataSource("humaneval", "openai/openai_humaneval", ("prompt", "test", "entry_point")),
            _of_humaneval,
            ballot=humaneval_ballot,
        ),
        code.benchmark(
            DataSource(
                *("kodcode", "KodCode/KodCode-V1", ("question", "test")),
                splits=dict.fromkeys(CUT, "train"),
                shares=CUT,
            ),
            _of_kodcode,
            recipe=boxed.RECIPE,
        ),
    )
}
"""Name -> task."""
