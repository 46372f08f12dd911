"""Who is to blame where the checker of mathematics breaks, how often it did, and what it costs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from comas.answers import maths
from comas.answers.pool import WorkerFailed, Workers
from comas.types import Question

SAME_NUMBERS = [
    ("10", r"10\%"),
    ("0.35", r"35\%"),
    (r"\frac{3}{4}", r"75\%"),
    (r"37.5\%", "37.5"),
    ("3", r"7\mod 4"),
    (r"\frac{1}{10}", r"10\cdot\frac{1}{100}"),
]
OTHERS = [
    (r"10\%", r"1000\%"),
    ("0.3", r"35\%"),
    (r"x\ne 4", r"x\ne 7"),
    ("x>2", r"x\le 5"),
    ("y<1", r"y\ge 3"),
    ("25!", r"\log_2 5"),
    ("2", r"7\mod 4"),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("one", "other"), SAME_NUMBERS + OTHERS)
def test_numbers_are_compared_as_numbers_whichever_is_the_reference(
    one: str, other: str, turned: bool
) -> None:
    gold, answer = (other, one) if turned else (one, other)
    verdict = maths.verify(Question(id="q", prompt="?", answer=gold), rf"\boxed{{{answer}}}")
    assert verdict == ("right" if (one, other) in SAME_NUMBERS else "wrong")


WORKER = """
import json, sys, time
print(json.dumps({"answer": "ready"}), flush=True)
for line in sys.stdin:
    name, *texts = json.loads(line)
    with open("LOG", "a") as log:
        print(line, end="", file=log)
    for part in texts:
        if "666" in str(part):
            print(json.dumps({"error": "TypeError: cannot compare"}), flush=True)
            break
        if "999" in str(part):
            sys.exit(3)
        print(" ", end="", flush=True)
    else:
        print(json.dumps({"answer": True}), flush=True)
"""


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checker that breaks on 666 and dies of 999; the file of its requests."""
    log = tmp_path / "requests"
    log.touch()
    (tmp_path / "breaking_worker.py").write_text(WORKER.replace("LOG", str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(maths, "WORKERS", Workers("breaking_worker", limit=20.0, count=1))
    monkeypatch.setattr(maths, "BROKEN", maths.BROKEN.__class__())
    maths.ask_child.cache_clear()
    return log


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"\sqrt{2}", r"\sqrt{666}", "wrong"),
        (r"\sqrt{666}", r"\sqrt{2}", "failed"),
        (r"\sqrt{3}", r"\sqrt{999}", "wrong"),
        (r"\sqrt{999}", r"\sqrt{3}", "failed"),
    ],
)
def test_the_one_who_broke_it_is_to_blame(
    gold: str, answer: str, verdict: str, requests: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "comas"):
        asked = Question(id="q", prompt="?", answer=gold)
        assert maths.verify(asked, rf"\boxed{{{answer}}}") == verdict
    assert sum(maths.BROKEN.values()) == 1
    assert len(caplog.records) == 1
    assert ("666" if "666" in gold + answer else "999") in caplog.text
    compared = [
        line for line in requests.read_text().splitlines() if json.loads(line)[0] == "equal"
    ]
    assert len(compared) == 1


def test_each_kind_is_shown_once_and_then_at_tenfold_counts(
    requests: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Question(id="q", prompt="?", answer=r"\sqrt{2}")
    with caplog.at_level(logging.WARNING, "comas"):
        for i in range(25):
            assert maths.verify(asked, rf"\boxed{{\sqrt{{666{i}}}}}") == "wrong"
    assert [record.message.split()[-4] for record in caplog.records] == ["1", "10"]
    assert all("TypeError" in record.message for record in caplog.records)
    assert maths.BROKEN == {("TypeError", True): 25}


def test_a_reply_says_how_far_its_worker_came(requests: Path) -> None:
    with pytest.raises(WorkerFailed) as on_first:
        maths.WORKERS.ask(["equal", ["value", "666", ""], "5"])
    with pytest.raises(WorkerFailed) as on_second:
        maths.WORKERS.ask(["equal", "5", ["value", "999", ""]])
    assert (on_first.value.begun, on_second.value.begun) == (False, True)
