"""Which JetStream API this is, told to clients in the metadata of streams and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

API_LEVEL: Final = 5
VERSION: Final = "2.15.1"
"""The release of the reference server whose behaviour the door has; clients compare it."""

LEVEL: Final = "_nats.level"
REQUIRED: Final = "_nats.req.level"
SERVER: Final = "_nats.ver"


def kept(metadata: Mapping[str, str], required: int) -> dict[str, str]:
    """What is stored: the owner's entries and the level that the configuration needs."""
    own = {key: value for key, value in metadata.items() if key not in (LEVEL, SERVER)}
    return dict(sorted((own | {REQUIRED: str(required)}).items()))


def shown(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a reply tells: what is stored, and who answers."""
    return dict(sorted({**metadata, LEVEL: str(API_LEVEL), SERVER: VERSION}.items()))
