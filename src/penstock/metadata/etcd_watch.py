"""What a watch makes of etcd's responses: each change once, in order, revisions whole.

Rules:
- Ask from the last revision seen, not the one behind it, and drop what is not newer. Then a history
  that was cut right behind it is reported and not passed over, and older events, which some
  versions of etcd send to a watch that is ahead of them, do no harm.
- A response may come in fragments, cut anywhere. The newest revision of a fragment is held back
  until the next one shows that it is complete; what is held when the stream breaks comes again.
"""

from __future__ import annotations

from typing import Any

from penstock.metadata.etcd_calls import TokenRefused, is_token_trouble
from penstock.metadata.etcd_messages import EVENT_DELETE, message
from penstock.metadata.interface import (
    Change,
    HistoryCompacted,
    MetadataRefused,
    MetadataUnavailable,
    Revision,
)
from penstock.metadata.requests import prefix_end


class Progress:
    """How far one watch is, over any number of streams."""

    def __init__(self, prefix: bytes, since: Revision) -> None:
        self._prefix = prefix
        self._seen = since
        self._held: list[Change] = []

    def request(self) -> Any:
        """What to ask a new stream for."""
        self._held = []
        create = message(
            "WatchCreateRequest",
            key=self._prefix or b"\0",
            range_end=prefix_end(self._prefix) or b"\0",
            # 0 would mean from now on; etcd's first change has revision 2.
            start_revision=max(self._seen, 1),
            fragment=True,
        )
        return message("WatchRequest", create_request=create)

    def take(self, response: Any) -> list[Change]:
        """The changes that are complete now.

        Raises HistoryCompacted, or when etcd ends the watch MetadataRefused, MetadataUnavailable.
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


def _change(event: Any) -> Change:
    value = None if event.type == EVENT_DELETE else event.kv.value
    return Change(event.kv.key.decode(), value, Revision(event.kv.mod_revision))


def _ended(reason: str) -> Exception:
    if is_token_trouble(reason):
        return TokenRefused("etcd wants a new token for a watch")
    if "permission denied" in reason:
        return MetadataRefused(f"etcd refused a watch: {reason}")
    return MetadataUnavailable(f"etcd ended a watch: {reason}")
