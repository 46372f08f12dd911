"""Claims against closed forms: t tests, signs, Holm, and what is missing."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comas.exit_codes import ALARMED
from comas.stats import Interval
from comas.studies import cells
from comas.studies.cells import CellResult, figure_at
from comas.studies.file import LAST, StudyFile
from comas.studies.report import Declared, Report, p_of, verdicts_of


def study(*claims: dict[str, object], seeds: int = 3) -> StudyFile:
    told = [{"says": "x", "left": "a", "right": "b", **claim} for claim in claims]
    settings: dict[str, object] = {"a": {}, "b": {}}
    numbers = list(range(seeds))
    keys = {"seeds": numbers, "steps": 1, "settings": settings, "claims": told}
    return StudyFile.model_validate(keys)


def rows(**values: list[float | None]) -> list[CellResult]:
    return [
        CellResult(name, seed, "", "done" if value is not None else "failed", "", _values(value))
        for name, listed in values.items()
        for seed, value in enumerate(listed)
    ]


def _values(value: float | None) -> dict[str, float]:
    return {} if value is None else {"accuracy": value}


def t_tail(t: float) -> float:
    """One-sided p of Student's t with two degrees of freedom, in closed form."""
    return 0.5 - t / (2 * math.sqrt(2 + t * t))


A = [0.5, 0.7, 0.9]
B = [0.4, 0.5, 0.6]
T = 0.2 / (0.1 / math.sqrt(3))


def test_p_is_that_of_a_one_sided_paired_t_test() -> None:
    (verdict,) = verdicts_of(study({}), rows(a=A, b=B))
    assert verdict.p == pytest.approx(t_tail(T))
    assert verdict.difference is not None
    assert verdict.difference.mean == pytest.approx(0.2)
    assert verdict.word == "holds"
    (below,) = verdicts_of(study({"direction": "below"}), rows(a=A, b=B))
    assert below.p == pytest.approx(1 - t_tail(T))
    assert below.word == "not shown"  # its interval reaches 0
    (margin,) = verdicts_of(study({"margin": 0.1}), rows(a=A, b=B))
    assert margin.p == pytest.approx(t_tail(T / 2))


def test_whole_numbers_are_claimed_about_like_others() -> None:
    """A difference of two whole numbers is one, and was taken for the name of what is missing."""
    cells = [
        CellResult(name, seed, "", "done", "", {"tokens": tokens + seed})
        for name, tokens in (("a", 900), ("b", 1_400))
        for seed in range(3)
    ]
    (verdict,) = verdicts_of(study({"measure": "tokens", "direction": "below"}), cells)
    assert verdict.word == "not shown"
    assert verdict.p == 0.5**3
    assert verdict.difference is not None
    assert verdict.difference.mean == -500


def test_a_margin_below_zero_allows_so_much_the_other_way() -> None:
    found = study({"direction": "below", "margin": -0.5})
    assert p_of([0.1, 0.2, 0.3], found.claims[0]) == pytest.approx(
        t_tail(0.3 / (0.1 / math.sqrt(3)))
    )


def test_equal_differences_are_tested_by_their_signs() -> None:
    found = study({})
    assert p_of([0.25] * 5, found.claims[0]) == 0.5**5
    assert p_of([-0.25] * 5, found.claims[0]) == 1.0
    assert p_of([0.25], found.claims[0]) == 1.0


def test_holm_counts_every_claim() -> None:
    missing = rows(a=A, b=B, c=[0.1, None, 0.1])
    found = study({}, {"direction": "below"}, {"right": "c"})
    found.settings["c"] = {}
    first, second, third = verdicts_of(found, missing)
    assert first.p == pytest.approx(3 * t_tail(T))
    assert first.raw_p == pytest.approx(t_tail(T))
    assert second.p == 1.0
    assert third.word == "missing"
    assert third.verdict == "missing: c, seed 1: failed"
    assert third.raw_p == third.p == 1.0
    assert third.difference is not None
    assert third.difference.n == 2  # shown, and not tested


def test_a_claim_may_be_contradicted_and_one_seed_says_nothing() -> None:
    (contradicted,) = verdicts_of(study({}), rows(a=[0.1, 0.11, 0.12], b=[0.9, 0.9, 0.9]))
    assert contradicted.word == "contradicted"
    # half an interval below: enough for one claim, too little for one of four
    values = rows(a=[0.1, 0.2, 0.3], b=[0.4, 0.5, 0.5], c=[0.1, 0.2, 0.3])
    (one,) = verdicts_of(study({}), values)
    assert (one.word, one.difference and one.difference.high < 0) == ("contradicted", True)
    several = study({}, *[{"right": "c"}] * 3)
    several.settings["c"] = {}
    first, *_ = verdicts_of(several, values)
    assert first.word == "not shown"
    assert first.other_p == pytest.approx(4 * one.other_p)
    (alone,) = verdicts_of(study({}, seeds=1), rows(a=[0.9], b=[0.1]))
    assert alone.word == "not tested, one seed"
    assert alone.p == 1.0


def test_a_claim_may_compare_with_a_number_or_another_measure() -> None:
    values = {"accuracy": 0.8, "before": 0.2}
    both = [CellResult("a", seed, "", "done", "", values) for seed in range(3)]
    of_two = {"right": "a", "right_measure": "before"}
    number, measure = verdicts_of(study({"right": 0.5}, of_two), both)
    assert number.difference is not None
    assert number.difference.mean == pytest.approx(0.3)
    assert number.raw_p == 0.125
    assert measure.difference is not None
    assert measure.difference.mean == pytest.approx(0.6)


def test_figures_are_found_by_dotted_paths() -> None:
    cost = [
        {"agent": "a0", "role": "scoring", "tokens": 3},
        {"agent": "a1", "role": "scoring", "tokens": 4},
        {"agent": "a1", "role": "solution", "tokens": 5},
    ]
    step = {"pay": {"precision": 0.5, "n": None}, "cost": cost, "notes": []}
    assert figure_at(step, "pay.precision") == 0.5
    assert figure_at(step, "pay.n") is None
    assert figure_at(step, "pay.recall") is None
    assert figure_at(step, "cost.scoring.tokens") == 7
    assert figure_at(step, "cost.a1.tokens") == 9
    assert figure_at(step, "notes") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_no_number_is_not_known(value: float) -> None:
    """As JSON of a metric of one's own may have it: it must not make other claims' p 1."""
    assert figure_at({"mine": {"x": value}}, "mine.x") is None


def test_an_interval_without_an_end_is_null_in_the_report() -> None:
    """Equal differences say nothing of their spread; JSON has no infinity."""
    declared = study({})
    of_cells = rows(a=[0.5] * 3, b=[0.25] * 3)
    verdicts = verdicts_of(declared, of_cells)
    report = Report("s", declared, [], of_cells, verdicts, Declared(""))
    (claim,) = json.loads(json.dumps(report.data(), allow_nan=False))["claims"]
    assert (claim["n"], claim["difference"]) == (3, 0.25)
    assert claim["low"] is None
    assert claim["high"] is None


def test_an_interval_that_is_not_known_is_left_out_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comas.studies.report.can_draw", lambda: False)
    declared = study({})
    of_cells = rows(a=[0.5] * 3, b=[0.25, 0.25, 0.5])
    settings: Any = [SimpleNamespace(name=name, trained=False) for name in "ab"]
    verdicts = verdicts_of(declared, of_cells)
    Report("s", declared, settings, of_cells, verdicts, Declared("")).write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "inf" not in text
    assert "| a | 3 of 3 | - | 0.500 | - |" in text
    assert "| b | 3 of 3 | - | 0.333 \\[-0.025, 0.692\\] | - |" in text


def test_a_difference_that_is_the_margin_is_not_beyond_it() -> None:
    found = study({"margin": 0.05}, seeds=5)
    assert p_of([0.55 - 0.5] * 5, found.claims[0]) == 1.0
    assert p_of([0.56 - 0.5] * 5, found.claims[0]) == 0.5**5


def test_a_claim_of_less_is_contradicted_from_its_own_side_of_the_margin() -> None:
    found = study({"direction": "below", "margin": 0.1})
    (same,) = verdicts_of(found, rows(a=[0.49, 0.5, 0.51], b=[0.5, 0.5, 0.5]))
    assert same.word == "contradicted"  # by 0.1 it is not less, whatever the rest


def test_measures_of_a_run_and_of_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    came_to = SimpleNamespace(
        steps=3,
        tokens=9,
        step_seconds=1.5,
        accuracy={"before": Interval(0.25, 0, 1, 4), "after": Interval(0.75, 0, 1, 4)},
        agents={"before": {"a0": 0.25, "a1": 0.25}, "after": {"a0": 1.0, "a1": 0.5}},
        gain=Interval(0.375, 0, 1, 4),
    )
    monkeypatch.setattr(cells, "result_of", lambda run: came_to)

    def answers(*verdicts: str) -> dict[str, Any]:
        by_agent = (("a0", verdicts[:4]), ("a1", verdicts[4:]))
        of_all = [(agent, q, v) for agent, own in by_agent for q, v in enumerate(own)]
        return {"answers": [{"agent": a, "question": str(q), "verdict": v} for a, q, v in of_all]}

    evaluations = {
        "before": answers("right", *["wrong"] * 3, "right", *["wrong"] * 3),
        # of what could not be judged afterwards nobody knows the gain
        "after": answers(*["right"] * 2, *["failed"] * 2, "right", "wrong", "wrong", "right"),
    }
    run: Any = SimpleNamespace(read_eval=evaluations.get)
    values = cells._own_values(
        run, [{"validation": {"mean": 0.4}}, {}, {"validation": {"mean": 0.2}}]
    )
    assert values["lowest"] == 0.5
    assert values["best"] == 0.4
    assert (values["gain"], values["gain.a0"], values["gain.a1"]) == (0.375, 0.5, 0.25)


def test_what_is_missing_speaks_neither_for_a_claim_nor_against_it() -> None:
    (verdict,) = verdicts_of(study({}), rows(a=[0.1, 0.2, None], b=[0.6, 0.7, 0.9]))
    assert (verdict.p, verdict.other_p) == (1.0, 1.0)


def test_a_run_that_an_alarm_has_ended_is_done(tmp_path: Path) -> None:
    setting: Any = SimpleNamespace(
        name="a", keys={}, plan=SimpleNamespace(config=SimpleNamespace(threads=None))
    )
    cell = cells.Cell(setting, 0, tmp_path / "cell", {})

    async def place(arguments: Sequence[str], log: Path, threads: int | None) -> int:
        return ALARMED

    assert asyncio.run(cells._commands(cell, place)) == ""
    assert cell.trained
    assert cell.failure is None


@pytest.mark.parametrize(
    ("chosen", "mean"), [({}, 30 - (LAST - 1) / 2), ({"last": 3}, 29.0), ({"first": 3}, 2.0)]
)
def test_a_measure_is_the_mean_of_the_steps_that_it_names(
    chosen: dict[str, int], mean: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[dict[str, Any]] = [{"tokens": n, "mine": {"x": float(n)}} for n in range(1, 31)]
    del steps[19]["mine"], steps[20]["mine"]  # the middle of the last 20, which have the same mean
    run = SimpleNamespace(metrics=lambda: iter(steps), versions=list)
    monkeypatch.setattr(cells, "Run", SimpleNamespace(open=lambda path: run))
    monkeypatch.setattr(cells, "_own_values", lambda run, steps: {})
    measure: Any = SimpleNamespace(metric="mine.x", **({"first": None, "last": None} | chosen))
    study: Any = SimpleNamespace(measures={"m": measure})
    setting: Any = SimpleNamespace(name="a", trained=True)
    cell = cells.Cell(setting, 0, tmp_path / "cells" / "a" / "0", {})
    cell.folder.mkdir(parents=True)
    (cell.folder / "trained.json").write_text("{}")
    assert cells._row(study, cell).values["m"] == mean
