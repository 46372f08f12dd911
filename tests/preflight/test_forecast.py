"""How long a preflight takes is said before a model is loaded, and how that is known."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w

from comas import machine
from comas.evaluation import forecast
from comas.evaluation.preflight import planned_team
from comas.learners import precision
from comas.storage.run import Run

RECORDED = Path(__file__).parents[1] / "stability" / "run-0.2.0"


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of tiny models on this processor, in `runs`."""
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(RECORDED, tmp_path / "runs" / "mine")
    record = json.loads((run / "processes.json").read_text())
    record["processes"][-1]["processor"] = machine.processor()
    (run / "processes.json").write_text(json.dumps(record))
    return run


def said(base: str) -> str:
    return forecast.forecast(planned_team([base], {}), questions=10, answers=8, judged=13)


def test_a_run_of_the_base_on_this_processor_tells_speed_and_lengths(earlier: Path) -> None:
    measured = forecast.measured_here(planned_team(["tiny"], {}))
    steps = list(Run(earlier).metrics())
    assert measured is not None
    seconds = sum(step["spent"]["sampling"] for step in steps)
    assert measured.speed == pytest.approx(sum(step["step_tokens"] for step in steps) / seconds)
    assert measured.lengths["scoring"] == 4.0
    line = said("tiny")
    assert line.startswith("about ")
    assert line.endswith("as runs/mine had on this processor")


def test_a_base_that_no_policy_has_is_none_of_the_run(earlier: Path) -> None:
    config = tomllib.loads((earlier / "config.toml").read_text())
    first, *others = config["agents"]
    config["agents"][first]["base"] = "tiny"
    for name in others:
        config["agents"][name] |= {"policy": first}
    config["hosts"]["home"]["base"] = "tiny-b"
    (earlier / "config.toml").write_text(tomli_w.dumps(config))
    assert forecast.measured_here(planned_team(["tiny"], {})) is not None


@pytest.mark.parametrize("change", ["base", "processor", "damaged", "none"])
def test_other_runs_tell_nothing(change: str, earlier: Path) -> None:
    processes = earlier / "processes.json"
    base = "tiny-b" if change == "base" else "tiny"
    if change == "processor":
        processes.write_text(processes.read_text().replace(machine.processor(), "another"))
    if change == "damaged":
        processes.write_text("{")
    if change == "none":
        shutil.rmtree(earlier)
    assert re.match(
        r"how long that takes depends on the tokens/s .*at most [\d,]+ tokens", said(base)
    )


def test_without_a_run_a_guess_from_parameters_says_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forecast, "parameters", lambda model: 500_000_000)
    monkeypatch.setattr(precision, "operations_per_second", lambda half: 1e11)
    monkeypatch.setattr(forecast, "threads_of", lambda count: 2)
    line = said("tiny")
    assert re.match(
        r"at least \d+ (minutes|seconds) in all if every reply takes all its tokens", line
    )
    assert "no more than 200 tokens/s, often several times as long: a guess from 500M" in line


def test_operations_are_counted() -> None:
    assert precision.operations_per_second(half=False) > 1e7
