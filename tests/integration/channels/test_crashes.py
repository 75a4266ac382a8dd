"""Workers pull jobs while the broker is killed again and again: its replies hold."""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from penstock import SyncClient
from tests.integration.channels.api import Api, Channel, Consumer, serving
from tests.integration.channels.test_restart import known

MESSAGES = 3000
WORKERS = 4
ROUNDS = 3


class Worker(threading.Thread):
    """Claims and finishes jobs until the broker is killed; records the states in its replies."""

    def __init__(self, consumer: Consumer, seed: int) -> None:
        super().__init__()
        self._consumer, self._random = consumer, random.Random(seed)
        self.states: dict[str, str] = {}
        self.unsure: set[str] = set()

    def run(self) -> None:
        try:
            while True:
                for job in self._claimed():
                    self._finish(job["ID"], job["Lease"])
        except (OSError, http.client.HTTPException):
            return

    def _claimed(self) -> list[dict[str, str]]:
        answer = self._consumer.request("POST", "/claim?limit=5&timeout=3600")
        assert answer.status == 200, answer
        jobs: list[dict[str, str]] = answer.json["Result"]
        for job in jobs:
            self.states[job["ID"]] = "INFLIGHT"
        return jobs

    def _finish(self, job: str, lease: str) -> None:
        state = self._random.choice(["DELIVERED", "DELIVERED", "DEAD", ""])
        if not state:
            return
        self.unsure.add(job)
        answer = self._consumer.move(job, state, X_Broker_Lease=lease)
        assert answer.status == 202, answer
        self.states[job] = state
        self.unsure.discard(job)


@pytest.mark.feature("C15", "C20")
@pytest.mark.timeout(400)
def test_replies_to_workers_hold_after_every_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        api = Api(broker.host, broker.port)
        Channel(api, "c").consumer("one")
        with SyncClient(f"http://{api.host}:{api.port}") as client:
            client.push("c", [b"%d" % n for n in range(MESSAGES)])
    states: dict[str, str] = {}
    for number in range(ROUNDS):
        with serving(tmp_path) as broker:
            consumer = known(Api(broker.host, broker.port), "c", "one")
            workers = [Worker(consumer, 10 * number + n) for n in range(WORKERS)]
            for worker in workers:
                worker.start()
            time.sleep(1.0)
            broker.signal(signal.SIGKILL)
            broker.wait()
            for worker in workers:
                worker.join()
        claimed = [job for worker in workers for job in worker.states]
        assert len(claimed) == len(set(claimed))
        assert not states.keys() & set(claimed)
        for worker in workers:
            states |= {job: s for job, s in worker.states.items() if job not in worker.unsure}
        with serving(tmp_path) as broker:
            consumer = known(Api(broker.host, broker.port), "c", "one")
            assert {job: consumer.state(job) for job in states} == states
            rows = consumer.channel.api.get("/job-status").json["c"]["one"]
            assert sum(row["count"] for row in rows) == MESSAGES
    assert {"INFLIGHT", "DELIVERED", "DEAD"} <= set(states.values())
