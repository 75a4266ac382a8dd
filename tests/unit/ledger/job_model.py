"""What a job ledger must do, said as simply as can be: a dictionary of whole jobs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ledger.job_states import Refusal


@dataclass
class Job:
    """One job."""

    priority: int
    state: str = "QUEUED"
    retries: int = 0
    until: int = 0
    lease: int = 0
    pushed: bool = False


class Model:
    """Jobs by offset."""

    def __init__(self, retries_max: int, timeout_us: int) -> None:
        self.retries_max, self.timeout_us = retries_max, timeout_us
        self.jobs: dict[int, Job] = {}

    def tick(self, now: int) -> None:
        for job in self.jobs.values():
            if job.state == "INFLIGHT" and not job.pushed and job.until <= now:
                self._back(job, 0)
            elif job.state == "QUEUED" and job.until and -(-job.until // 100_000) * 100_000 <= now:
                job.until = 0

    def order(self) -> list[int]:
        ready = [o for o, job in self.jobs.items() if job.state == "QUEUED" and not job.until]
        return sorted(ready, key=lambda o: (-self.jobs[o].priority, o))

    def change_state(
        self, offset: int, requested: str, incremental: int, now: int
    ) -> Refusal | None:
        self.tick(now)
        job = self.jobs.get(offset)
        if incremental and (requested != "INFLIGHT" or (job and job.state == "INFLIGHT")):
            return Refusal.TIMEOUT
        if job is None:
            return Refusal.TRANSITION
        if job.state == requested:
            return None
        if (job.state, requested) in (("QUEUED", "INFLIGHT"), ("DEAD", "INFLIGHT")):
            job.retries += job.state == "DEAD"
            job.state, job.pushed = "INFLIGHT", False
            job.until = now + self.timeout_us + incremental * 1_000_000
        elif (job.state, requested) in (("INFLIGHT", "DELIVERED"), ("INFLIGHT", "DEAD")):
            job.state = requested
            job.retries = 0 if requested == "DELIVERED" else job.retries
        else:
            return Refusal.TRANSITION
        return None

    def take(self) -> int | None:
        order = self.order()
        if not order:
            return None
        job = self.jobs[order[0]]
        job.state, job.pushed = "INFLIGHT", True
        return order[0]

    def end(self, offset: int, good: bool, until: int) -> None:
        job = self.jobs[offset]
        if good:
            job.state, job.retries = "DELIVERED", 0
        else:
            self._back(job, until)

    def requeue_all(self) -> None:
        for job in self.jobs.values():
            if job.state == "DEAD":
                job.state, job.retries, job.until = "QUEUED", 0, 0

    def purge(self) -> None:
        self.jobs = {
            offset: job
            for offset, job in self.jobs.items()
            if job.state != "DEAD" or job.retries < self.retries_max
        }

    def replay(self, first: int, stop: int) -> None:
        for offset, job in self.jobs.items():
            if first <= offset < stop and job.state in ("DELIVERED", "DEAD"):
                job.state, job.retries, job.until = "QUEUED", 0, 0

    def restart(self) -> None:
        for job in self.jobs.values():
            if job.state == "INFLIGHT" and job.pushed:
                job.state, job.until = "QUEUED", 0

    def _back(self, job: Job, until: int) -> None:
        if job.retries >= self.retries_max:
            job.state = "DEAD"
        else:
            job.state, job.retries, job.until = "QUEUED", job.retries + 1, until
