"""Object stores behind one interface: S3, Google Cloud Storage, Azure Blob, a directory, memory.

`ObjectStore` is the interface, with its errors; `open_store` opens the store of a configuration,
and `Stores` those that namespaces choose by name. Clients of remote stores are imported only when
such a store is opened.
"""

from penstock.objects.interface import (
    Buffer,
    KeyInvalid,
    ObjectDamaged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.objects.memory import MemoryStore
from penstock.objects.stores import CREDENTIALS, Stores, open_described, open_store
from penstock.objects.transfer import READ_BYTES, stored_crc32c

__all__ = [
    "CREDENTIALS",
    "READ_BYTES",
    "Buffer",
    "KeyInvalid",
    "MemoryStore",
    "ObjectDamaged",
    "ObjectExists",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreError",
    "StoreUnavailable",
    "Stores",
    "open_described",
    "open_store",
    "stored_crc32c",
]
