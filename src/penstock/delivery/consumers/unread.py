"""From which frame of the log on consumers still have messages before them.

Files are dropped whole, so only their ends matter: when a file is finished, the first frame of the
next and the offset reached are noted, and once every consumer has passed that offset, what is
before that frame is not needed. Files from before the start end where it was made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.topics.streams.stream import Stream


class Unread:
    """Tells a log which of its files the consumers of one stream have passed."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._log = stream, stream.log
        self._kind = f"unread {stream.name}"
        self._ends = deque([(self._log.writer.durable_number, int(stream.next_offset))])
        self._newest = self._active()
        self._frame = 0

    def frees(self, offset: int) -> bool:
        """Whether a consumer that has settled everything before this may free a file."""
        return bool(self._ends) and offset >= self._ends[0][1]

    def committed(self) -> None:
        """Something was written, perhaps the first frame of a new file."""
        active = self._active()
        if active > self._newest:
            self._newest = active
            self._ends.append((active, int(self._stream.next_offset)))

    def passed(self, offsets: Iterable[int]) -> None:
        """Consumers have settled everything before these; without any, nothing is needed."""
        lowest = min(offsets, default=None)
        while lowest is not None and self.frees(lowest):
            self._frame = self._ends.popleft()[0]
        self._log.settlements.keep(self._kind, None if lowest is None else self._frame)

    def _active(self) -> int:
        """First frame of the file that is written now."""
        active = self._log.writer.active
        return 0 if active is None else active.file.header.first_frame
