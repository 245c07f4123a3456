"""Curves as SVG: what is drawn, and that any name and any value can be."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticdl.page.svgcurve import HEIGHT, WIDTH, curve


def line(svg: str) -> list[tuple[float, float]]:
    points = re.search(r'polyline points="([^"]*)"', svg)
    assert points is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in points[1].split())]


def test_a_curve_goes_from_left_to_right_and_down_as_its_values_do() -> None:
    drawn = line(curve("loss", [(1, 4.0), (3, 2.0), (5, 1.0)]))
    assert [x for x, _ in drawn] == sorted({x for x, _ in drawn})
    assert [y for _, y in drawn] == sorted({y for _, y in drawn})
    assert drawn[0][0] == 0.0
    assert drawn[1][0] == drawn[2][0] / 2


def test_the_longest_number_has_room() -> None:
    labels = re.findall(
        r'<text x="([\d.]+)"[^>]*>([^<]+)</text>', curve("loss", [(1, -1.234e-300), (2, -1.23e300)])
    )
    assert "-1.23e+300" in [text for _, text in labels]
    assert 10 * 6.6 + float(labels[-1][0]) <= WIDTH


@pytest.mark.parametrize("points", [[], [(1, 2.0)], [(1, 2.0), (2, math.nan)], [(3, 1.0), (3, 2.0)]])
def test_without_two_points_there_is_no_line(points: list[tuple[int, float]]) -> None:
    assert curve("loss", points) == ""


@example("", [2.6e302, -1.7976931348623157e308])
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    st.lists(st.floats(), min_size=2, max_size=20),
)
def test_whatever_is_drawn_is_a_picture_of_its_size(name: str, values: list[float]) -> None:
    svg = curve(name, list(enumerate(values)))
    if not svg:
        return
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label", "").startswith(name)
    assert {element.tag.rpartition("}")[2] for element in root} == {"polyline", "text"}
    for x, y in line(svg):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
