"""Turns the responses of etcd to a watch into changes: each once, in order, with whole revisions.

Rules:
- A new stream starts at the last revision seen, not at the next one, and drops what is not newer.
  So a history that was compacted right after it is detected, and older events, which some versions
  of etcd send to a watch that is ahead of them, do no harm.
- etcd may split a response anywhere into fragments. The newest revision of a fragment is held back
  until the next one shows that it is complete; after a broken stream etcd sends it again.
"""

from __future__ import annotations

from typing import Any

from penstock.metadata.etcd.calls import TokenRefused, is_token_trouble
from penstock.metadata.etcd.messages import EVENT_DELETE, message
from penstock.metadata.interface import (
    HistoryCompacted,
    KeyChange,
    MetadataRefused,
    MetadataUnavailable,
    Revision,
)
from penstock.metadata.requests import prefix_end


class WatchProgress:
    """The progress of one watch over any number of streams."""

    def __init__(self, prefix: bytes, since: Revision) -> None:
        self._prefix = prefix
        self._seen = since
        self._held: list[KeyChange] = []

    def request(self) -> Any:
        """The request that opens a new stream."""
        self._held = []
        create = message(
            "WatchCreateRequest",
            key=self._prefix or b"\0",
            range_end=prefix_end(self._prefix) or b"\0",
            # 0 would mean only future changes; etcd's first change has revision 2.
            start_revision=max(self._seen, 1),
            fragment=True,
        )
        return message("WatchRequest", create_request=create)

    def take(self, response: Any) -> list[KeyChange]:
        """Process a response; returns the changes that are complete.

        Raises HistoryCompacted; if etcd ends the watch, MetadataRefused or MetadataUnavailable.
        """
        if response.compact_revision:
            raise HistoryCompacted(self._seen, Revision(response.compact_revision))
        if response.canceled:
            raise _ended(response.cancel_reason)
        changes = self._held + [
            _change(event) for event in response.events if event.kv.mod_revision > self._seen
        ]
        complete = changes
        if response.fragment and changes:
            newest = changes[-1].revision
            complete = [change for change in changes if change.revision < newest]
        self._held = changes[len(complete) :]
        if complete:
            self._seen = complete[-1].revision
        return complete


def _change(event: Any) -> KeyChange:
    value = None if event.type == EVENT_DELETE else event.kv.value
    return KeyChange(event.kv.key.decode(), value, Revision(event.kv.mod_revision))


def _ended(reason: str) -> Exception:
    if is_token_trouble(reason):
        return TokenRefused("etcd wants a new token for a watch")
    if "permission denied" in reason:
        return MetadataRefused(f"etcd refused a watch: {reason}")
    return MetadataUnavailable(f"etcd ended a watch: {reason}")
