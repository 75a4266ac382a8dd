"""The catalog: tenants, namespaces and topics, and where messages are.

`Admin` and `OffsetRegistry` are the interfaces that protocols use; `Catalog` keeps the records in
the metadata store.
"""

from penstock.metadata.catalog.catalog import Catalog
from penstock.metadata.catalog.interface import (
    PAGE_SIZE_DEFAULT,
    PAGE_SIZE_MAX,
    Admin,
    AtOwner,
    InObject,
    ListPage,
    Location,
    OffsetRegistry,
    PageQuery,
    PartitionState,
)

__all__ = [
    "PAGE_SIZE_DEFAULT",
    "PAGE_SIZE_MAX",
    "Admin",
    "AtOwner",
    "Catalog",
    "InObject",
    "ListPage",
    "Location",
    "OffsetRegistry",
    "PageQuery",
    "PartitionState",
]
