"""Compares the rows of docs/features.md with the tests that carry them; `make features` runs this.

The ids and texts of the rows are written by hand; the last column, the state, is written here.
Collecting the tests tells which of them carry a row. Whether they passed is read from
build/features.json, where every test run records the outcomes of its marked tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "features.md"
OUTCOMES: Final = ROOT / "build" / "features.json"

_ROW: Final = re.compile(r"^\| ([A-Z][0-9]{2}) \| (.*) \| ([a-z ]*) \|$", re.MULTILINE)
UNPROVEN: Final = "not proven"
_SEVERITY: Final = ("passed", "skipped", "failed")


class Row(NamedTuple):
    """A promised behaviour, the tests that carry it, and what they say."""

    id: str
    text: str
    tests: list[str]
    state: str

    def in_page(self) -> str:
        return f"| {self.id} | {self.text} | {self.state} |"

    def in_terminal(self) -> str:
        state = f"{self.id}  {self.state}"
        return "\n".join(f"{state:15} {test}" for test in self.tests) or state


def row_texts(page: str) -> dict[str, str]:
    """The texts of the rows by id, in the order of the page."""
    return {id_: text for id_, text, _ in _ROW.findall(page)}


def row_states(page: str) -> dict[str, str]:
    """The states of the rows by id, as the page has them."""
    return {id_: state for id_, _, state in _ROW.findall(page)}


def rewritten(page: str, rows: Iterable[Row]) -> str:
    """The page with the state of every row as in `rows`."""
    by_id = {row.id: row for row in rows}
    return _ROW.sub(lambda match: by_id[match[1]].in_page(), page)


def judged(
    texts: Mapping[str, str], carriers: Mapping[str, set[str]], outcomes: Mapping[str, str]
) -> list[Row]:
    """Every row with its tests; `carriers` has the ids of each test, parameters and all."""
    rows = []
    for id_, text in texts.items():
        tests = [test for test, ids in carriers.items() if id_ in ids]
        found = {outcomes.get(test, "skipped") for test in tests}
        names = sorted({without_parameters(test) for test in tests})
        rows.append(Row(id_, text, names, _state(found)))
    return rows


def without_parameters(test: str) -> str:
    return test.partition("[")[0]


def carried(item: pytest.Item) -> set[str]:
    """The ids a test is marked with."""
    return {str(id_) for mark in item.iter_markers("feature") for id_ in mark.args}


class Recorder:
    """Refuses markers that name no row, and keeps the outcome of every marked test that runs."""

    def __init__(self, page: Path, outcomes: Path) -> None:
        self._page = page
        self._path = outcomes
        self._outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = row_texts(self._page.read_text(encoding="utf-8"))
        for item in items:
            for id_ in sorted(carried(item) - known.keys()):
                raise pytest.UsageError(
                    f"{item.nodeid} is marked with feature {id_!r}, which {self._page.name} "
                    "does not have"
                )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "feature" in report.keywords:
            before = self._outcomes.get(report.nodeid, "passed")
            self._outcomes[report.nodeid] = max(before, report.outcome, key=_SEVERITY.index)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A worker's tests are reported to whoever started it, too.
        if self._outcomes and not hasattr(session.config, "workerinput"):
            merged = {**recorded(self._path), **self._outcomes}
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(merged, indent=1, sort_keys=True), encoding="utf-8")


def recorded(path: Path) -> dict[str, str]:
    """The outcome of every marked test that ever ran here, by its full id."""
    if not path.exists():
        return {}
    outcomes: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return outcomes


class _Collector:
    def __init__(self) -> None:
        self.carriers: dict[str, set[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.carriers = {item.nodeid: ids for item in session.items if (ids := carried(item))}


def _collected() -> dict[str, set[str]]:
    collector = _Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-qq", str(ROOT)], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the tests cannot be collected:\n{output.getvalue()}")
    return collector.carriers


def _state(outcomes: set[str]) -> str:
    if not outcomes:
        return UNPROVEN
    if "failed" in outcomes:
        return "fail"
    return "not run" if "skipped" in outcomes else "pass"


def main() -> int:
    """Print every row, rewrite the page, and fail if a row fails."""
    page = PAGE.read_text(encoding="utf-8")
    rows = judged(row_texts(page), _collected(), recorded(OUTCOMES))
    PAGE.write_text(rewritten(page, rows), encoding="utf-8")
    for row in rows:
        print(row.in_terminal())
    passed = sum(row.state == "pass" for row in rows)
    print(f"{passed} of {len(rows)} rows pass")
    return int(any(row.state == "fail" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
