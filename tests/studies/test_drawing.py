"""Bands against closed forms; the same numbers are the same bytes; nothing escapes into markup."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from comas.studies.charts import Panel, band_of, finals, panels
from comas.studies.document import Heading, Picture, Table, Text, latex, markdown, page

RISING = [(0.0, 0.2), (100.0, 0.4)]
FLAT = [(0.0, 0.2), (50.0, 0.2), (120.0, 0.2)]


def test_a_band_is_the_mean_of_lines_with_its_interval() -> None:
    band = band_of([RISING, FLAT])
    assert band is not None
    assert band.xs[0] == 0
    assert band.xs[-1] == 100  # as far as both go
    last = band.found[-1]
    assert last.mean == pytest.approx(0.3)
    half = 12.706204736 * 0.1  # t of one degree of freedom times the standard error
    assert last.high - last.mean == pytest.approx(half)
    assert band_of([]) is None
    assert band_of([[(0.0, 1.0), (1.0, 1.0)], [(2.0, 1.0), (3.0, 1.0)]]) is None


def test_pictures_are_svg_and_the_same_again() -> None:
    shown = [
        Panel("a <b> & " + "long " * 20, [RISING, FLAT]),
        Panel("one", [RISING]),
        Panel("no", []),
    ]
    svg = panels("t & <u>", "accuracy", shown, 1.0)
    assert svg == panels("t & <u>", "accuracy", shown, 1.0)
    root = ET.fromstring(svg)
    assert len([each for each in root if each.tag.endswith("polygon")]) == 1
    ET.fromstring(panels("t", "y", [Panel("x", [[(0.0, 0.0), (0.0, 0.0)]])], None))
    ET.fromstring(panels("t", "y", [], None))
    ET.fromstring(finals("t", [("a", [0.1, 0.2]), ("b", [0.3]), ("c", [])]))
    assert "nan" not in svg
    assert not math.isnan(len(svg))


BLOCKS = [
    Heading("a | b"),
    Text("<script>alert(1)</script> $x_1$ *no*"),
    Table("T & 50 %", ("setting", "x^2"), [("kl_a|b \\ #1 {x}", "<b>~")]),
    Picture("p", "<svg/>", "caption [x](y)"),
]


def test_markdown_escapes_what_people_write() -> None:
    text = markdown("a_b", BLOCKS)
    assert text.startswith("# a\\_b\n")
    assert r"| kl\_a\|b \\ #1 {x} | \<b\>~ |" in text
    assert r"![caption \[x\](y)](pictures/p.svg)" in text


def test_the_page_escapes_it_too_and_holds_its_pictures() -> None:
    text = page("<t>", BLOCKS)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "<svg/>" in text


def test_latex_escapes_its_signs() -> None:
    text = latex(BLOCKS)
    assert r"kl\_a\textbar{}b \textbackslash{} \#1 \{x\} &" in text
    assert r"\textless{}b\textgreater{}\textasciitilde{} \\" in text
    assert r"\caption{T \& 50 \%}" in text
