"""Which client has which messages, where they are to come again as soon as it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.delivery.consumers.outlet import Outlet


class Holders:
    """Messages of one consumer, by the inbox they went to."""

    def __init__(self, outlet: Outlet, gone: Callable[[list[int]], None]) -> None:
        """`gone` is told the messages of a client that went without settling them."""
        self._outlet, self._gone = outlet, gone
        self._inboxes: dict[int, bytes] = {}
        self._seqs: dict[bytes, set[int]] = {}
        self._cancels: dict[bytes, Callable[[], None]] = {}

    def given(self, inbox: bytes, seqs: Iterable[int]) -> None:
        """These are about to be sent to an inbox that somebody listens to."""
        for seq in seqs:
            if self._inboxes.get(seq) != inbox:
                self.settled([seq])
                self._inboxes[seq] = inbox
                self._seqs.setdefault(inbox, set()).add(seq)
        if inbox in self._seqs and inbox not in self._cancels:
            cancel = self._outlet.on_departure(inbox, partial(self._departed, inbox))
            self._cancels[inbox] = cancel

    def settled(self, seqs: Iterable[int]) -> None:
        """Nobody has these any more."""
        for seq in seqs:
            inbox = self._inboxes.pop(seq, None)
            if inbox is not None:
                self._seqs[inbox].discard(seq)
                if not self._seqs[inbox]:
                    del self._seqs[inbox]
                    self._cancels.pop(inbox)()

    def _departed(self, inbox: bytes) -> None:
        seqs = sorted(self._seqs.pop(inbox, ()))
        self._cancels.pop(inbox, None)
        for seq in seqs:
            del self._inboxes[seq]
        self._gone(seqs)
