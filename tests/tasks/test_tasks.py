"""Tasks with real questions: loading from files and from the hub, and their verifiers on real
references.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from comas.answers import maths
from comas.answers.numbers import canonical, quantity
from comas.config.plugins import load_plugin
from comas.questions.sources import DataSource, identity
from comas.testing import check_task
from comas.types import Question, Task, UserMistake
from tests.support.checking import verdicts
from tests.support.platforms import needs_sandbox

DATA = os.environ.get("COMAS_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="COMAS_DATA names no folder with samples of the benchmarks"
)

MADE_UP = {
    "math500": [
        {"problem": f"What is ${i}/2$?", "answer": rf"\frac{{{i}}}{{2}}", "subject": None}
        for i in range(12)
    ],
    "aime": [{"ID": f"2024-I-{i}", "Problem": f"What is {i}?", "Answer": i} for i in range(12)],
    "amc": [{"id": i, "question": f"What is {i}?", "answer": float(i)} for i in range(12)],
    "scibench": [
        {
            "problem_text": f"How long is {i}?",
            "answer_number": f" {i}.5",
            "unit": "$10^{3} \\mathrm{m}$",
        }
        for i in range(12)
    ],
    "mmlu": [
        {"question": f"Which is {i}?", "choices": ["a", "b", "c", f"{i}"], "answer": i % 4}
        for i in range(12)
    ],
    "gpqa": [
        {
            "Question": f"Which is {i}?",
            "Correct Answer": f"{i}",
            "Incorrect Answer 1": "a",
            "Incorrect Answer 2": "b",
            "Incorrect Answer 3": "c",
            "Subdomain": "Optics",
        }
        for i in range(12)
    ],
}
FILES = {name: f"{name}_test.jsonl" for name in MADE_UP}
HUBS = {
    "math500": ("HuggingFaceH4/MATH-500", "test"),
    "aime": ("Maxwell-Jia/AIME_2024", "train"),
    "amc": ("math-ai/amc23", "test"),
    "scibench": ("xw27/scibench", "train"),
    "mmlu": ("cais/mmlu", "all", "test"),
    "gpqa": ("Idavidrein/gpqa", "gpqa_main", "train"),
}


def write(file: Path, rows: list[dict[str, object]]) -> Path:
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def boxed(question: Question) -> str:
    return rf"So it is \boxed{{{question.answer}}}."


@pytest.mark.parametrize("name", MADE_UP)
def test_benchmarks_keep_the_contract(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / FILES[name], MADE_UP[name])
    task: Task = load_plugin("task", name)
    check_task(task, ["test"], path=str(tmp_path))
    questions = task.load("test", path=str(file))
    assert len(questions) == 12
    assert [task.verify(q, boxed(q)) for q in questions] == ["right"] * 12
    assert questions != task.load("test", path=str(file), seed=1)
    monkeypatch.setenv("COMAS_DATA", str(tmp_path))
    assert task.load("test", limit=5) == questions[:5]
    with pytest.raises(UserMistake, match=f"task {name} .*'train'"):
        task.load("train")


@pytest.mark.parametrize("name", MADE_UP)
def test_benchmarks_come_from_the_hub_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def load_dataset(*names: str, split: str) -> list[dict[str, object]]:
        asked.append((*names, split))
        return MADE_UP[name]

    monkeypatch.setenv("COMAS_DATA", str(tmp_path))  # which has no file of this task
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert len(load_plugin("task", name).load("test")) == 12
    assert asked == [HUBS[name]]


@pytest.mark.parametrize("name", MADE_UP)
def test_a_row_without_its_columns_is_named(name: str, tmp_path: Path) -> None:
    column = next(c for c in MADE_UP[name][0] if c.lower() not in ("id", "subject"))
    file = write(
        tmp_path / "rows.jsonl",
        [MADE_UP[name][0], {k: v for k, v in MADE_UP[name][1].items() if k != column}],
    )
    with pytest.raises(UserMistake, match=rf"rows\.jsonl:2: expected .*`{column}`"):
        load_plugin("task", name).load("test", path=str(file))


def test_gpqa_shuffles_each_question_once_and_for_all(tmp_path: Path) -> None:
    task = load_plugin("task", "gpqa")
    file = write(tmp_path / "gpqa_test.jsonl", MADE_UP["gpqa"])
    questions = task.load("test", path=str(file))
    assert len({q.answer for q in questions}) >= 3  # not always the same letter
    for q in questions:
        wanted = re.search(r"Which is (\d+)\?", q.prompt)[1]
        assert f"{q.answer}. {wanted}\n" in q.prompt
    again = {q.id: q for q in task.load("test", path=str(file), seed=9)}
    assert all(again[q.id] == q for q in questions)


def test_scibench_asks_for_the_unit(tmp_path: Path) -> None:
    task = load_plugin("task", "scibench")
    question = task.load("test", path=str(write(tmp_path / "x.jsonl", MADE_UP["scibench"][3:4])))[0]
    assert "in this unit: $10^{3} \\mathrm{m}$" in question.prompt
    verdicts_of = [
        task.verify(question, rf"\boxed{{{x}}}") for x in ("3.5", "3500", "3.5e3 m", "350")
    ]
    assert verdicts_of == ["right", "right", "right", "wrong"]


@needs_sandbox
def test_the_mix_has_each_kind_checked_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"m{i}", "answer": "\\frac{1}{2}", "task": "math"} for i in range(40)]
    rows += [{"prompt": f"s{i}", "answer": "2.0", "task": "science"} for i in range(40)]
    tests = "def test_it():\n    assert double(2) == 4\n"
    rows += [{"prompt": f"c{i}", "answer": tests, "task": "coding"} for i in range(40)]
    file = write(tmp_path / "comas_mix.jsonl", rows)
    task = load_plugin("task", "mix")
    check_task(task, path=str(file))
    parts = {
        split: task.load(split, path=str(tmp_path)) for split in ("train", "validation", "test")
    }
    assert sum(map(len, parts.values())) == 120
    assert len(parts["train"]) > len(parts["test"]) > 4
    math, science, coding = (
        next(q for q in parts["train"] if q.kind == kind) for kind in ("math", "science", "coding")
    )
    programs = [f"So:\n```python\ndef double(x):\n    return {x}\n```" for x in ("2 * x", "x")]
    assert [task.verify(coding, program) for program in programs] == ["right", "wrong"]
    assert "```python" in coding.prompt
    assert "boxed" in math.prompt
    assert [task.verify(math, rf"\boxed{{{x}}}") for x in ("0.5", "0.51")] == ["right", "wrong"]
    assert [task.verify(science, rf"\boxed{{{x}}}") for x in ("2.05", "2.2")] == ["right", "wrong"]
    with pytest.raises(UserMistake, match=r"`task` is 'poetry': .*math"):
        task.load(
            "train",
            path=str(
                write(tmp_path / "other.jsonl", [{"prompt": "?", "answer": "", "task": "poetry"}])
            ),
        )
    monkeypatch.delenv("COMAS_DATA", raising=False)
    with pytest.raises(UserMistake, match="task mix reads a file"):
        task.load("train")


def test_own_questions(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i} + {i}?", "answer": 2 * i} for i in range(40)]
    rows += [{"question": f"Who is {i}?", "answer": "Nobody", "kind": "text"} for i in range(40)]
    rows += [{"question": f"Why {i}?"} for i in range(40)]
    file = write(tmp_path / "mine.jsonl", rows)
    task = load_plugin("task", "jsonl")
    check_task(task, path=str(file))
    parts = {split: task.load(split, path=str(file)) for split in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 120
    known = [q for part in parts.values() for q in part if q.answer is not None]
    assert {task.verify(q, boxed(q)) for q in known} == {"right"}
    assert {
        task.verify(q, r"\boxed{1}") for part in parts.values() for q in part if q.answer is None
    } == {"failed"}
    for split, part in parts.items():
        write(tmp_path / f"{split}.jsonl", [{"question": q.prompt} for q in part])
    assert {q.prompt for q in task.load("test", path=str(tmp_path))} == {
        q.prompt for q in parts["test"]
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": 1}, "`question`"),
        ({"question": "  "}, "`question` is empty"),
        ({"question": "?", "kind": "poem"}, "one of math, science, choice, text"),
        ({"question": "?", "answer": [1]}, "a text or a number"),
    ],
)
def test_own_questions_with_mistakes(row: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=said):
        load_plugin("task", "jsonl").load("train", path=str(write(tmp_path / "mine.jsonl", [row])))


# --- on real references

REWRITINGS = {
    # of a comma that groups thousands a blank makes two numbers
    "spaces": lambda g: re.sub(r"(,(?!(?:\\! *)?\d{3}(?!\d))|[+=])", r" \1 ", g),
    "display fractions": lambda g: g.replace(r"\dfrac", r"\frac").replace(r"\frac", r"\dfrac"),
    "sized brackets": lambda g: (
        g
        if set("[]") & set(g) or "text" in g or "right" in g
        else g.replace("(", r"\left(").replace(")", r"\right)")
    ),
    "dollars": lambda g: f"${g}$",
    "no degrees": lambda g: g.removesuffix(r"^\circ"),
    "decimal where exact": lambda g: _decimal(g),
    "reordered": lambda g: (
        ", ".join(reversed(g.split(","))) if re.fullmatch(r"[-\d]+(?:, ?[-\d]{1,2})+", g) else g
    ),
    "as a float": lambda g: g + ".0" if re.fullmatch(r"-?\d+", g) else g,
}


def _decimal(gold: str) -> str:
    found = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold)
    text = canonical(Fraction(int(found[2]), int(found[3]))) if found else "/"
    return gold if "/" in text else found[1] + text


@needs_data
def test_math500_references_against_rewritings_and_against_each_other() -> None:
    task = load_plugin("task", "math500")
    questions = task.load("test", path=DATA)
    assert len(questions) == 500
    pairs = [
        (q, rf"\boxed{{{rewrite(q.answer)}}}", name)
        for name, rewrite in REWRITINGS.items()
        for q in questions
    ]
    found = verdicts(task.verify, [pair[:2] for pair in pairs])
    missed = [
        (name, q.answer, text)
        for (q, text, name), verdict in zip(pairs, found, strict=True)
        if verdict != "right"
    ]
    assert missed == []
    assert sum(text != rf"\boxed{{{q.answer}}}" for q, text, _ in pairs) > 900
    rng = random.Random(0)
    negatives = [(q, boxed(rng.choice(questions))) for q in questions for _ in range(4)]
    taken = [
        (q.answer, text)
        for (q, text), v in zip(negatives, verdicts(task.verify, negatives), strict=True)
        if v == "right"
    ]
    # two solutions, and a pair of numbers: a bare list is read either way
    lenient = {("-2,1", "(-2,1)")}
    for gold, text in taken:  # otherwise the same object in another question
        other = text[len(r"So it is \boxed{") : -2]
        value = maths.value(gold)
        assert (
            other == gold
            or (gold, other) in lenient
            or (value is not None and value == pytest.approx(maths.value(other)))
        )
    assert len(taken) < 60


@needs_data
@pytest.mark.parametrize("name", ["scibench", "mmlu", "mix"])
def test_real_references_are_right_and_those_of_others_wrong(name: str) -> None:
    task = load_plugin("task", name)
    questions = [q for q in task.load("test", path=DATA) if q.kind != "coding"]
    assert len(questions) >= 60
    assert verdicts(task.verify, [(q, boxed(q)) for q in questions]) == ["right"] * len(questions)
    rng = random.Random(0)
    others = [(q, rng.choice(questions)) for q in questions for _ in range(2)]
    differ = [(q, o) for q, o in others if q.kind == o.kind and not _close(q, o)]
    assert len(differ) > 50
    assert verdicts(task.verify, [(q, boxed(o)) for q, o in differ]) == ["wrong"] * len(differ)


def _close(one: Question, other: Question) -> bool:
    """Whether the verifier may take one's reference for the other's."""
    if one.answer == other.answer:
        return True
    if one.kind == "math":
        return maths.equal(one.answer, other.answer)
    if one.kind != "science":
        return False
    a = quantity(one.answer)
    b = quantity(other.answer)
    return any(abs(b - g) <= 0.05 * abs(g) for g in (a, a * 10.0 ** one.meta.get("power", 0)))


def block(program: str) -> str:
    return f"Like this:\n```python\n{program}\n```\n"


@needs_data
def test_every_reference_of_humaneval_passes_and_every_empty_body_fails() -> None:
    task = load_plugin("task", "humaneval")
    questions = {q.prompt: q for q in task.load("test", path=DATA)}
    rows = [
        json.loads(line) for line in (Path(DATA) / "humaneval_test.jsonl").read_text().splitlines()
    ]
    assert len(questions) == len(rows) == 164
    asked = [(questions[f"Complete this function:\n{r['prompt'].strip()}"], r) for r in rows]
    assert (
        verdicts(task.verify, [(q, block(r["prompt"] + r["canonical_solution"])) for q, r in asked])
        == ["right"] * 164
    )
    assert (
        verdicts(task.verify, [(q, block(r["prompt"] + "    pass")) for q, r in asked])
        == ["wrong"] * 164
    )


@needs_data
def test_the_tests_of_mbpp_and_of_the_mix_run() -> None:
    for name, stuck in (("mbpp", 2), ("mix", 0)):
        task = load_plugin("task", name)
        questions = [q for q in task.load("test", path=DATA, limit=100) if q.kind == "coding"]
        found = verdicts(task.verify, [(q, block("pass")) for q in questions])
        assert len(found) > 15
        assert found.count("failed") <= stuck  # tests of objects
        assert found.count("wrong") == len(found) - found.count("failed")


CODING = {
    "humaneval": {
        "prompt": 'import math\n\ndef root(x):\n    """ The root. """\n',
        "entry_point": "root",
        "task_id": "0",
        "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert root(9) == 3\n",
    },
    "mbpp": {
        "text": "Write a function for the root.",
        "test_list": ["assert root(4) == 2", "assert root(9) == 3"],
        "test_setup_code": "",
    },
    "kodcode": {
        "question": "Write root(x).",
        "test": "from solution import root\n\ndef test_it():\n    assert root(4) == 2\n",
    },
}


@pytest.mark.parametrize("name", CODING)
@needs_sandbox
def test_coding_tasks(name: str, tmp_path: Path) -> None:
    rows = (
        [CODING[name]]
        if name != "kodcode"
        else [{**CODING[name], "question": f"{i}"} for i in range(40)]
    )
    file = write(tmp_path / "rows.jsonl", rows)
    task = load_plugin("task", name)
    check_task(task, ["test"], path=str(file))
    question = task.load("test", path=str(file))[0]
    said = {
        "right": "import math\ndef root(x):\n    return math.isqrt(x)",
        "wrong": "def root(x):\n    return x",
    }
    assert [task.verify(question, block(program)) for program in said.values()] == list(said)
    assert task.verify(question, said["right"]) == "right", "all of the reply is a program"
    assert task.verify(question, "I would write:\n" + said["right"]) == "wrong"  # no block
    # the last one counts
    assert task.verify(question, block(said["wrong"]) + block(said["right"])) == "right"
    assert task.verify(question, block("def root(")) == "wrong"


@needs_sandbox
def test_a_completion_gets_what_stands_before_its_function(tmp_path: Path) -> None:
    task = load_plugin("task", "humaneval")
    (question,) = task.load("test", path=str(write(tmp_path / "rows.jsonl", [CODING["humaneval"]])))
    assert task.verify(question, block("def root(x):\n    return math.isqrt(x)")) == "right"
    newer = (
        "from __future__ import annotations\n\ndef root(x: int) -> int:\n    return math.isqrt(x)"
    )
    assert task.verify(question, block(newer)) == "right"


def test_tests_that_import_what_the_sandbox_has_not_are_refused(tmp_path: Path) -> None:
    tests = "import numpy as np\n\n" + CODING["humaneval"]["test"]
    file = write(tmp_path / "rows.jsonl", [{**CODING["humaneval"], "test": tests}])
    with pytest.raises(UserMistake, match=r"rows.jsonl:1: .*numpy"):
        load_plugin("task", "humaneval").load("test", path=str(file))


@needs_sandbox
def test_what_the_setup_of_tests_binds_is_not_asked_of_the_program(tmp_path: Path) -> None:
    row = {
        **CODING["mbpp"],
        "test_setup_code": "import math\n\ndef near(x):\n    return math.isclose(half(x), x / 2)",
        "test_list": ["assert near(3)", "assert math.isclose(half(1), 0.5)"],
    }
    task = load_plugin("task", "mbpp")
    (question,) = task.load("test", path=str(write(tmp_path / "rows.jsonl", [row])))
    assert question.meta["names"] == ["half"]
    assert task.verify(question, block("def half(x):\n    return x / 2")) == "right"
    assert task.verify(question, block("def half(x):\n    return x / 3")) == "wrong"
    broken = str(write(tmp_path / "broken.jsonl", [{**row, "test_list": ["assert half("]}]))
    with pytest.raises(UserMistake, match="no Python"):
        task.load("test", path=broken)


def test_the_same_program() -> None:
    from comas.answers import code

    assert code.same("def f(x):\n    return x + 1  # more", "def f(x): return x+1")
    assert not code.same("def f(x): return x + 1", "def f(x): return x + 2")
    # bad style, and no warning
    assert code.extract(Question(id="q", prompt="?"), block('import re\nx = "\\d"')) is not None
    assert code.called(
        "import os\nassert f(1) == g(os.sep)\nfor i in range(3):\n    assert f(i) == abs(i)"
    ) == ["f", "g"]


@pytest.mark.parametrize("turned", [1, -1])
def test_a_text_that_stands_twice_keeps_its_answer(turned: int, tmp_path: Path) -> None:
    lines = ['{"q": "a"}\n', '{"q": "a", "answer": "1"}\n']
    (tmp_path / "f.jsonl").write_text("".join(lines[::turned]))

    def make(row: Any, _: str) -> Question:
        return Question(id=identity("t", row["q"]), prompt=row["q"], answer=row.get("answer"))

    load = DataSource("t", None, ("q",)).loader(make)
    assert [q.answer for q in load("test", str(tmp_path / "f.jsonl"))] == ["1"]
