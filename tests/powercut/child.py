"""The process that is killed or loses its power: recovers, tells all, keeps busy.

Started with the number of the pipe for its facts. It reads its orders, one line, only when all is
imported, so it can be started ahead of time. A second line cuts the power. It stops in good order
at the end of its input, which comes at the latest with the end of its parent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

import msgspec
import structlog
import uvloop

from tests.powercut.aim import Trigger
from tests.powercut.bucket import tell_bucket
from tests.powercut.facts import Pipe, Tell
from tests.powercut.load import Load
from tests.powercut.orders import Orders
from tests.powercut.storages import storage_of
from tests.powercut.switch import Switch
from tests.powercut.view import tell_everything

STOP_SECONDS: Final = 60


async def run(orders: Orders, tell: Tell) -> None:
    directory = Path(orders.directory)
    switch = Switch(directory, tell)
    trigger = Trigger(switch, orders.aim)
    stop = asyncio.Event()
    end = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
    Thread(target=_obey, args=(switch, end), daemon=True).start()
    await tell_bucket(directory, tell)
    trigger.armed = orders.aim_in_recovery
    storage = storage_of(orders, trigger)
    await storage.open()
    await tell_everything(
        storage.logs, tell, orders.index, orders.disk_failed, storage.objects, storage.troubles()
    )
    trigger.armed = True
    await Load(storage, orders, tell, switch).run(stop)
    await storage.close()


def _obey(switch: Switch, end: Callable[[], object]) -> None:
    """Any line cuts the power, the end of input ends the load."""
    while sys.stdin.readline():
        switch.cut("by time")
    end()
    time.sleep(STOP_SECONDS)
    # Nobody is left who would end a process that hangs.
    os._exit(1)


def main() -> None:
    faulthandler.enable()
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    line = sys.stdin.readline()
    if line:
        orders = msgspec.json.decode(line, type=Orders)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(orders, Pipe(fd).tell))


if __name__ == "__main__":
    main()
