"""Curves of `comas report`."""

from __future__ import annotations

import pytest

from comas.cli.summary import curve, curve_lines
from comas.storage.run import Run
from tests.support.command import run as command

ALL = "\u28ff"
STEPS = [
    {
        "step": step,
        "rewards": {"solution": step / 10, "scoring": 0.0},
        "pay": {"accuracy": None if step < 9 else 0.5},
        **({"validation": {"mean": 0.25 + step / 20}} if step % 5 == 4 else {}),
    }
    for step in range(10)
]


def test_each_figure_that_has_a_course_is_drawn_within_the_width() -> None:
    head, *lines = curve_lines(STEPS, 80)
    assert head == "over 10 steps:"
    names = [line[2:26].strip() for line in lines[::2]]
    assert names == ["accuracy, validation", "reward, solution", "reward, scoring"]
    assert all(len(line) <= 80 for line in lines)
    assert [float(line[26:33]) for line in lines[:4]] == [0.7, 0.45, 0.9, 0.0]
    assert all("\u2800" <= letter <= ALL for line in lines for letter in line[34:])
    assert len(lines[0]) == len(lines[1]) > 70


def test_too_few_steps_have_no_curves() -> None:
    assert list(curve_lines([], 80)) == []
    assert list(curve_lines(STEPS[:1], 80)) == []
    assert all(len(line) < 60 for line in curve_lines(STEPS, 20))


def test_report_draws_them(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rest = {"tokens": 1, "seconds": 1.0, "spent": {}}
    for line in STEPS:
        run.write_step({**line, **rest}, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comas.cli.summary._next", lambda run, steps: [])
        assert command(["report", str(run.path)], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "over 10 steps:" in said
    assert "reward, solution" in said


def test_curves_rise_where_values_do() -> None:
    assert curve([], 3, 2, 0, 1) == ["⠀⠀⠀"] * 2
    assert curve([(0, 0.0), (1, 0.0)], 2, 1, 0, 1) == ["⣀⣀"]
    assert curve([(0, 1.0), (1, 1.0)], 2, 2, 0, 1) == ["⠉⠉", "⠀⠀"]
    assert curve([(0, 0.0), (1, 1.0)], 2, 1, 0, 1) == ["⡠⠊"]
    assert curve([(5, 2.0)], 2, 1, 0, 1) == ["⠁⠀"]


def test_a_curve_of_many_steps_ends_with_the_last() -> None:
    rising = [(float(s), float(s > 800)) for s in range(1000)]
    (line,) = curve(rising, 10, 1, 0, 1)
    assert line[0] == "⣀"
    assert line[-1] == "⠉"
