r"""SciBench (arXiv 2307.10635): problems from college textbooks of physics, chemistry and
mathematics, with numeric answers.

Hub: `xw27/scibench`, split train, columns `problem_text`, `answer_number`, `unit`; file
`scibench_test.jsonl`. Right within 5 % of the reference, in the unit that the question asks for;
where that begins with a power of ten (`$10^{-8} \mathrm{C}$`), the number may be given with it or
without it. For evaluation only. Leaves out: converting units.
"""

from __future__ import annotations

from comas.answers import boxed, numbers
from comas.questions.sources import Row, Source, identity
from comas.types import Question

SOURCE = Source(
    "scibench",
    "xw27/scibench",
    None,
    {"test": "train"},
    ("problem_text", "unit"),
    ("answer_number",),
    files={"test": "scibench_test.jsonl"},
)


def _question(row: Row, where: str) -> Question:
    unit = " ".join(row["unit"].split())
    prompt = row["problem_text"].strip()
    if unit.strip("$ "):
        prompt += f"\n\nGive the number in this unit: {unit}"
    meta = {"power": numbers.power_of(unit), "percent": "%" in unit}
    name = identity("scibench", prompt)
    answer = numbers.written(row["answer_number"])
    return Question(id=name, prompt=prompt, kind="science", answer=answer, meta=meta)


task = boxed.benchmark(
    SOURCE, _question, verify=numbers.verify, extract=numbers.extract, same=numbers.same
)
