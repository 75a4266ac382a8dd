"""What topics are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.host.clock import Clock
from penstock.log.logs import Logs
from penstock.metadata.interface import Metadata
from penstock.metadata.keys import Keys
from penstock.metadata.ownership import Ownership
from penstock.model.errors import ResourceUnknown
from penstock.objects.interface import ObjectStore
from penstock.tiers.tiers import Tiers


def no_store(name: str) -> ObjectStore:
    """Where no other stores are configured, none has a name."""
    raise ResourceUnknown("object store", name)


class TopicHost(NamedTuple):
    """The parts of a broker's storage that topics are made of."""

    logs: Logs
    tiers: Tiers
    metadata: Metadata
    keys: Keys
    ownership: Ownership
    store: ObjectStore
    clock: Clock
    in_memory: bool = False
    """Whether every topic lives in memory, whatever it asks for."""
    store_named: Callable[[str], ObjectStore] = no_store
    """A store of `storage.stores`, for namespaces that name one; raises ResourceUnknown."""
