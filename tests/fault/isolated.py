"""Run a scenario in a process of its own, with mounts of its own that vanish with it."""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.powercut.namespace import inside, lacking

ROOT: Final = Path(__file__).parent.parent.parent
STUCK_SECONDS: Final = 90
"""A scenario that takes longer says where it is stuck and ends."""

Scenario = Callable[[Path], Awaitable[None]]
"""Gets an empty directory, mounts what it needs below it, raises when something is wrong."""


def skip_unless_mounting_works() -> None:
    reason = lacking()
    if reason is not None:
        pytest.skip(reason)


def run_isolated(scenario: Scenario, directory: Path) -> None:
    """Fails with what the scenario said when it raised."""
    skip_unless_mounting_works()
    name = f"{scenario.__module__}:{scenario.__name__}"
    command = [sys.executable, "-m", "tests.fault.isolated", name, str(directory)]
    done = subprocess.run(inside(command), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"


def main() -> None:
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    module, name = sys.argv[1].split(":")
    scenario: Scenario = getattr(importlib.import_module(module), name)
    asyncio.run(_awaited(scenario(Path(sys.argv[2]))))


async def _awaited(result: Awaitable[None]) -> None:
    await result


if __name__ == "__main__":
    main()
