"""Measures how many branches the unit tests cover, and compares each package with its floor.

`python -m tests.coverage_floors` runs it. A package below its floor has lost tests: add
what is missing instead of lowering the floor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.source_figures import PACKAGE, ROOT

FLOORS: Final = {
    "assembly": 62,
    "cli": 70,
    "client": 93,
    "config": 99,
    "delivery": 86,
    "formats": 99,
    "host": 98,
    "ledger": 98,
    "log": 98,
    "metadata": 93,
    "model": 99,
    "objects": 95,
    "protocols": 89,
    "streams": 96,
    "tiers": 97,
    "topics": 97,
    "wire": 99,
}
"""Percentage of lines and branches together. The tests of `spark` need Java and are in
tests/spark.
"""


def main() -> int:
    """Run the unit tests and print each package's coverage; 1 if a test or a floor fails."""
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        data = ("--data-file", str(Path(directory) / "data"))
        tests = ("pytest", "-q", "--numprocesses", "auto", "--dist", "loadfile", "tests/unit")
        for command in (
            ("run", *data, "-m", *tests),
            ("combine", "--quiet", *data),
            ("json", "--quiet", *data, "-o", str(report)),
        ):
            if failed := _run("coverage", *command):
                return failed
        covered = percentages(json.loads(report.read_text(encoding="utf-8")))
    below = [name for name, floor in FLOORS.items() if covered[name] < floor]
    for name, floor in FLOORS.items():
        print(f"{name:<12}{covered[name]:6.1f} %   floor {floor} %")
    if below:
        print(f"below the floor: {', '.join(below)}")
    return 1 if below else 0


def _run(*command: str) -> int:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def percentages(report: dict[str, dict[str, dict[str, dict[str, int]]]]) -> dict[str, float]:
    """The share of lines and branches of each package that were executed."""
    executed, total = Counter[str](), Counter[str]()
    for name, file in report["files"].items():
        parts = (ROOT / name).relative_to(PACKAGE).parts
        summary = file["summary"]
        executed[parts[0]] += summary["covered_lines"] + summary["covered_branches"]
        total[parts[0]] += summary["num_statements"] + summary["num_branches"]
    return {name: 100 * executed[name] / total[name] for name in total if total[name]}


if __name__ == "__main__":
    sys.exit(main())
