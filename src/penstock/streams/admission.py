"""Checks every append to a stream, over any protocol, against the stream's configuration.

The open topic calls `check` before every append. A caller that can wait calls `prepare` first,
which looks up what the check needs; otherwise `check` decides by what is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.units import PartitionId
from penstock.streams.limits import LimitEnforcer
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.stream_config import StreamConfig

HEADER_BYTES_MAX: Final = 64 << 10


class Admission:
    """Refuses appends that the configuration of one stream does not allow."""

    def __init__(
        self,
        config: StreamConfig,
        partition: PartitionId,
        enforcer: LimitEnforcer,
    ) -> None:
        self.config, self._partition, self._enforcer = config, partition, enforcer

    @property
    def plain(self) -> bool:
        """Whether the configuration refuses nothing."""
        config = self.config
        closed = config.sealed or config.mirror is not None
        ruled = config.max_msg_size >= 0 or self._refuses_new or config.allow_msg_counter
        return not closed and not ruled and not self._unmeasured

    def ready(self, subjects: Collection[bytes]) -> bool:
        """Whether the limits of these subjects can be held without a look-up."""
        if self.config.max_msgs_per_subject <= 0:
            return True
        count = self._enforcer.subject_offsets.count
        return all(count(subject) is not None for subject in set(subjects))

    async def prepare(self, subjects: Collection[bytes]) -> None:
        """Look up what is needed to hold the limits of these subjects."""
        if self._unmeasured:
            await self._enforcer.measuring.measured()
        if not self.ready(subjects):
            await self._enforcer.looked_up()

    def check(self, run: Run | ColumnRun, origin: Origin) -> None:
        """Raise ApiError if the stream refuses the run."""
        config = self.config
        if origin is Origin.MIRROR or run.partition != self._partition:
            return
        self.check_open()
        if config.allow_msg_counter and origin is not Origin.COUNTER:
            raise errors.INCREMENT_MISSING.error()
        for header_bytes, payload_bytes in _lengths(run) if config.max_msg_size >= 0 else ():
            self.check_size(header_bytes, payload_bytes)
        if self._refuses_new:
            self._check_room(run)

    @property
    def _unmeasured(self) -> bool:
        return self.config.max_bytes > 0 and self._enforcer.counts.unmeasured

    @property
    def _refuses_new(self) -> bool:
        config = self.config
        bounded = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
        return config.discard == "new" and bounded

    def check_open(self) -> None:
        """Raise ApiError if the stream refuses every message."""
        if self.config.sealed or self.config.mirror is not None:
            raise errors.STREAM_SEALED.error()

    def check_size(self, header_bytes: int, payload_bytes: int) -> None:
        """Raise ApiError if a message is too large."""
        if 0 <= self.config.max_msg_size < header_bytes + payload_bytes:
            raise errors.MESSAGE_TOO_LARGE.error()
        if header_bytes > HEADER_BYTES_MAX:
            raise errors.HEADERS_TOO_LARGE.error()

    def _check_room(self, run: Run | ColumnRun) -> None:
        """Raise ApiError if the limits do not allow more messages."""
        config, counts = self.config, self._enforcer.counts
        replaced, subject_max = 0, config.max_msgs_per_subject
        new_messages = Counter(counts.counting.subjects(run)) if subject_max > 0 else {}
        for subject, count in new_messages.items():
            known = self._enforcer.subject_offsets.count(subject) or 0
            excess = known + count - subject_max
            if excess > 0 and config.discard_new_per_subject:
                raise errors.STORE_FAILED.error("maximum messages per subject exceeded")
            replaced += max(excess, 0)
        if 0 < config.max_msgs < counts.live() + run.count - replaced:
            raise errors.STORE_FAILED.error("maximum messages exceeded")
        if 0 < config.max_bytes < counts.total_bytes + counts.counting.count(run)[1]:
            raise errors.STORE_FAILED.error("maximum bytes exceeded")


def _lengths(run: Run | ColumnRun) -> Iterable[tuple[int, int]]:
    """Header and payload bytes of each message; rows of typed topics have no such limit."""
    if isinstance(run, Run):
        blocks: Sequence[bytes] = run.headers or [b""] * run.count
        return zip(map(len, blocks), map(len, run.payloads), strict=True)
    if not isinstance(run.content, Columns):
        return ()
    headers = run.content.headers
    blocks = [b""] * run.count if headers is None else [b or b"" for b in headers.to_pylist()]
    return zip(map(len, blocks), map(len, run.content.payload.to_pylist()), strict=True)
