"""Tests the tool behind `make features`, and that docs/features.md is up to date."""

import pytest

from tests.features import (
    PAGE,
    UNPROVEN,
    Recorder,
    Row,
    carried,
    judged,
    recorded,
    rewritten,
    row_states,
    row_texts,
)

pytest_plugins = ["pytester"]

INNER_SETTINGS = """\
[pytest]
asyncio_default_fixture_loop_scope = function
markers = feature(*ids): rows
"""
SMALL_PAGE = """\
# Features

| id | must hold | state |
|---|---|---|
| T01 | it appends | not proven |
| T02 | it reads | pass |
"""


def test_rows_are_read_from_the_page_with_their_texts() -> None:
    assert row_texts(SMALL_PAGE) == {
        "T01": "it appends",
        "T02": "it reads",
    }


def test_rewriting_changes_the_last_column_only() -> None:
    rows = [
        Row("T01", "it appends", ["tests/a.py::test_one", "tests/b.py::test_two"], "pass"),
        Row("T02", "it reads", [], "not proven"),
    ]
    assert rewritten(SMALL_PAGE, rows) == (
        "# Features\n"
        "\n"
        "| id | must hold | state |\n"
        "|---|---|---|\n"
        "| T01 | it appends | pass |\n"
        "| T02 | it reads | not proven |\n"
    )


def test_rewriting_twice_changes_nothing_more() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = judged(row_texts(page), {"tests/a.py::test_one": {"T01", "X02"}}, {})
    once = rewritten(page, rows)
    assert rewritten(once, rows) == once


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ({"t.py::test[1]": "passed", "t.py::test[2]": "passed"}, "pass"),
        ({"t.py::test[1]": "passed", "t.py::test[2]": "failed"}, "fail"),
        ({"t.py::test[1]": "passed", "t.py::test[2]": "skipped"}, "not run"),
        ({"t.py::test[1]": "passed"}, "not run"),
    ],
)
def test_a_row_passes_only_if_every_parameter_of_its_tests_passed(
    outcomes: dict[str, str], state: str
) -> None:
    carriers = {"t.py::test[1]": {"T01"}, "t.py::test[2]": {"T01"}}
    assert judged({"T01": "it appends"}, carriers, outcomes) == [
        Row("T01", "it appends", ["t.py::test"], state)
    ]


def test_a_row_without_tests_is_not_proven() -> None:
    (row,) = judged({"T01": "it appends"}, {}, {})
    assert row.in_terminal() == "T01  not proven"


def test_the_terminal_shows_a_line_for_every_test_of_a_row() -> None:
    row = Row("T04", "it recovers", ["a.py::test_x", "b.py::test_y"], "pass")
    assert row.in_terminal() == "T04  pass       a.py::test_x\nT04  pass       b.py::test_y"


def test_a_run_records_marked_tests_and_keeps_earlier_records(pytester: pytest.Pytester) -> None:
    page, outcomes = pytester.path / "features.md", pytester.path / "build" / "features.json"
    page.write_text(SMALL_PAGE)
    pytester.makeini(INNER_SETTINGS)
    outcomes.parent.mkdir()
    outcomes.write_text('{"earlier.py::test": "passed"}')
    pytester.makepyfile(
        test_marked="""
        import pytest

        @pytest.mark.feature("T01", "T02")
        def test_good(): ...

        @pytest.mark.feature("T01")
        def test_bad(): raise ValueError

        def test_without_a_row(): ...
        """
    )
    pytester.inline_run(plugins=[Recorder(page, outcomes)])
    assert recorded(outcomes) == {
        "earlier.py::test": "passed",
        "test_marked.py::test_good": "passed",
        "test_marked.py::test_bad": "failed",
    }


def test_a_marker_that_names_no_row_stops_the_collection(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    page = pytester.path / "features.md"
    page.write_text(SMALL_PAGE)
    pytester.makeini(INNER_SETTINGS)
    pytester.makepyfile(
        test_marked="""
        import pytest

        @pytest.mark.feature("T99")
        def test_lost(): ...
        """
    )
    result = pytester.inline_run(plugins=[Recorder(page, pytester.path / "outcomes.json")])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = (
        "test_marked.py::test_lost is marked with feature 'T99', which features.md does not have"
    )
    assert message in capsys.readouterr().err


def test_the_page_says_of_every_row_whether_a_test_carries_it(
    request: pytest.FixtureRequest,
) -> None:
    states = row_states(PAGE.read_text(encoding="utf-8"))
    proven = {id_ for item in request.session.items for id_ in carried(item)}
    # A run of chosen tests collects only their markers, so that the opposite cannot be asked.
    outdated = sorted(id_ for id_ in proven if states[id_] == UNPROVEN)
    assert not outdated, "docs/features.md is out of date; run `make features`"
