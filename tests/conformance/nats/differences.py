"""Where Penstock answers otherwise on purpose: `differences.txt`, with reasons in protocols.md.

A line in brackets names an exchange; behind the brackets stands how the row of docs/protocols.md
begins that gives the reason. Below it are the lines of nats-server (`-`) that ours does not have,
and those of ours (`+`), as they come out after normalising.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).with_name("differences.txt")
PAGE: Final = Path(__file__).parents[3] / "docs" / "protocols.md"
HEAD: Final = re.compile(r"\[(.+)\] (.+)")


class Difference(NamedTuple):
    reason: str
    lines: list[str]


def listed() -> dict[str, Difference]:
    """The differences by the name of their exchange."""
    found: dict[str, Difference] = {}
    lines: list[str] = []
    for line in filter(None, FILE.read_text(encoding="utf-8").split("\n")):
        if head := HEAD.fullmatch(line):
            lines = []
            found[head[1]] = Difference(head[2], lines)
        else:
            lines.append(line)
    return found


def reasons() -> list[str]:
    """The rows of the page's tables."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("| ") for line in lines if line.startswith("| ")]


def differences(theirs: Sequence[str], ours: Sequence[str]) -> list[str]:
    """What is theirs only and what is ours only, in order."""
    compared = difflib.unified_diff(theirs, ours, lineterm="", n=0)
    return [line for line in compared if not line.startswith(("--- ", "+++ ", "@@ "))]
