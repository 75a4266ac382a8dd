"""The append-only log of a topic: append, commit, recover, read, index, delete.

`Logs` opens and creates the logs of a broker. A `Log` is the log of one topic: `append` stores
runs, `read` returns batches, `observe` registers an observer. `LogState` is the state of its
partitions. Inside:

- `files`: WAL files: their headers and frames, scans of whole files, side files.
- `append`: groups of frames, their commits, deletions, links and settlements.
- `reading`: lookup of offsets, reads, and the frames that the uploader collects.
- `recovery`: opening a log after a stop or after an error of the disk; verification.
- `subjects`: the subject index.
- `shared`: parts that all logs of a broker share: committer, tail cache, threads.
"""

from penstock.log.append.links import Objects, Ranges
from penstock.log.append.settlements import Settled, Settlements
from penstock.log.append.writer import Writer
from penstock.log.files.scans import Scanned, scan_file
from penstock.log.files.side_files import SideFiles
from penstock.log.files.wal_files import WalFile, find_wal_files
from penstock.log.log import Log
from penstock.log.logs import Logs, SharedLimits
from penstock.log.observer import LogObserver
from penstock.log.reading.collect import Collected, Cursor, LinkFrame, collect
from penstock.log.reading.lookup import READ_BYTES
from penstock.log.reading.waiters import Waiters
from penstock.log.reading.wal_reader import InObjects
from penstock.log.recovery.recover import recover
from penstock.log.recovery.reopen import LogMode
from penstock.log.recovery.verify import FileReport, verify, wal_files
from penstock.log.settings import LogSettings, WhenFull
from penstock.log.state import LogState, Missing, all_deleted
from penstock.log.subjects.bitmaps import range_count, range_from
from penstock.log.subjects.index import NotInMemory, SubjectIndex
from penstock.log.subjects.queries import SubjectRow
from penstock.log.subjects.rebuild import Recalled

__all__ = [
    "READ_BYTES",
    "Collected",
    "Cursor",
    "FileReport",
    "InObjects",
    "LinkFrame",
    "Log",
    "LogMode",
    "LogObserver",
    "LogSettings",
    "LogState",
    "Logs",
    "Missing",
    "NotInMemory",
    "Objects",
    "Ranges",
    "Recalled",
    "Scanned",
    "Settled",
    "Settlements",
    "SharedLimits",
    "SideFiles",
    "SubjectIndex",
    "SubjectRow",
    "Waiters",
    "WalFile",
    "WhenFull",
    "Writer",
    "all_deleted",
    "collect",
    "find_wal_files",
    "range_count",
    "range_from",
    "recover",
    "scan_file",
    "verify",
    "wal_files",
]
