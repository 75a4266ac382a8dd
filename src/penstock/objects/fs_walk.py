"""A tree of directories as keys in key order, one directory read at a time. Pure but for reading.

A file that is still being written has the reserved name of `unfinished`, which tells what key it is
meant for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from penstock.objects.keys import RESERVED

STAT_NAMES: Final = 1000
"""Files looked at in one go while listing."""

Entries = Callable[[str], Awaitable[Sequence[tuple[str, bool]]]]
"""Names in a directory, given by its key with a slash behind, and whether each is a directory."""


def unfinished(name: str, unique: str) -> str:
    """What the file that becomes `name` is called until then."""
    return f"{RESERVED}{name}.{unique}"


async def walk(
    entries: Entries, prefix: str, after: str = "", *, writing: bool = False
) -> AsyncIterator[str]:
    """Keys that start with `prefix`, behind `after`, in key order.

    With `writing`, the files instead that are still being written, by what they are meant for.
    """
    waiting = [prefix[: prefix.rfind("/") + 1]]
    while waiting:
        key = waiting.pop()
        if key and not key.endswith("/"):
            yield key
            continue
        found = [
            f"{key}{name}/" if is_directory else f"{key}{name}"
            for name, is_directory in await entries(key)
            if is_directory or name.startswith(RESERVED) == writing
        ]
        waiting.extend(sorted(filter(_wanted(prefix, after), found), reverse=True))


def _wanted(prefix: str, after: str) -> Callable[[str], bool]:
    def wanted(key: str) -> bool:
        if key.endswith("/"):
            in_prefix = key.startswith(prefix) or prefix.startswith(key)
            return in_prefix and (key > after or after.startswith(key))
        return meant(key).startswith(prefix) and key > after

    return wanted


def meant(key: str) -> str:
    """The key that a file is for, whether it is finished or not."""
    directory, slash, name = key.rpartition("/")
    if name.startswith(RESERVED):
        name = name.removeprefix(RESERVED).rpartition(".")[0]
    return f"{directory}{slash}{name}"
