"""What a report says of the last steps: means over those that have a figure, and nothing where none
has.
"""

from __future__ import annotations

from comas.cli.train import LAST, figure_lines, figures_of

STEPS = [
    {"pay": {"n": 4, "accuracy": 0.25, "auc": 0.5}, "coverage": {"distinct": 1.2}},
    {"pay": {"n": 6, "accuracy": 0.75, "auc": None}, "judges": {"scoring": {"n": 3}}},
    {"rewards": {}},
]


def test_means_are_over_the_steps_that_have_a_figure() -> None:
    assert figures_of(STEPS) == {
        "judges": {"scoring": {"n": 3}},
        "pay": {"step": {"n": 5, "accuracy": 0.5, "auc": 0.5}},
        "coverage": {"step": {"distinct": 1.2}},
    }


def test_only_the_last_steps_count() -> None:
    assert figures_of([*STEPS, *[{"posed": {"valid": 1.0}}] * LAST]) == {
        "posed": {"step": {"valid": 1.0}}
    }


def test_lines_leave_out_what_is_not_there() -> None:
    assert list(figure_lines(STEPS))[1:] == [
        "  pay: accuracy 0.50, auc 0.50",
        "  coverage: distinct 1.20",
    ]
    assert list(figure_lines([{"rewards": {}}])) == []
    assert list(figure_lines([])) == []
