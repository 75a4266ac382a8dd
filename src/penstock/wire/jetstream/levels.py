"""Which JetStream API this is, told to clients in the metadata of streams and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.wire import headers

API_LEVEL: Final = 5
VERSION: Final = "2.15.1"
"""The release of the reference server whose behaviour the server has; clients compare it."""

LEVEL: Final = "_nats.level"
REQUIRED: Final = "_nats.req.level"
REQUIRED_LEVEL: Final = b"Nats-Required-Api-Level"
SERVER: Final = "_nats.ver"


def kept(metadata: Mapping[str, str], required: int) -> dict[str, str]:
    """What is stored: the owner's entries and the level that the configuration needs."""
    own = {key: value for key, value in metadata.items() if key not in (LEVEL, SERVER)}
    return dict(sorted((own | {REQUIRED: str(required)}).items()))


def shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a reply tells: what is stored, and who answers."""
    return dict(sorted({**metadata, LEVEL: str(API_LEVEL), SERVER: VERSION}.items()))


def refuses(block: bytes) -> bool:
    """Whether a header block asks for a level that there is not."""
    level = headers.get(block, REQUIRED_LEVEL) if REQUIRED_LEVEL in block else None
    return level is not None and not (level.isdigit() and int(level[:9]) <= API_LEVEL)
