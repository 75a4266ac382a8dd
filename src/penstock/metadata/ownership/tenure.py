"""Decides how long a broker may rely on its lease; pure, without a clock or a store.

    requested        valid_until             ends
      |- - - - acks - - - - -|- - - margin - - -|- - - expired - - -
           renew, renew, ...     no acks, but a
                                 late renewal helps

The store counts the lease from when it received the request, which is not before the broker sent
it; so on the broker's clock the lease cannot end before `requested + seconds`. After that, other
brokers may own its topics. The margin covers clocks that run at different speeds, and acks that are
still on the way to the client. Times are of CLOCK_BOOTTIME, which continues while this process, or
the machine, is suspended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.errors import ConfigError
from penstock.model.units import Nanoseconds

RENEWALS_PER_LEASE: Final = 3
RETRIES_PER_LEASE: Final = 12
"""A failed renewal is repeated after this fraction of a lease."""

_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The duration of a lease, and how long before its end acks stop; raises ConfigError."""

    seconds: int = 10
    margin_seconds: float = 2.0
    stall_limit_seconds: float = 60.0
    """The lease is renewed for about this long while the event loop does not run."""

    def __post_init__(self) -> None:
        if self.seconds < 1 or not 0 < self.margin_seconds < self.seconds / 2:
            raise ConfigError(
                f"a lease of {self.seconds} s needs a margin above 0 and below half of it, "
                f"not {self.margin_seconds} s"
            )


class LeaseStep(Enum):
    """The next step of a lease keeper."""

    WAIT = "wait"
    RENEW = "renew"
    END = "end"


class LeaseDecision(NamedTuple):
    """A step, and for WAIT its duration."""

    step: LeaseStep
    seconds: float = 0.0


class Tenure:
    """One lease, from its grant to its end."""

    def __init__(self, terms: LeaseTerms, requested_ns: Nanoseconds) -> None:
        self._terms = terms
        self._ends_ns = requested_ns + terms.seconds * _SECOND_NS
        self._renew_ns = requested_ns + terms.seconds * _SECOND_NS // RENEWALS_PER_LEASE

    @property
    def valid_until_ns(self) -> Nanoseconds:
        """Messages may be acknowledged before this time, and not later."""
        return Nanoseconds(self._ends_ns - int(self._terms.margin_seconds * _SECOND_NS))

    def decide(self, now_ns: Nanoseconds) -> LeaseDecision:
        """The step to take now. END, once other brokers may own the topics, is final."""
        if now_ns >= self._ends_ns:
            return LeaseDecision(LeaseStep.END)
        if now_ns >= self._renew_ns:
            return LeaseDecision(LeaseStep.RENEW)
        return LeaseDecision(
            LeaseStep.WAIT, (min(self._renew_ns, self._ends_ns) - now_ns) / _SECOND_NS
        )

    def attempt_seconds(self, now_ns: Nanoseconds) -> float:
        """The timeout of a renewal, so that another attempt is possible before the end."""
        left = (self._ends_ns - now_ns) / _SECOND_NS
        return max(0.0, min(self._terms.seconds / RENEWALS_PER_LEASE, left))

    def renewed(self, requested_ns: Nanoseconds, seconds: float) -> None:
        """Note that the store renewed the lease for `seconds` from when this was requested."""
        self._ends_ns = max(self._ends_ns, requested_ns + int(seconds * _SECOND_NS))
        self._renew_ns = requested_ns + self._terms.seconds * _SECOND_NS // RENEWALS_PER_LEASE

    def end(self) -> None:
        """Note that the lease has ended, or is not renewed any more."""
        self._ends_ns = 0

    def failed(self, now_ns: Nanoseconds) -> None:
        """Note that a renewal failed."""
        self._renew_ns = now_ns + self._terms.seconds * _SECOND_NS // RETRIES_PER_LEASE
