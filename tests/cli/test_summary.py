"""The end of a run: its gain first, and agents that fell."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from comas.cli.train import print_summary
from comas.storage.run import Run
from comas.training.result import result_of
from tests.support.run_folders import run, step

__all__ = ["run"]


@pytest.mark.parametrize(("wrong_after", "fell"), [(0, False), (3, True)])
def test_an_agent_that_fell_is_told_where_the_mean_hides_it(
    run: Run, wrong_after: int, fell: bool
) -> None:
    step(run, 0, seconds=1.0, spent={})
    for stage, at, wrong in (("before", 0, {"a": 0, "b": 4}), ("after", 1, {"a": wrong_after})):
        answers = [
            {
                "question": str(place),
                "agent": agent,
                "verdict": "wrong" if place < wrong.get(agent, 0) else "right",
            }
            for agent in "ab"
            for place in range(6)
        ]
        accuracy = {"mean": 0.5, "low": 0.0, "high": 1.0, "n": 6}
        run.write_eval(stage, {"step": at, "accuracy": accuracy, "answers": answers})
    shown = io.StringIO()
    print_summary(Console(file=shown, width=200), result_of(run))
    line = "  an agent fell: a 1.000 to 0.500, b 0.333 to 1.000\n"
    assert (line in shown.getvalue()) is fell
    first, before, *_ = shown.getvalue().strip().splitlines()
    assert first.startswith("held-out accuracy 0.500 -> 0.500: gain +")
    assert before == "  before  0.500 [0.000, 1.000]"


def test_a_run_that_was_not_measured_says_so_first(run: Run) -> None:
    step(run, 0, seconds=1.0, spent={})
    shown = io.StringIO()
    print_summary(Console(file=shown, width=200), result_of(run))
    first, before, *_ = shown.getvalue().strip().splitlines()
    assert first.startswith("held-out accuracy, mean over agents")
    assert before == "  before  not measured"
