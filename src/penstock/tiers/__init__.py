"""Moves messages from the WAL to the bucket and reads them back.

`Tiers` uploads and maintains the topics that this broker owns. A `TopicTier` is one topic's: its
uploads, its manifest and its reads. Inside:

- `manifest`: which offsets are in which object; its records, snapshots and reconstruction.
- `upload`: encodes WAL frames into objects; settles interrupted uploads.
- `upkeep`: merges, retention, trash, pruning of WAL files, snapshots.
- `reading`: reads messages and subjects back from objects, linked ones included.
- `external`: objects that other engines write: swaps in compacted ones, deletes abandoned ones.
- `takeover`: goes on without the WAL of a former owner, and returns that WAL's messages later.
"""

from penstock.tiers.counters import TierCounters
from penstock.tiers.external.abandoned_objects import check_object_age, delete_abandoned_objects
from penstock.tiers.external.compaction import CompactionStale, replace_by_compacted
from penstock.tiers.manifest.entries import (
    ObjectEntry,
    Trash,
    decode_entry,
    decode_returned_log,
    decode_trash,
    encode_record,
)
from penstock.tiers.manifest.rebuild import (
    data_objects,
    install_manifest,
    load_manifest,
    rebuild_manifest,
)
from penstock.tiers.reading.footers import PARQUET_MAGIC, read_staged_footer
from penstock.tiers.reading.linked_objects import linked_entry, subject_column_index
from penstock.tiers.reading.object_check import check_object
from penstock.tiers.reading.object_reader import ObjectReader, ObjectRowsDamaged
from penstock.tiers.settings import BACKLOG_BYTES, Pressure, TierSettings
from penstock.tiers.takeover.overtaken_logs import OVERTAKEN_SUFFIX, OvertakenLogs
from penstock.tiers.tiers import Tiers
from penstock.tiers.topic_tier import TierHost, TopicTier

__all__ = [
    "BACKLOG_BYTES",
    "OVERTAKEN_SUFFIX",
    "PARQUET_MAGIC",
    "CompactionStale",
    "ObjectEntry",
    "ObjectReader",
    "ObjectRowsDamaged",
    "OvertakenLogs",
    "Pressure",
    "TierCounters",
    "TierHost",
    "TierSettings",
    "Tiers",
    "TopicTier",
    "Trash",
    "check_object",
    "check_object_age",
    "data_objects",
    "decode_entry",
    "decode_returned_log",
    "decode_trash",
    "delete_abandoned_objects",
    "encode_record",
    "install_manifest",
    "linked_entry",
    "load_manifest",
    "read_staged_footer",
    "rebuild_manifest",
    "replace_by_compacted",
    "subject_column_index",
]
