"""For how long a broker may rely on its lease: decisions only, no clock and no store.

    asked            valid_until             ends
      |- - - - acks - - - - -|- - - margin - - -|- - - gone - - -
           renew, renew, ...     no acks, but a
                                 late renewal helps

The store counts a lease from when it got the request, which is not before it was *asked*; so on our
clock the lease cannot end before asked + seconds. Others may own our topics from there on. The
margin covers clocks that run at different speeds, and the way of an ack that was decided just in
time. Times are of CLOCK_BOOTTIME: it runs on while this process, or the machine, is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.errors import ConfigError
from penstock.model.units import Nanoseconds

RENEWALS_PER_LEASE: Final = 3
RETRIES_PER_LEASE: Final = 12
"""A renewal that failed is tried again after this part of a lease."""

_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease is and how early before its end acks stop; raises ConfigError."""

    seconds: int = 10
    margin_seconds: float = 2.0

    def __post_init__(self) -> None:
        if self.seconds < 1 or not 0 < self.margin_seconds < self.seconds / 2:
            raise ConfigError(
                f"a lease of {self.seconds} s needs a margin above 0 and below half of it, "
                f"not {self.margin_seconds} s"
            )


class Step(Enum):
    """What to do about a lease now."""

    WAIT = "wait"
    RENEW = "renew"
    END = "end"


class Decision(NamedTuple):
    """A step; with WAIT, how long."""

    step: Step
    seconds: float = 0.0


class Tenure:
    """One lease, from its grant to its end."""

    def __init__(self, terms: Terms, asked_ns: Nanoseconds) -> None:
        self._terms = terms
        self._ends_ns = asked_ns + terms.seconds * _SECOND_NS
        self._renew_ns = asked_ns + terms.seconds * _SECOND_NS // RENEWALS_PER_LEASE

    @property
    def valid_until_ns(self) -> Nanoseconds:
        """Acks may leave before this, and not later."""
        return Nanoseconds(self._ends_ns - int(self._terms.margin_seconds * _SECOND_NS))

    def decide(self, now_ns: Nanoseconds) -> Decision:
        """END once others may own our topics, whatever the store would say; it is final."""
        if now_ns >= self._ends_ns:
            return Decision(Step.END)
        if now_ns >= self._renew_ns:
            return Decision(Step.RENEW)
        return Decision(Step.WAIT, (min(self._renew_ns, self._ends_ns) - now_ns) / _SECOND_NS)

    def attempt_seconds(self, now_ns: Nanoseconds) -> float:
        """How long to wait for the answer to a renewal: another attempt must fit in."""
        left = (self._ends_ns - now_ns) / _SECOND_NS
        return max(0.0, min(self._terms.seconds / RENEWALS_PER_LEASE, left))

    def renewed(self, asked_ns: Nanoseconds, seconds: float) -> None:
        """The store renewed it for `seconds` from when that was asked."""
        self._ends_ns = max(self._ends_ns, asked_ns + int(seconds * _SECOND_NS))
        self._renew_ns = asked_ns + self._terms.seconds * _SECOND_NS // RENEWALS_PER_LEASE

    def failed(self, now_ns: Nanoseconds) -> None:
        """The store did not answer."""
        self._renew_ns = now_ns + self._terms.seconds * _SECOND_NS // RETRIES_PER_LEASE
