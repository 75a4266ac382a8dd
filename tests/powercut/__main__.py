"""Options; then everything below runs in namespaces of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.powercut.disks import DISKS
from tests.powercut.namespace import end_with_parent, inside, lacking
from tests.powercut.orders import Bug
from tests.powercut.partition import Kind
from tests.powercut.run import Run

MEMORY: Final = Path("/dev/shm")
SHOWN_MAX: Final = 5
"""Of each kind of violation."""


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=50, help="how often the power is cut")
    parser.add_argument("--seed", type=int, help="repeat the plans of an earlier run")
    parser.add_argument("--image-dir", type=Path, help="where the images lie; default: in memory")
    parser.add_argument(
        "--disk",
        choices=sorted(DISKS),
        default="true",
        help="a disk that does not keep its promises shows whether that would be found",
    )
    parser.add_argument(
        "--only-new-topics", action="store_true", help="cut whenever a topic has just been made"
    )
    parser.add_argument(
        "--tiers", action="store_true", help="with metadata, a bucket, uploads, merges and pruning"
    )
    parser.add_argument(
        "--bug", choices=[bug.value for bug in Bug], help="plant one in the tiers to see it found"
    )
    parser.add_argument("--keep", type=Path, help="copy the files there when something is wrong")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """1 when something that was promised is not so, 2 when this machine cannot find out."""
    chosen = options().parse_args()
    if chosen.inside is not None:
        return cut(chosen)
    reason = lacking()
    if reason is not None:
        print(f"no power can be cut here: {reason}", file=sys.stderr)
        return 2
    if chosen.seed is None:
        chosen.seed = SystemRandom().randrange(1 << 32)
    where = chosen.image_dir or (MEMORY if MEMORY.is_dir() else None)
    # Made and removed out here: the mounts below it are gone when the process inside is.
    with tempfile.TemporaryDirectory(prefix="powercut-", dir=where) as directory:
        again = [sys.executable, "-m", "tests.powercut", f"--inside={directory}"]
        again += [f"--cuts={chosen.cuts}", f"--seed={chosen.seed}", f"--disk={chosen.disk}"]
        again += [f"--keep={chosen.keep.absolute()}"] if chosen.keep else []
        again += ["--only-new-topics"] if chosen.only_new_topics else []
        again += ["--tiers"] if chosen.tiers or chosen.bug else []
        again += [f"--bug={chosen.bug}"] if chosen.bug else []
        process = subprocess.Popen(inside(again))
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The signal went to the process inside as well, and it tidies up.
            return process.wait()


def cut(chosen: argparse.Namespace) -> int:
    """Inside: the mounts made here are nobody else's."""
    end_with_parent()
    print(f"seed {chosen.seed}", flush=True)
    run = Run(
        chosen.inside,
        chosen.seed,
        chosen.disk,
        _print,
        chosen.keep,
        chosen.only_new_topics,
        chosen.tiers,
        Bug(chosen.bug) if chosen.bug else None,
    )
    try:
        run.cut(chosen.cuts)
    except KeyboardInterrupt:
        print("stopped early")
    for kind in Kind:
        found = [violation for violation in run.summary.violations if violation.kind is kind]
        for violation in found[:SHOWN_MAX]:
            print(violation)
        if len(found) > SHOWN_MAX:
            print(f"{kind.value}: and {len(found) - SHOWN_MAX:,} more")
    print(run.summary, flush=True)
    return int(bool(run.summary.violations))


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
