"""The benchmark of budgets and that of the labelled methods: what they make of reports, by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comas.evaluation.ways import way
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
    assert {way(setup, team).name for setup in setups} == set(setups)
    assert set(budgets.FAMILIES) == set(budgets.COLOURS)


def test_claims_of_the_labelled_methods_name_their_systems() -> None:
    labelled: Any = importlib.import_module("labelled")
    measures: Any = importlib.import_module("family_measures")
    own = labelled.systems(1000)
    for claim in labelled.CLAIMS:
        figures = [figure for figure in (claim.left, claim.right) if figure is not None]
        assert {figure.system for figure in figures} <= set(own)
    known = {*measures.RECORDED, *measures.TEAM_MEASURES, labelled.BELOW_HALF}
    assert {claim.left.measure for claim in labelled.CLAIMS} <= known
    assert labelled.TOKENS in known
    for system in own.values():
        for part in system.parts:
            runs.planned(list(part))
    assert "tokens=800" in own["sec"].parts[0]
