"""The embedded metadata store: one SQLite file that belongs to one process.

`SqliteMetadata` implements `penstock.metadata.Metadata`.
"""

from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.metadata.sqlite.store import HistoryLimits
from penstock.metadata.sqlite.tables import FILE_NAME

__all__ = [
    "FILE_NAME",
    "HistoryLimits",
    "SqliteMetadata",
]
