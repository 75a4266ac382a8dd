"""Renews a lease in a thread, independently of the event loop.

A thread suffices: pure Python releases the GIL every few milliseconds, and blocking calls release
it, so only a C call that holds the GIL for longer than the lease can stop the renewals. A process
would have to detect whether its parent is suspended, and could renew for a suspended one.

A broker that hangs must not keep its topics for ever. After a renewal the keeper schedules a call
on the event loop; if the loop has not run this call for `stall_limit_seconds`, the lease is not
renewed. Renewals continue if the loop runs again before the lease ends.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Final

import structlog

from penstock.host.clock import Clock
from penstock.host.threads import WorkerThreads
from penstock.metadata.interface import LeaseExpired, LeaseId, Renewer
from penstock.metadata.ownership.tenure import LeaseStep, LeaseTerms, Tenure
from penstock.model.units import Nanoseconds

_SECOND_NS: Final = 1_000_000_000

_logger = structlog.get_logger(__name__)


class LeaseKeeper:
    """Renews one lease at a time; create and close it where an event loop runs.

    The loop calls `on_renewed` after a renewal, and `on_ended` once when a lease has ended. The
    tenure of the lease is over from its end on, before `on_ended` is called.
    """

    def __init__(
        self,
        renewer: Renewer,
        terms: LeaseTerms,
        clock: Clock,
        on_renewed: Callable[[], None],
        on_ended: Callable[[LeaseId], None],
    ) -> None:
        self._renewer, self._clock = renewer, clock
        self._stall_limit_ns = int(terms.stall_limit_seconds * _SECOND_NS)
        self._on_renewed, self._on_ended = on_renewed, on_ended
        self._thread = WorkerThreads(1, "lease")
        self._stopping = Event()
        self._scheduled_ns: Nanoseconds | None = None
        """When the call that the loop has not run yet was scheduled; None if there is none."""

    def keep(self, lease: LeaseId, tenure: Tenure) -> None:
        """Renew this lease until it ends; the previous one must have ended."""
        self._thread.submit(lambda: self._keep(lease, tenure))

    async def close(self) -> None:
        """Stop renewing; the lease ends by itself unless it is revoked."""
        self._stopping.set()
        self._renewer.close()
        await self._thread.close()

    def _keep(self, lease: LeaseId, tenure: Tenure) -> None:
        while not self._stopping.is_set():
            decision = tenure.decide(self._clock.boottime_ns())
            if decision.step is LeaseStep.WAIT:
                self._clock.wait(self._stopping, decision.seconds)
            elif decision.step is LeaseStep.END or not self._renew(lease, tenure):
                tenure.end()
                self._report(self._on_ended, lease)
                return

    def _renew(self, lease: LeaseId, tenure: Tenure) -> bool:
        """Attempt a renewal; returns False if the store replies that the lease has ended."""
        called_ns = self._clock.boottime_ns()
        try:
            self._check_loop(called_ns)
            timeout_seconds = tenure.attempt_seconds(called_ns)
            seconds = self._renewer.keep_alive(lease, timeout_seconds)
        except LeaseExpired:
            return False
        except Exception as error:
            # After any kind of error the next attempt may succeed.
            _logger.warning("lease_not_renewed", lease=lease, reason=str(error) or repr(error))
            tenure.failed(self._clock.boottime_ns())
        else:
            tenure.renewed(called_ns, seconds)
            self._schedule_call()
        return True

    def _check_loop(self, now_ns: Nanoseconds) -> None:
        since_ns = self._scheduled_ns
        if since_ns is not None and now_ns - since_ns > self._stall_limit_ns:
            stalled_seconds = (now_ns - since_ns) / _SECOND_NS
            limit = self._stall_limit_ns / _SECOND_NS
            raise TimeoutError(
                f"the event loop has been stalled for {stalled_seconds:.1f} s, "
                f"the limit stall_limit_seconds is {limit:g} s"
            )

    def _schedule_call(self) -> None:
        if self._scheduled_ns is None:
            self._scheduled_ns = self._clock.boottime_ns()
            self._report(self._run_call)

    def _report(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._thread.report(callback, *args)
        except RuntimeError:
            # The loop was closed before this keeper, so the lease is not used any more.
            self._stopping.set()

    def _run_call(self) -> None:
        self._scheduled_ns = None
        self._on_renewed()
