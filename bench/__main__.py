"""Run benchmarks, each in a process of its own, and print their tables and the targets."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from bench.report import Report, Target, machine, summary_text, table_text

NAMES: Final = (
    "append",
    "channels",
    "commit",
    "http",
    "nats",
    "read",
    "recover",
    "spark",
    "subjects",
    "tiers",
    "uploads",
)
RESULTS: Final = Path("build/bench.json")


def main() -> None:
    options = _parse()
    if options.into:
        report = importlib.import_module(f"bench.{options.names[0]}").run(options.quick)
        options.into.write_bytes(msgspec.json.encode(report))
        return
    where = machine()
    print(f"{where}{', quick sizes: rough figures' if options.quick else ''}\n")
    reports = {name: _fresh(name, options.quick) for name in options.names or NAMES}
    targets = [target for report in reports.values() for target in report.targets]
    if targets:
        print(summary_text(targets))
    results = {"machine": where, "quick": options.quick, "benches": reports}
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, rough figures")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no bench is called {', '.join(sorted(unknown))}")
    return options


def _fresh(name: str, quick: bool) -> Report:
    """Run one benchmark in a new interpreter and print its tables."""
    into = RESULTS.with_name(f"bench-{name}.json")
    into.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "bench", name, "--into", str(into)]
    status = subprocess.run([*command, "--quick"] if quick else command, check=False).returncode
    if status:
        return Report([], [Target(f"{name}: runs", f"ended with status {status}", met=False)])
    report = msgspec.json.decode(into.read_bytes(), type=Report)
    into.unlink()
    for table in report.tables:
        print(table_text(table), end="\n\n", flush=True)
    return report


if __name__ == "__main__":
    main()
