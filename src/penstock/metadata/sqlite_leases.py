"""When leases end, on a clock that is passed in."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.metadata.interface import LeaseExpired, LeaseId
from penstock.model.units import Nanoseconds

_SECOND_NS = 1_000_000_000


class Leases:
    """The living leases and their ends."""

    def __init__(self) -> None:
        self._seconds: dict[LeaseId, int] = {}
        self._ends_ns: dict[LeaseId, int] = {}
        self._earliest_ns: int | None = None

    def grant(self, lease: LeaseId, seconds: int, now_ns: Nanoseconds) -> None:
        ends_ns = now_ns + seconds * _SECOND_NS
        self._seconds[lease], self._ends_ns[lease] = seconds, ends_ns
        if self._earliest_ns is None or ends_ns < self._earliest_ns:
            self._earliest_ns = ends_ns

    def renew(self, lease: LeaseId, now_ns: Nanoseconds) -> float:
        """Seconds it is good for from now; raises LeaseExpired."""
        seconds = self._seconds.get(lease)
        if seconds is None:
            raise LeaseExpired(f"lease {lease} has ended")
        self._ends_ns[lease] = now_ns + seconds * _SECOND_NS
        return float(seconds)

    def drop(self, lease: LeaseId) -> None:
        self._seconds.pop(lease, None)
        self._ends_ns.pop(lease, None)

    def due(self, now_ns: Nanoseconds) -> list[LeaseId]:
        """The leases whose time is over; they stay until they are dropped."""
        if self._earliest_ns is None or now_ns < self._earliest_ns:
            return []
        self._earliest_ns = min(
            (ends for ends in self._ends_ns.values() if ends > now_ns), default=None
        )
        return [lease for lease, ends in self._ends_ns.items() if ends <= now_ns]

    def earliest_ns(self) -> int | None:
        """No lease ends before this; the first may end later, since leases are renewed."""
        return self._earliest_ns

    def restore(self, stored: Iterable[tuple[LeaseId, int]], now_ns: Nanoseconds) -> None:
        """Exactly the stored leases; those not known here get their full time."""
        known, self._seconds, self._earliest_ns = self._ends_ns, {}, None
        self._ends_ns = {}
        for lease, seconds in stored:
            self.grant(lease, seconds, now_ns)
            if lease in known:
                self._ends_ns[lease] = known[lease]
                self._earliest_ns = min(self._earliest_ns or known[lease], known[lease])
