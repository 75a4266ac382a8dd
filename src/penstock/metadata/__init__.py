"""The metadata store: what brokers agree on, in a transactional key-value store.

`Metadata` is the interface of the store; `penstock.metadata.sqlite` and `penstock.metadata.etcd`
implement it. `MetadataKeys` names the keys, and `StoredTopic` and the `encode_`/`decode_` functions
define the records of the catalog. `ProgressUpdater` saves the positions of subscriptions. Built on
these are `penstock.metadata.ownership` (which broker owns a topic), `penstock.metadata.catalog`
(tenants, namespaces and topics) and `penstock.metadata.remote` (the catalog of another broker).
"""

from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    EntryPage,
    HistoryCompacted,
    KeyChange,
    LeaseExpired,
    LeaseId,
    Metadata,
    MetadataEntry,
    MetadataRefused,
    MetadataUnavailable,
    Put,
    Renewer,
    Revision,
    TransactionResult,
    read_all,
)
from penstock.metadata.keys import DEFAULT_PREFIX, MetadataKeys
from penstock.metadata.progress import ProgressRecord, ProgressUpdater, SubscriptionId
from penstock.metadata.records import (
    StoredTopic,
    TopicState,
    decode_namespace,
    decode_partition,
    decode_tenant,
    decode_topic,
    encode_namespace,
    encode_partition,
    encode_tenant,
    encode_topic,
)
from penstock.metadata.requests import (
    CHUNK_BYTES_MAX,
    LEASE_SECONDS_MAX,
    OPERATIONS_MAX,
    RANGE_ENTRIES_MAX,
    REQUEST_BYTES_MAX,
    chunks,
    fits,
)
from penstock.metadata.single_flight import SingleFlight

__all__ = [
    "CHUNK_BYTES_MAX",
    "DEFAULT_PREFIX",
    "LEASE_SECONDS_MAX",
    "OPERATIONS_MAX",
    "RANGE_ENTRIES_MAX",
    "REQUEST_BYTES_MAX",
    "Compare",
    "CompareTarget",
    "DeleteKeys",
    "EntryPage",
    "HistoryCompacted",
    "KeyChange",
    "LeaseExpired",
    "LeaseId",
    "Metadata",
    "MetadataEntry",
    "MetadataKeys",
    "MetadataRefused",
    "MetadataUnavailable",
    "ProgressRecord",
    "ProgressUpdater",
    "Put",
    "Renewer",
    "Revision",
    "SingleFlight",
    "StoredTopic",
    "SubscriptionId",
    "TopicState",
    "TransactionResult",
    "chunks",
    "decode_namespace",
    "decode_partition",
    "decode_tenant",
    "decode_topic",
    "encode_namespace",
    "encode_partition",
    "encode_tenant",
    "encode_topic",
    "fits",
    "read_all",
]
