import math
import re
from xml.etree import ElementTree

import pytest

from penstock.spark.pipelines.charts import NAME_CHARACTERS_MAX, Point, bars, columns, short

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


def test_columns_are_as_tall_as_their_values_say() -> None:
    drawn = columns("Messages", [Point("a", 1), Point("b", 4), Point("c", 0)])
    tall = [float(item.attrib["height"]) for item in rects(drawn)]
    assert tall == [pytest.approx(max(tall) / 4), max(tall), 0]
    feet = {
        round(float(item.attrib["y"]) + float(item.attrib["height"]), 1) for item in rects(drawn)
    }
    assert len(feet) == 1
    assert texts(drawn) == ["Messages", "0", "2", "4", "a", "c"]


def test_columns_stay_within_the_plot_however_many_there_are() -> None:
    drawn = columns("Many", [Point(str(n), n) for n in range(1000)])
    width = float(ElementTree.fromstring(drawn).attrib["width"])
    ends = [float(i.attrib["x"]) + float(i.attrib["width"]) for i in rects(drawn)]
    assert len(ends) == 1000
    assert max(ends) <= width + 0.01


def test_bars_are_as_long_as_their_values_say_and_named() -> None:
    drawn = bars("Lag", [Point("first", 10), Point("second", 5)])
    long, half = (float(item.attrib["width"]) for item in rects(drawn))
    assert half == pytest.approx(long / 2, abs=0.01)
    assert texts(drawn) == ["Lag", "first", "10", "second", "5"]
    named = [item.findtext(f"{SVG}title") for item in rects(drawn)]
    assert named == ["first: 10", "second: 5"]


def test_long_names_are_cut_and_told_whole_where_one_points() -> None:
    name = "n" * 100
    drawn = bars("Names", [Point(name, 1)])
    assert texts(drawn)[1] == "n" * (NAME_CHARACTERS_MAX - 1) + "…"
    assert rects(drawn)[0].findtext(f"{SVG}title") == f"{name}: 1"


@pytest.mark.parametrize("draw", [bars, columns])
def test_what_cannot_be_drawn_is_still_a_picture(draw: object) -> None:
    assert callable(draw)
    for points in ([], [Point("z", 0)], [Point("n", math.nan), Point("m", -3), Point("p", 5)]):
        drawn = draw("Empty", points)
        assert all(float(item.attrib["width"]) >= 0 for item in rects(drawn))
        assert all(float(item.attrib["height"]) >= 0 for item in rects(drawn))


@pytest.mark.parametrize("draw", [bars, columns])
def test_names_are_never_markup(draw: object) -> None:
    assert callable(draw)
    drawn = draw(NASTY, [Point(NASTY, 1), Point("' onload='x", 2)])
    assert "<script" not in drawn
    assert not re.search(r"[\x00-\x08\x1b]", drawn)
    assert '<script>"&\ufffd\ufffd' in texts(drawn)
    names = {item.tag.removeprefix(SVG) for item in ElementTree.fromstring(drawn).iter()}
    assert names <= {"svg", "rect", "title", "text", "line"}
