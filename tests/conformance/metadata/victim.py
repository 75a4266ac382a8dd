"""Puts key after key into the embedded store, and prints each with its revision once answered.

python -m tests.conformance.metadata.victim DIRECTORY NAME
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock.metadata.sqlite import SqliteMetadata

WRITERS = 8


async def main(directory: Path, name: str) -> None:
    store = await SqliteMetadata.open(directory)

    async def write(writer: int) -> None:
        number = 0
        while True:
            key = f"/{name}/{writer}/{number}"
            print(key, await store.put(key, b"x" * 100), flush=True)
            number += 1

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
