"""Topics of the default namespace as streams: subjects, limits, conditional publishes, mirrors.

`Streams` finds, creates and deletes them; a `Stream` reads, deletes and counts messages; a
`Publisher` stores what is published to its subjects.
"""

from penstock.streams.following import Mirror
from penstock.streams.partition_streams import SEPARATOR
from penstock.streams.publisher import Publisher
from penstock.streams.rows import NO_ROWS, Rows
from penstock.streams.sources import SourceCopy
from penstock.streams.stream import Holder, Stream
from penstock.streams.stream_reader import SUBJECTS_PAGE
from penstock.streams.streams import Streams

__all__ = [
    "NO_ROWS",
    "SEPARATOR",
    "SUBJECTS_PAGE",
    "Holder",
    "Mirror",
    "Publisher",
    "Rows",
    "SourceCopy",
    "Stream",
    "Streams",
]
