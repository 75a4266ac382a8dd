import math
import re
from xml.etree import ElementTree

import pytest

from penstock.spark.pipelines.report.charts import (
    NAME_CHARACTERS_MAX,
    ChartPoint,
    bars,
    columns,
    short,
)

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>"&\x00\x1b'


def rects(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f"{SVG}rect")


def texts(text: str) -> list[str]:
    return [item.text or "" for item in ElementTree.fromstring(text).findall(f"{SVG}text")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (999.96, "1 k"),
        (1000, "1 k"),
        (12_345, "12.3 k"),
        (999_960, "1 M"),
        (0.5, "0.5"),
        (2.5e15, "2.5 P"),
        (math.nan, "?"),
        (math.inf, "?"),
    ],
)
def test_numbers_are_short(value: float, expected: str) -> None:
    assert short(value) == expected


def test_heights_of_columns_are_proportional_to_their_values() -> None:
    drawn = columns("Messages", [ChartPoint("a", 1), ChartPoint("b", 4), ChartPoint("c", 0)])
    tall = [float(item.attrib["height"]) for item in rects(drawn)]
    assert tall == [pytest.approx(max(tall) / 4), max(tall), 0]
    feet = {
        round(float(item.attrib["y"]) + float(item.attrib["height"]), 1) for item in rects(drawn)
    }
    assert len(feet) == 1
    assert texts(drawn) == ["Messages", "0", "2", "4", "a", "c"]


def test_any_number_of_columns_is_within_the_chart() -> None:
    drawn = columns("Many", [ChartPoint(str(n), n) for n in range(1000)])
    width = float(ElementTree.fromstring(drawn).attrib["width"])
    ends = [float(i.attrib["x"]) + float(i.attrib["width"]) for i in rects(drawn)]
    assert len(ends) == 1000
    assert max(ends) <= width + 0.01


def test_lengths_of_bars_are_proportional_to_their_values() -> None:
    drawn = bars("Lag", [ChartPoint("first", 10), ChartPoint("second", 5)])
    long, half = (float(item.attrib["width"]) for item in rects(drawn))
    assert half == pytest.approx(long / 2, abs=0.01)
    assert texts(drawn) == ["Lag", "first", "10", "second", "5"]
    named = [item.findtext(f"{SVG}title") for item in rects(drawn)]
    assert named == ["first: 10", "second: 5"]


def test_long_names_are_shortened_and_complete_in_the_tooltip() -> None:
    name = "n" * 100
    drawn = bars("Names", [ChartPoint(name, 1)])
    assert texts(drawn)[1] == "n" * (NAME_CHARACTERS_MAX - 1) + "…"
    assert rects(drawn)[0].findtext(f"{SVG}title") == f"{name}: 1"


@pytest.mark.parametrize("draw", [bars, columns])
def test_values_that_cannot_be_drawn_make_an_empty_chart(draw: object) -> None:
    assert callable(draw)
    for points in (
        [],
        [ChartPoint("z", 0)],
        [ChartPoint("n", math.nan), ChartPoint("m", -3), ChartPoint("p", 5)],
    ):
        drawn = draw("Empty", points)
        assert all(float(item.attrib["width"]) >= 0 for item in rects(drawn))
        assert all(float(item.attrib["height"]) >= 0 for item in rects(drawn))


@pytest.mark.parametrize("draw", [bars, columns])
def test_names_in_charts_are_escaped(draw: object) -> None:
    assert callable(draw)
    drawn = draw(NASTY, [ChartPoint(NASTY, 1), ChartPoint("' onload='x", 2)])
    assert "<script" not in drawn
    assert not re.search(r"[\x00-\x08\x1b]", drawn)
    assert '<script>"&\ufffd\ufffd' in texts(drawn)
    names = {item.tag.removeprefix(SVG) for item in ElementTree.fromstring(drawn).iter()}
    assert names <= {"svg", "rect", "title", "text", "line"}
