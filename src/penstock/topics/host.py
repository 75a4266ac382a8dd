"""The parts of a broker's storage that its topics use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.host.clock import Clock
from penstock.log import Logs
from penstock.metadata import Metadata, MetadataKeys
from penstock.metadata.ownership import Ownership
from penstock.model.errors import ResourceUnknown
from penstock.objects import ObjectStore
from penstock.tiers import Tiers


def no_store(name: str) -> ObjectStore:
    """Raise ResourceUnknown: no other stores are configured."""
    raise ResourceUnknown("object store", name)


class TopicHost(NamedTuple):
    """The parts of a broker's storage that its topics use."""

    logs: Logs
    tiers: Tiers
    metadata: Metadata
    keys: MetadataKeys
    ownership: Ownership
    store: ObjectStore
    clock: Clock
    in_memory: bool = False
    """Whether every topic is in memory, whatever its specification says."""
    store_named: Callable[[str], ObjectStore] = no_store
    """Returns a store of `storage.stores`, for namespaces that name one; raises ResourceUnknown."""
