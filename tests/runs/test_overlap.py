"""Questions that were trained on are found and told; questions without answers are trained on and
not measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import comas
from comas.config.schema import read, settings_of
from comas.evaluation.questions import overlap
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.training.start import train_async
from comas.types import Question

STAMPS = (
    "{} bought stamps at the post office. Some had a snowflake design and {} had a rose. How many"
    " stamps in all?"
)


def asked(*texts: str) -> list[Question]:
    return [Question(id=f"q{i}", prompt=text) for i, text in enumerate(texts)]


def test_duplicates() -> None:
    train = asked(
        "What is 2 + 2?",
        STAMPS.format("Bella", 11),
        "A train goes from here to there in the course of one long day.",
    )
    test = asked(
        "what  is 2 + 2?",
        STAMPS.format("Max", 16),
        STAMPS.format("Bella", 11),
        "What is 3 + 3?",
        "Something else entirely, that nobody has ever asked before in the course of one day.",
    )
    found = overlap(train, test)
    assert found.exact == [("q0", "q0"), ("q2", "q1")]
    told = "2 of 5 test questions were trained on (such as q0, trained on as q0)"
    assert str(found) == told
    assert str(overlap([], test)) == "0 of 5 test questions were trained on"
    assert overlap(train + asked(STAMPS.format("Bella", 11)), test[2:3]).exact == [("q2", "q1")]


@given(st.lists(st.text(max_size=40), max_size=8))
def test_every_question_overlaps_itself(texts: list[str]) -> None:
    questions = asked(*texts)
    found = overlap(questions, questions)
    assert [a for a, _ in found.exact] == [q.id for q in questions]


class Notes(Hook):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def own(path: Path, answers: bool) -> Path:
    rows = [
        {
            "question": f"What is {i} + {i} in the big box of small numbers, please?",
            **({"answer": 2 * i} if answers else {}),
        }
        for i in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


KEYS = {
    "task": "jsonl",
    "agents": 2,
    "steps": 2,
    "questions": 4,
    "test_questions": 8,
    "eval_every": 1,
    "eval_questions": 4,
    "lr": 1e-4,
    "threads": 1,
    "room": {"solution": 8, "evaluation": 8, "scoring": 8},
    "options": {"format_check": False},
}


@pytest.mark.parametrize("answers", [True, False])
def test_own_questions_train_with_and_without_answers(
    answers: bool, tiny: Path, tmp_path: Path
) -> None:
    watch = Notes()
    out = str(tmp_path / "run")
    keys = {
        **KEYS,
        "hosts": {"home": {"base": str(tiny)}},
        "data": str(own(tmp_path / "mine.jsonl", answers)),
        "out": out,
    }
    result = run_sync(train_async(read(None, keys), watch))
    steps = list(Run.open(out).metrics())
    assert [m["counts"]["turns"] > 0 for m in steps] == [True, True]
    record = json.loads((tmp_path / "run" / "eval" / "overlap.json").read_text())
    if answers:
        assert result.accuracy["after"].n == 8
        assert all("validation" in m for m in steps)
        assert record == {"exact": [], "tested": 8}
    else:
        assert result.accuracy == {"before": None, "after": None}
        assert not any("validation" in m for m in steps)
        assert sum("has an `answer` to be judged by" in note for note in watch.said) == 2
        with pytest.raises(comas.types.UserMistake, match="test questions"):
            run_sync(EvaluationRun.create(EvaluationPlan([out]), str(tmp_path / "e")).go(Hook()))


def test_an_evaluation_tells_what_a_run_was_trained_on(tiny: Path, tmp_path: Path) -> None:
    data = own(tmp_path / "mine.jsonl", True)
    out = str(tmp_path / "run")
    comas.train(
        **{**KEYS, "steps": 1, "test_questions": 0, "eval_every": 0},
        hosts__home__base=str(tiny),
        data=str(data),
        out=out,
    )
    question = "what is 8 + 8  in the big box of small numbers, please?"
    (tmp_path / "amc_test.jsonl").write_text(json.dumps({"question": question, "answer": 16}))
    plan = EvaluationPlan(
        [out, str(tiny)],
        tasks=["amc"],
        data=str(tmp_path / "amc_test.jsonl"),
        settings=settings_of(["room.solution=8"]),
    )
    found = run_sync(EvaluationRun.create(plan, str(tmp_path / "e")).go(Hook()))
    (only,) = found["overlap"]  # of the run; what a base model saw nobody knows
    assert (only["run"], only["task"], len(only["exact"])) == (out, "amc", 1)
    assert any("test questions were trained on" in note for note in found["notes"])
    data.unlink()
    found = run_sync(EvaluationRun.create(plan, str(tmp_path / "e2")).go(Hook()))
    assert any("is not known" in note for note in found["notes"])


def test_the_best_checkpoint_is_kept_whenever_it_comes(untaught: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    keys = {
        "steps": 3,
        "agents": 2,
        "questions": 8,
        "test_questions": 0,
        "eval_every": 1,
        "eval_questions": 16,
        "threads": 1,
    }
    comas.train(**keys, checkpoint_every=100, out=out)
    run = Run.open(out)
    means = [m["validation"]["mean"] for m in run.metrics()]
    assert run.best() == 1 + means.index(max(means))
    assert run.intact(run.best()).is_dir()
