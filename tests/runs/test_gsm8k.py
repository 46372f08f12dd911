"""GSM8K: reading numbers, splits, verdicts, and the way from real text to weights."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import comas
from comas.answers.numbers import canonical
from comas.tasks import gsm8k
from comas.testing import tiny_model
from comas.types import Question, UserMistake

DATA = os.environ.get("COMAS_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="COMAS_DATA names no folder with gsm8k_train.jsonl and gsm8k_test.jsonl"
)
ASKED = Question(id="q", prompt="How many?", answer="72")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made-up problems in the columns of the hub."""
    for stem, count in (("train", 200), ("test", 30)):
        rows = [
            {
                "question": f"{stem}: {i} and {i}?",
                "answer": f"{i} + {i} = <<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i:,}",
            }
            for i in range(450, 450 + count)
        ]
        (tmp_path / f"gsm8k_{stem}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", "72"),
        (" 72 ", "72"),
        ("72.", "72"),
        ("72.0", "72"),
        ("72.50", "72.5"),
        ("1,000", "1000"),
        ("12,345,678.5", "12345678.5"),
        ("1{,}000", "1000"),
        (r"1\,000", "1000"),
        ("$5", "5"),
        (r"\$5.25", "5.25"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("−3", "-3"),
        ("+3", "3"),
        ("50%", "50"),
        (r"50\%", "50"),
        (".5", "0.5"),
        ("3/4", "0.75"),
        ("1/3", "1/3"),
        ("6/3", "2"),
        ("-1/4", "-0.25"),
        ("1 / 4", "0.25"),
        (r"\frac{3}{4}", "0.75"),
        (r"-\dfrac{1}{3}", "-1/3"),
        (r"\frac{-1}{2}", "-0.5"),
        ("1e3", "1000"),
        ("2.5E-3", "0.0025"),
        (r"2 \times 10^3", "2000"),
        (r"2\cdot10^{-1}", "0.2"),
        (r"18\text{ dollars}", "18"),
        ("0", "0"),
        ("-0.0", "0"),
        ("007", "7"),
        ("1e60", "1" + "0" * 60),
        ("$$7$$", "7"),
        (r"\text{72}", "72"),
        (r"\textbf{72}", "72"),
        ("72 clips", "72"),
        ("x = 72", "72"),
        (r"72^\circ", "72"),
        (r"72\text{ cm}^2", "72"),
        ("(72)", "72"),
        (r"\left(72\right)", "72"),
        (r"\approx 72", "72"),
        (r"72\mbox{ cm}", "72"),
        (r"\text{72 clips}", "72"),
    ],
)
def test_reads_one_number(text: str, value: str) -> None:
    assert gsm8k.extract(ASKED, rf"So \boxed{{{text}}}.") == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "NaN",
        "nan",
        "inf",
        "-Infinity",
        "1e999999999",
        "1e-999999999",
        "9" * 100_000,
        "1e61",
        "1/0",
        "0/0",
        "1/2/3",
        "1,00",
        ",5",
        "1,0000",
        "0,075",
        "0{,}075",
        r"0\,075",
        "--5",
        "5 million",
        "5 or 6",
        "3 4",
        "1 1/2",
        r"1\frac{1}{2}",
        r"1 \frac{1}{2}",
        "5-3",
        "2+2",
        "1_000",
        "0x10",
        "٣",
        "²",
        "5..",
        "1.2.3",
        r"\frac{1}{}",
        r"\frac{1}{0}",
        "e5",
        "$",
        "%",
        "{5}",
    ],
)
def test_anything_else_is_not_a_number(text: str) -> None:
    assert gsm8k.extract(ASKED, rf"So \boxed{{{text}}}.") is None
    assert not gsm8k.same(text, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\boxed{2}}", "2"),
        (r"\boxed {2}", "2"),
        ("the work\n#### 1,250\n", "1250"),
        ("#### 1\n#### 2", "2"),
        ("####\n5", None),
        (r"\boxed{3} #### 4", "3"),
        (r"\boxed{3} then \boxed{many}", None),
        (r"\boxed{3} then \boxed{4", None),
        (r"\boxed{many} #### 4", None),
        ("The answer is 72.", None),
        ("72", None),
        ("#### 5 apples", "5"),
        ("#### **5**", "5"),
        (r"\fbox{5}", "5"),
        ("", None),
    ],
)
def test_the_last_box_decides_then_the_last_mark(text: str, value: str | None) -> None:
    assert gsm8k.extract(ASKED, text) == value


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6))
def test_canonical_text_means_the_same_number(value: Fraction) -> None:
    text = canonical(value)
    assert gsm8k.number(text) == value
    assert gsm8k.extract(ASKED, rf"\boxed{{{text}}}") == text


@given(st.text(alphabet="0123456789.,-+/$%eE \\{}boxedfrac#", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = gsm8k.extract(ASKED, r"\boxed{" + text)
    assert found is None or gsm8k.same(found, found)


def test_same_is_numeric() -> None:
    assert gsm8k.same("0.5", "1/2")
    assert gsm8k.same("1000", "1,000.0")
    assert not gsm8k.same("1/3", "0.3333")
    assert not gsm8k.same("nan", "nan")


@pytest.mark.parametrize(
    ("answer", "text", "verdict"),
    [
        ("72", r"\boxed{72.00}", "right"),
        ("72", "#### 72", "right"),
        ("72", r"\boxed{71}", "wrong"),
        ("72", "72", "wrong"),
        ("0.5", r"\boxed{\frac{1}{2}}", "right"),
        ("many", r"\boxed{many}", "failed"),
        (None, r"\boxed{72}", "failed"),
    ],
)
def test_verdicts(answer: str | None, text: str, verdict: str) -> None:
    question = Question(id="q", prompt="?", answer=answer)
    assert gsm8k.verify(question, text) == verdict


def test_splits_are_disjoint_and_whole(folder: Path) -> None:
    splits = {name: gsm8k.task.load(name, path=str(folder)) for name in gsm8k.SPLITS}
    ids = {name: {q.id for q in questions} for name, questions in splits.items()}
    assert len(ids["train"]) + len(ids["validation"]) == 200
    assert not ids["train"] & ids["validation"]
    assert 5 < len(ids["validation"]) < 45
    assert all(q.prompt.startswith("test") for q in splits["test"])
    assert len(ids["test"]) == 30


def test_order_is_the_seeds_and_limit_takes_its_beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gsm8k.task.load("test", path=str(folder), seed=1)
    assert gsm8k.task.load("test", path=str(folder), seed=1, limit=7) == whole[:7]
    other = gsm8k.task.load("test", path=str(folder), seed=2)
    assert other != whole
    assert {q.id for q in other} == {q.id for q in whole}
    monkeypatch.setenv("COMAS_DATA", str(folder))
    assert gsm8k.task.load("test", seed=1) == whole
    assert gsm8k.task.load("test", path=str(folder / "gsm8k_test.jsonl"), seed=1) == whole


def test_rows_become_questions(folder: Path) -> None:
    question = next(
        q for q in gsm8k.task.load("test", path=str(folder)) if q.prompt == "test: 470 and 470?"
    )
    assert (question.answer, question.kind) == ("940", "math")
    assert question.meta["solution"] == "470 + 470 = <<470+470=940>>940"
    assert gsm8k.verify(question, "#### 940") == "right"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "expected an object"),
        ('{"question": "a"}', "expected an object"),
        ('{"question": 1, "answer": "2"}', "texts"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "a?", "answer": "#### 1"}\n' + line)
    with pytest.raises(UserMistake, match=said) as caught:
        gsm8k.task.load("test", path=str(file))
    assert f"{file}:2" in str(caught.value)


def test_mistakes_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserMistake, match="one of train, validation, test"):
        gsm8k.task.load("dev", path=str(tmp_path))
    with pytest.raises(UserMistake, match=r"gsm8k_test\.jsonl.*COMAS_DATA"):
        gsm8k.task.load("test", path=str(tmp_path))
    monkeypatch.delenv("COMAS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserMistake, match=r'pip install "comas\[hub\]"'):
        gsm8k.task.load("test")


def test_the_hub_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*names: str, split: str) -> list[dict[str, str]]:
        asked.append((*names, split))
        if split == "train":
            raise ConnectionError("offline")
        return [{"question": "2 and 2?", "answer": "2 + 2 = 4\n#### 4"}]

    monkeypatch.delenv("COMAS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert [q.answer for q in gsm8k.task.load("test")] == ["4"]
    with pytest.raises(UserMistake, match="ConnectionError"):
        gsm8k.task.load("validation")
    assert asked == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "main", "train")]


def test_wording_has_the_holes_that_methods_fill() -> None:
    holes = {
        "solution": {"question", "history"},
        "history": {"work", "evaluation"},
        "history_bare": {"work"},
        "remark": {"evaluation"},
    }
    for role in ("evaluation", "proxy", "scoring_bare"):
        holes[role] = {"question", "work"}
    holes["revision"] = {"question", "own", "history"}
    holes["scoring"] = {"question", "work", "evaluation"}
    assert {
        role: set(re.findall(r"\{(\w+)\}", text)) for role, text in gsm8k.task.wording.items()
    } == holes
    assert r"\boxed{}" in gsm8k.task.wording["solution"]


@needs_data
def test_every_reference_of_the_real_files_is_right() -> None:
    for split, least in (("train", 1000), ("validation", 100), ("test", 1000)):
        questions = gsm8k.task.load(split, path=DATA)
        assert len(questions) >= least
        for q in questions:
            assert gsm8k.verify(q, f"{q.meta['solution']}\n#### {q.answer}") == "right"
            assert (
                gsm8k.verify(
                    q, rf"{q.meta['solution']} \boxed{{{gsm8k.number(q.answer or '') + 1}}}"
                )
                == "wrong"
            )


PAYS_LETTERS = """
from dataclasses import replace

from comas.methods.comas import method as comas


def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = float(len(turn.text))


method = replace(comas, settle=settle, presets={})
"""


@needs_data
def test_from_real_text_to_weights(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", max_position_embeddings=4096)
    # the game is comas; a random model earns the same everywhere, and would rightly stay where it
    # is: so letters are paid
    (tmp_path / "letters.py").write_text(PAYS_LETTERS)
    result = comas.train(
        task="gsm8k",
        method=str(tmp_path / "letters.py"),
        hosts__home__base=str(base),
        agents=2,
        steps=2,
        questions=8,
        test_questions=8,
        eval_every=0,
        room=dict.fromkeys(gsm8k.task.max_tokens, 8),
        threads=1,
        options__format_check=False,
        hosts__home__learner="full",
        out=str(tmp_path / "run"),
    )
    assert (result.steps, result.accuracy["before"].n, result.accuracy["after"].n) == (2, 8, 8)
    for agent in ("a0", "a1"):
        saved = [
            load_file(tmp_path / "run" / "checkpoints" / f"step-{n}" / agent / "model.safetensors")
            for n in (0, 2)
        ]
        moved = max(float(abs(saved[1][name] - saved[0][name]).max()) for name in saved[0])
        assert 0.3e-6 < moved < 3e-6  # one to two steps of AdamW at the recipe's learning rate
    episodes = [
        json.loads(line)
        for line in (tmp_path / "run" / "episodes" / "000000.jsonl").read_text().splitlines()
    ]
    assert {t["role"] for e in episodes for t in e["turns"]} == {
        "solution",
        "evaluation",
        "scoring",
    }
    assert all(t["tokens"] <= 8 for e in episodes for t in e["turns"])
    assert all(e["question"]["prompt"] in e["turns"][0]["prompt"] for e in episodes)
