"""Bands against closed forms; the same numbers are the same bytes; no name is markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from comas.studies.report import Line, band_of, finals, fitted, panels, plain, table

RISING = [(0.0, 0.2), (100.0, 0.4)]
FLAT = [(0.0, 0.2), (50.0, 0.2), (120.0, 0.2)]


def test_a_band_is_the_mean_of_lines_with_its_interval() -> None:
    band = band_of([RISING, FLAT])
    assert band is not None
    xs, found = band
    assert xs[0] == 0
    assert xs[-1] == 100  # as far as both go
    last = found[-1]
    assert last.mean == pytest.approx(0.3)
    half = 12.706204736 * 0.1  # t of one degree of freedom times the standard error
    assert last.high - last.mean == pytest.approx(half)
    assert band_of([]) is None
    assert band_of([[(0.0, 1.0), (1.0, 1.0)], [(2.0, 1.0), (3.0, 1.0)]]) is None


def test_pictures_are_svg_and_the_same_again(tmp_path: Path) -> None:
    shown = [
        ("a <b> & $x^" + "long " * 20, [RISING, FLAT]),
        ("one", [RISING]),
        ("no", []),
    ]
    for name in ("once.svg", "again.svg"):
        panels(tmp_path / name, shown)
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    ET.parse(tmp_path / "once.svg")
    panels(tmp_path / "still.svg", [("x", [[(0.0, 0.0), (0.0, 0.0)]])])
    lines = [Line("a", [0.1, 0.2], False), Line("b", [0.3], True), Line("c", [], False)]
    finals(tmp_path / "finals.svg", lines)
    ET.parse(tmp_path / "finals.svg")
    finals(tmp_path / "left.svg", [Line("a", [], False), Line("b", [0.2, 0.3], True)])


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.2, 0.3], 0.15, 0.35),
        ([0.5], 0.45, 0.55),
        ([0.0, 1.0], -0.01, 1.01),
        ([0.2, 0.8], 0.14, 0.86),
        ([0.98], 0.93, 1.01),
    ],
)
def test_axes_are_fitted(values: list[float], low: float, high: float) -> None:
    assert fitted(values) == pytest.approx((low, high))


def test_markdown_escapes_what_people_write() -> None:
    assert plain("a_b\n<script>") == "a\\_b \\<script\\>"
    text = table("T | 50 %", ("setting", "x^2"), [("kl_a|b \\ #1 {x}", "<b>~")])
    assert text.splitlines() == [
        r"T \| 50 %:",
        "",
        "| setting | x^2 |",
        "|---|---|",
        r"| kl\_a\|b \\ #1 {x} | \<b\>~ |",
    ]
