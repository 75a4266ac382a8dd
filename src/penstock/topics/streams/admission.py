"""Which messages a stream takes, whatever door they come by.

Asked by the log before every append. What has to be looked up for the answer can be made ready
before; a door that does not wait for that is answered by what is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Run
from penstock.topics.streams.keeper import Keeper
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.stream_config import StreamConfig

HEADER_BYTES_MAX: Final = 64 << 10


class Admission:
    """The rules of one stream's configuration that refuse."""

    def __init__(
        self, config: StreamConfig, keeper: Keeper, measured: Callable[[], Awaitable[None]]
    ) -> None:
        self.config, self._keeper, self._measured = config, keeper, measured
        self._copying = self._counted = False

    @property
    def plain(self) -> bool:
        """Whether nothing is refused."""
        config = self.config
        closed = config.sealed or config.mirror is not None
        ruled = config.max_msg_size >= 0 or self._refuses_new or config.allow_msg_counter
        return not closed and not ruled and not self._unmeasured

    def ready(self, subjects: Collection[bytes]) -> bool:
        """Whether nothing has to be looked up to hold the limits of these subjects."""
        if self.config.max_msgs_per_subject <= 0:
            return True
        return all(self._keeper.of_subjects.count(subject) is not None for subject in set(subjects))

    @contextmanager
    def copying(self) -> Iterator[None]:
        """What is appended meanwhile is a copy: a mirror takes nothing else."""
        self._copying = True
        try:
            yield
        finally:
            self._copying = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is appended meanwhile are sums: a stream of counters takes nothing else."""
        self._counted = True
        try:
            yield
        finally:
            self._counted = False

    async def prepare(self, subjects: Collection[bytes]) -> None:
        """Look up what it takes to hold the limits."""
        if self._unmeasured:
            await self._measured()
        if not self.ready(subjects):
            await self._keeper.loaded()

    def check(self, run: Run | ColumnRun) -> None:
        """Raises ApiError when the stream does not take the run."""
        config = self.config
        if self._copying or run.partition != self._keeper.partition:
            return
        self.check_open()
        if config.allow_msg_counter and not self._counted:
            raise errors.INCREMENT_MISSING.error()
        for header_bytes, payload_bytes in _lengths(run) if config.max_msg_size >= 0 else ():
            self.check_size(header_bytes, payload_bytes)
        if self._refuses_new:
            self._check_room(run)

    @property
    def _unmeasured(self) -> bool:
        return self.config.max_bytes > 0 and self._keeper.unmeasured

    @property
    def _refuses_new(self) -> bool:
        config = self.config
        bounded = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
        return config.discard == "new" and bounded

    def check_open(self) -> None:
        """Raises ApiError when the stream takes nothing."""
        if self.config.sealed or self.config.mirror is not None:
            raise errors.STREAM_SEALED.error()

    def check_size(self, header_bytes: int, payload_bytes: int) -> None:
        """Raises ApiError when a message is too large."""
        if 0 <= self.config.max_msg_size < header_bytes + payload_bytes:
            raise errors.MESSAGE_TOO_LARGE.error()
        if header_bytes > HEADER_BYTES_MAX:
            raise errors.HEADERS_TOO_LARGE.error()

    def _check_room(self, run: Run | ColumnRun) -> None:
        config, keeper = self.config, self._keeper
        replaced, most = 0, config.max_msgs_per_subject
        for subject, more in Counter(keeper.counting.subjects(run)).items() if most > 0 else ():
            excess = (keeper.of_subjects.count(subject) or 0) + more - most
            if excess > 0 and config.discard_new_per_subject:
                raise errors.STORE_FAILED.error("maximum messages per subject exceeded")
            replaced += max(excess, 0)
        if 0 < config.max_msgs < keeper.live() + run.count - replaced:
            raise errors.STORE_FAILED.error("maximum messages exceeded")
        if 0 < config.max_bytes < keeper.total_bytes + keeper.counting.count(run)[1]:
            raise errors.STORE_FAILED.error("maximum bytes exceeded")


def _lengths(run: Run | ColumnRun) -> Iterable[tuple[int, int]]:
    """Bytes of headers and of payload of each message; rows of typed topics have no such limit."""
    if isinstance(run, Run):
        blocks: Sequence[bytes] = run.headers or [b""] * run.count
        return zip(map(len, blocks), map(len, run.payloads), strict=True)
    if not isinstance(run.content, Columns):
        return ()
    headers = run.content.headers
    blocks = [b""] * run.count if headers is None else [b or b"" for b in headers.to_pylist()]
    return zip(map(len, blocks), map(len, run.content.payload.to_pylist()), strict=True)
