"""What delivery is handed by a door: a way to whoever subscribed to a subject.

All calls are made on the loop and return at once. A run is never cut into messages here.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class Outlet(Protocol):
    """Subscribers of subjects, as seen by delivery."""

    def has_interest(self, subject: bytes) -> bool: ...

    def send(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        """Publish to whoever subscribed to `subject`; how many connections got it."""
        ...

    def send_rows(
        self,
        inbox: bytes,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """The same for a run that goes to the subscriber of `inbox`, each message under its own
        subject; how many messages somebody got, from the first on: an auto-unsubscribe may end a
        run in its middle."""
        ...

    async def drained(self, inbox: bytes) -> None:
        """Wait until whoever subscribed to `inbox` has taken most of what was sent."""
        ...

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when nobody subscribes to `subject` any more (UNSUB, auto-unsubscribe,
        disconnect); returns a function that cancels."""
        ...

    def on_departure(self, inbox: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client that subscribes to `inbox` now is gone, whatever it subscribes
        to by then; returns a function that cancels."""
        ...

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when somebody subscribes to `subject`."""
        ...
