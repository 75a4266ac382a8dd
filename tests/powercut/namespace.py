"""Mounts and a network of one's own: they vanish with the last process that is inside."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Final

TOOLS: Final = ("unshare", "mount", "umount", "mkfs.ext4", "truncate")
TRY_SECONDS: Final = 30

_PR_SET_PDEATHSIG: Final = 1

_TRY: Final = """
set -e
mount -t tmpfs -o size=16m none "$1"
truncate -s 8M "$1/image"
mkfs.ext4 -q "$1/image"
mkdir "$1/mounted"
mount -t ext4 -o loop "$1/image" "$1/mounted"
"""


def search_path() -> str:
    """Where the tools are: an ordinary user's path often lacks the last two."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def tool(name: str) -> str | None:
    return shutil.which(name, path=search_path())


def inside(command: Sequence[str]) -> list[str]:
    """The command that runs `command` in namespaces of its own."""
    return [tool("unshare") or "unshare", "--mount", "--net", "--", *command]


def end_with_parent() -> None:
    """Be killed when the parent is gone, and leave nothing mounted."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def lacking() -> str | None:
    """What this machine lacks for mounting file systems of our own; None when nothing."""
    if sys.platform != "linux":
        return f"mount namespaces and loop devices are Linux's, this is {sys.platform}"
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    absent = [name for name in TOOLS if tool(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    with tempfile.TemporaryDirectory() as directory:
        tried = subprocess.run(
            inside(["sh", "-c", _TRY, "sh", directory]),
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            env=os.environ | {"PATH": search_path()},
        )
    if tried.returncode:
        return f"an image cannot be mounted here: {' '.join(tried.stderr.split())}"
    return None
