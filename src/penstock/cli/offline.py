"""The stores of a data directory, for tools that work without a broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from penstock.cli import options
from penstock.config import Config, Flag, load

if TYPE_CHECKING:
    from penstock.metadata.interface import Metadata
    from penstock.metadata.keys import Keys
    from penstock.objects.interface import ObjectStore

data_option = click.option("--data", metavar="DIR", help="Data directory.  [default: ./data]")
config_option = options.config_file
set_option = options.overrides


class Stores(NamedTuple):
    """What a broker with this configuration would use."""

    metadata: Metadata
    keys: Keys
    objects: ObjectStore


def read_config(config_file: Path | None, data: str | None, overrides: tuple[str, ...]) -> Config:
    flags = [] if data is None else [Flag("--data", "data", data)]
    return load(config_file, os.environ, overrides, flags).config


def run(config: Config, work: Callable[[Stores], Awaitable[int]]) -> int:
    """Do the work with the stores open; embedded metadata must not be in use by a broker."""
    from penstock.assembly.directory import locked

    async def main() -> int:
        async with opened(config) as stores:
            return await work(stores)

    if config.storage.etcd.endpoints:
        return asyncio.run(main())
    with locked(config.data):
        return asyncio.run(main())


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Stores]:
    from penstock.assembly.storage import open_metadata, open_objects
    from penstock.metadata.keys import Keys

    objects = open_objects(config)
    metadata = await open_metadata(config)
    try:
        yield Stores(metadata, Keys(config.storage.etcd.namespace), objects)
    finally:
        await metadata.close()
        await objects.close()
