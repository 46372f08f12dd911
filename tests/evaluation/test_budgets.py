"""Benchmarks: that of budgets, what it makes of reports, by hand; how all of them are called."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comas.evaluation.setups import chosen_setup
from comas.team.build import outline
from tests.support import runs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def cell(setup: str, tokens: int, right: int, **more: Any) -> dict[str, Any]:
    counts = {"right": right, "wrong": 10 - right, "failed": 0, "judged": 10}
    interval = {"accuracy": right / 10, "low": 0.0, "high": 1.0}
    return {"system": "s", "setup": setup, "tokens": tokens, **counts, **interval, **more}


def test_rows_have_tokens_per_question_and_what_is_as_accurate_for_less() -> None:
    budgets: Any = importlib.import_module("budgets")
    cells = [
        cell("single", 100, 3),
        cell("vote:votes=16", 1600, 2),
        cell("debate:revisions=1", 400, 5),
        cell("refine:chains=4:rounds=1", 900, 5),
        cell("steps:votes=2:rounds=1", 50, 9, accuracy=None),
    ]
    rows = budgets.rows_of({"cells": cells})
    assert [(row.family, row.tokens) for row in rows] == [
        ("vote", 10.0),
        ("vote", 160.0),
        ("debate", 40.0),
        ("refine", 90.0),
    ]
    assert [budgets.cheapest(row, rows).setup for row in rows] == [
        "single",
        "single",
        "debate:revisions=1",
        "debate:revisions=1",
    ]


def test_every_budget_is_a_setup_with_options_that_it_has() -> None:
    budgets: Any = importlib.import_module("budgets")
    team = outline(runs.planned([]))
    setups = [setup for of_family in budgets.FAMILIES.values() for setup in of_family]
    assert len(set(setups)) == len(setups)
    assert {chosen_setup(setup, team).name for setup in setups} == set(setups)
    assert set(budgets.FAMILIES) == set(budgets.COLOURS)


def test_benchmarks_are_listed_and_called_by_name() -> None:
    listed = called()
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert {"learning", "memory", "own_model"} <= set(names)
    assert "tables" not in names
    assert "--agents" in called("memory", "--help").stdout
    wrong = called("memori")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: benchmark 'memori': one of budgets, ")


def called(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True)


def test_pages_name_benchmarks_that_are_there_or_their_commit() -> None:
    for page in sorted((BENCHMARKS.parent / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name in re.finditer(r"benchmarks/(\w+)\.py`?(\s+of\s+commit\s+[0-9a-f]{7,})?", text):
            assert name[2] or (BENCHMARKS / f"{name[1]}.py").exists(), (page.name, name[0])
