"""The report on the family: its claims are data that fits the systems, and what it makes of figures
is right by hand; nothing is trained here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from comas.config.plan import plan
from comas.config.schema import read
from comas.stats import mean_interval

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def family() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("family")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_every_method_has_a_row_a_paper_and_a_claim(family: Any) -> None:
    assert len(family.FAMILY) == 16
    assert all(system.paper for system in family.FAMILY.values())
    claimed = {claim.method for claim in family.CLAIMS}
    assert set(family.FAMILY) < claimed <= set(family.ROWS)
    for name in family.FAMILY:
        assert family.SYSTEMS[name].parts == ((f"method={name}",),)


def test_claims_name_systems_and_measures_that_there_are(family: Any) -> None:
    measures = importlib.import_module("family_measures")
    known = {*measures.RECORDED, *measures.TEAM_MEASURES}
    known |= {name + measures.START for name in measures.TEAM_MEASURES}
    for name in family.SYSTEMS:
        assert set(family.measures_of(name)) <= known, name
    for claim in family.CLAIMS:
        assert claim.left.system in family.SYSTEMS
        assert claim.right is None or claim.right.system in family.SYSTEMS


@pytest.mark.parametrize("name", ["ttrl of each voter", "ttrl of one voter", "comas"])
def test_parts_share_the_budget_and_can_be_resolved(family: Any, name: str, tmp_path: Path) -> None:
    jobs = family.commands(tmp_path, name, 101, 8000)
    parts = family.SYSTEMS[name].parts
    assert len({folder for folder, _ in jobs}) == len(jobs) == len(parts)
    for _, command in jobs:
        keys = command[command.index("--one") + 1 :]
        assert f"tokens={8000 // len(parts)}" in keys
        config = read(None, keys)
        assert config.seed == 101
        if len(jobs) == 1:
            plan(config)


def test_a_method_brings_the_systems_that_it_is_compared_with(family: Any) -> None:
    assert family.systems_of(["spc"]) == ["spc", "spc, frozen generator"]
    assert family.systems_of(["mae"]) == ["mae"]
    assert set(family.systems_of(["rlccf", "evol_rl"])) >= {
        "ttrl of each voter",
        "ttrl of one voter",
    }


def values(family: Any, left: list[float], right: list[float]) -> Any:
    found = {}
    for seed, (a, b) in enumerate(zip(left, right, strict=True)):
        found[seed] = {family.Figure("x", "m"): a, family.Figure("y", "m"): b}
    return found


def claim(family: Any, threshold: float, beyond: float = 0.0, exact: bool = False) -> Any:
    left = family.Figure("x", "m")
    return family.Claim("x", "says", left, family.Figure("y", "m"), threshold, beyond, exact)


def test_differences_are_paired_by_seed_and_leave_out_what_is_missing(family: Any) -> None:
    found = values(family, [0.5, 0.75, float("nan")], [0.25, 0.25, 0.0])
    found[3] = {family.Figure("x", "m"): 1.0}
    assert family.differences(claim(family, 0.0), found) == [0.25, 0.5]


def test_p_is_that_of_a_one_sided_t_test(family: Any) -> None:
    # mean .2, standard error .1 over 3 seeds: t = 2 with 2 degrees of freedom
    found = [0.2 - 0.173205081, 0.2, 0.2 + 0.173205081]
    assert family.above(found, 0.0) == pytest.approx(0.5 - 2 / (2 * (2 + 4) ** 0.5), abs=1e-6)
    assert family.above(found, 0.2) == pytest.approx(0.5)
    assert family.above([0.5, 0.5, 0.5], 0.0) == 0.125
    assert family.above([0.0, 0.0], 0.0) == 1.0
    assert family.above([0.4], 0.0) == 1.0


def test_a_claim_holds_by_its_mean_and_by_the_corrected_test(family: Any) -> None:
    found = values(family, [0.50, 0.52, 0.48, 0.51, 0.49], [0.3] * 5)
    enough, too_much = family.judge_claims([claim(family, 0.15), claim(family, 0.25)], found)
    assert (enough.holds, too_much.holds) == (True, False)
    assert enough.found == pytest.approx(mean_interval([0.20, 0.22, 0.18, 0.21, 0.19]))
    single = family.above(family.differences(enough.claim, found), 0.0)
    assert enough.p == pytest.approx(2 * single)  # Holm over two
    (beyond,) = family.judge_claims([claim(family, 0.15, 0.195)], found)
    assert beyond.holds is False  # its lower bound is not above


def test_exact_claims_are_not_tested_and_allow_no_exception(family: Any) -> None:
    exact = claim(family, 0.0, exact=True)
    (none,) = family.judge_claims([exact], values(family, [1.0, 1.0], [1.0, 1.0]))
    assert (none.holds, none.p) == (True, None)
    (one,) = family.judge_claims([exact], values(family, [1.0, 2.0], [1.0, 1.0]))
    assert one.holds is False


def test_what_was_not_run_is_not_known(family: Any) -> None:
    (unknown,) = family.judge_claims([claim(family, 0.1)], {})
    assert (unknown.found, unknown.holds) == (None, None)
    assert family.claim_cells(unknown)[-1] == "-"
    assert family.agrees("x", [unknown]) == "-"
    (single,) = family.judge_claims([claim(family, 0.1)], values(family, [0.9], [0.3]))
    assert (single.found.mean, single.p, single.holds) == (pytest.approx(0.6), None, None)


def test_agreement_is_of_all_claims_of_a_method(family: Any) -> None:
    def verdict(holds: bool | None, exact: bool = False) -> Any:
        return family.Verdict(claim(family, 0.0, exact=exact), mean_interval([0.0]), None, holds)

    assert family.agrees("x", [verdict(True), verdict(True)]) == "yes"
    assert family.agrees("x", [verdict(True), verdict(False)]) == "in part"
    assert family.agrees("x", [verdict(False), verdict(True, exact=True)]) == "no"
    assert family.agrees("x", [verdict(True), verdict(False, exact=True)]) == "in part"
    assert family.agrees("x", [verdict(True, exact=True)]) == "-"
    assert family.agrees("x", [verdict(True), verdict(None)]) == "-"
    assert family.agrees("y", [verdict(True)]) == "-"


def test_the_page_has_a_line_for_each_method_and_claim(family: Any) -> None:
    row = family.Row(
        "mae", 5, 0.25, 0.5, mean_interval([0.2, 0.3]), 6e5, 90.0, "accuracy", "learns", "yes"
    )
    verdicts = family.judge_claims([claim(family, 0.1)], values(family, [0.5, 0.6], [0.3, 0.3]))
    page = family.markdown([row], verdicts, "commit abc")
    assert "| mae | accuracy | 0.250 | 0.500 | +0.250 [" in page
    assert "] | learns | yes |" in page
    assert "600,000 generated tokens, 5 seeds" in page
    assert "| x | says | +0.250 [" in page
    assert all(line.count("|") in (0, 8) for line in page.splitlines())
