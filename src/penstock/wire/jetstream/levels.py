"""The level of the JetStream API, which clients see in the metadata of streams and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.wire import headers

API_LEVEL: Final = 5
VERSION: Final = "2.15.1"
"""The release of nats-server whose behaviour this server has; clients compare it."""

LEVEL: Final = "_nats.level"
REQUIRED: Final = "_nats.req.level"
REQUIRED_LEVEL: Final = b"Nats-Required-Api-Level"
SERVER: Final = "_nats.ver"


def stored(metadata: Mapping[str, str], required: int) -> dict[str, str]:
    """The metadata to store: the owner's entries and the level that the configuration requires."""
    own = {key: value for key, value in metadata.items() if key not in (LEVEL, SERVER)}
    return dict(sorted((own | {REQUIRED: str(required)}).items()))


def shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata in a reply: the stored entries and the server's level and version."""
    return dict(sorted({**metadata, LEVEL: str(API_LEVEL), SERVER: VERSION}.items()))


def refuses(block: bytes) -> bool:
    """Whether a header block requires a level that the server does not have."""
    level = headers.get(block, REQUIRED_LEVEL) if REQUIRED_LEVEL in block else None
    return level is not None and not (level.isdigit() and int(level[:9]) <= API_LEVEL)
