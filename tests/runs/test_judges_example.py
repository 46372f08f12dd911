"""`examples/judges.py`: demonstrations of a judge's format, from a model's own samples and no label."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.testing import Scripted
from comas.types import Reply

EXAMPLE = Path(__file__).parents[2] / "examples" / "judges.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("judges_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "QUESTIONS", 12)
    monkeypatch.setattr(module, "ROWS", 24)
    return module


def test_verdicts_are_agreement_of_two_samples_and_no_label(example: Any) -> None:
    """Half of the replies say 5, half 7, whatever the question; every eighth is cut."""
    asked = 0

    def script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
        nonlocal asked
        asked += 1
        text = f"It is {5 + 2 * (asked % 2)}."
        return text if asked % 8 else Reply(text, False, 0, 1, 3, -1.0, 0.0)

    team = comas.team_of(task="sums", method="ttrl", options__votes=6, agents=1, steps=1)
    member = replace(team.members[0], host=Scripted(script, "home"))
    questions = team.task.load("train", limit=12)
    scripted = replace(team, members=[member])
    rows = example.demonstrations(scripted, questions, example.random.Random(0))
    team.close()
    assert len(rows) == 24
    criticisms = [row["reply"] for row in rows if row["role"] == "evaluation"]
    scores = [row["reply"] for row in rows if row["role"] == "scoring"]
    same = {f"I get {n}. The proposed answer {n} is right." for n in (5, 7)}
    other = {"I get 5. The proposed answer 7 is wrong.", "I get 7. The proposed answer 5 is wrong."}
    assert set(criticisms) == same | other
    assert sum(said in same for said in criticisms) == 6
    for criticism, score in zip(criticisms, scores, strict=True):
        assert score == f"<score>{3 if criticism in same else 1}</score>"


def test_what_it_writes_is_learnt_and_played_on(example: Any, tmp_path: Path, tiny: Path) -> None:
    file = tmp_path / "judges.jsonl"
    example.main("tiny", "pick", str(file))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {row["role"] for row in rows} == {"evaluation", "scoring"}
    result = comas.train(
        method="sft",
        task="demonstrations",
        data=str(file),
        hosts__home__base=str(tiny),
        agents=2,
        lr=1e-3,
        steps=1,
        questions=8,
        out=str(tmp_path / "judges"),
    )
    assert result.steps == 1
