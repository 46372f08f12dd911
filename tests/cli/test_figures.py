"""What a report says of the last steps: means over those that have a figure, and nothing where none
has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from comas.cli.train import figure_lines
from comas.storage.run import Run
from comas.training.result import LAST, Result, mean_figures, result_of
from tests.support.run_folders import run, step

__all__ = ["run"]

STEPS = [
    {"pay": {"n": 4, "accuracy": 0.25, "auc": 0.5}, "variety": {"distinct": 1.2}},
    {"pay": {"n": 6, "accuracy": 0.75, "auc": None}, "judges": {"scoring": {"n": 3}}},
    {"rewards": {}},
]


def test_means_are_over_the_steps_that_have_a_figure() -> None:
    assert mean_figures(STEPS) == {
        "judges": {"scoring": {"n": 3}},
        "pay": {"step": {"n": 5, "accuracy": 0.5, "auc": 0.5}},
        "variety": {"step": {"distinct": 1.2}},
    }


def test_only_the_last_steps_count(run: Run) -> None:
    for number in range(LAST + 2):
        step(run, number, seconds=2.0, spent={"playing": 1.0}, posed={"valid": float(number > 1)})
    result = result_of(run)
    assert result.figures == {"posed": {"step": {"valid": 1.0}}}
    assert result.step_seconds == 2 * result.spent["playing"] == 2.0 * (LAST + 2)


@pytest.mark.parametrize(
    ("auc", "words"), [(0.8, "more than"), (0.2, "less than"), (0.52, "no more than")]
)
def test_what_rewards_are_worth_is_said_in_words(auc: float, words: str) -> None:
    figures = {"pay": {"step": {"accuracy": 0.3, "precision": 0.21, "recall": 0.4, "auc": auc}}}
    (line,) = list(figure_lines(Result(Path(), 3, 0, 0.0, figures=figures)))[1:]
    said = f"Of rewarded answers 21% are right. Right answers are rewarded {words} wrong ones"
    assert line == f"  {said} (AUC {auc:.2f}; chance is 0.50)."


def test_lines_leave_out_what_is_not_there() -> None:
    result = Result(Path(), len(STEPS), 0, 0.0, figures=mean_figures(STEPS))
    assert list(figure_lines(result))[1:] == [
        "  Right answers are rewarded no more than wrong ones (AUC 0.50; chance is 0.50).",
        "  variety: different answers to a question 1.20",
    ]
    assert mean_figures([{"rewards": {}}]) == mean_figures([]) == {}
    assert list(figure_lines(Result(Path(), 1, 0, 0.0))) == []
