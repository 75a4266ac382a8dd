import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.formats.frames import decode_file_header
from penstock.host.child import Child, ChildFailed
from penstock.model import names
from penstock.model.errors import FormatError, PenstockError


@pytest_asyncio.fixture
async def child() -> AsyncIterator[Child]:
    child = Child()
    yield child
    await child.close()


async def test_a_call_runs_in_another_process_and_returns_what_the_function_returns(
    child: Child,
) -> None:
    pid = await child.call(os.getpid)
    assert pid == child.pid
    assert pid != os.getpid()
    assert await child.call(os.path.join, "a", "b") == "a/b"


async def test_the_process_is_started_by_the_first_call(child: Child) -> None:
    assert child.pid is None
    await child.call(os.getpid)
    assert child.pid is not None


async def test_one_process_serves_all_calls_in_the_order_they_were_made(child: Child) -> None:
    pids = await asyncio.gather(*(child.call(os.getpid) for _ in range(20)))
    assert set(pids) == {child.pid}


async def test_megabytes_can_be_sent_and_returned(child: Child) -> None:
    data = os.urandom(8 << 20)
    assert await child.call(bytes, data) == data


async def test_an_exception_of_the_function_is_raised_here_with_its_trace(child: Child) -> None:
    with pytest.raises(FormatError, match="64 bytes, found 3") as caught:
        await child.call(decode_file_header, b"abc")
    assert "decode_file_header" in caught.value.__notes__[0]


async def test_an_exception_that_cannot_be_pickled_keeps_its_message(child: Child) -> None:
    with pytest.raises(PenstockError, match="NameInvalid: topic name 'a b' is not valid"):
        await child.call(names.topic, "a b")


async def test_the_process_has_the_given_niceness() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    child = Child(7)
    assert await child.call(os.getpriority, os.PRIO_PROCESS, 0) == min(mine + 7, 19)
    await child.close()


async def test_a_call_whose_process_is_killed_fails_and_the_next_starts_a_new_one(
    child: Child,
) -> None:
    first = await child.call(os.getpid)
    sleeping = asyncio.create_task(child.call(time.sleep, 60))
    waiting = asyncio.create_task(child.call(os.getpid))
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="did not finish sleep: it ended with status -9"):
        await sleeping
    second = await waiting
    assert second != first
    assert await child.call(os.getpid) == second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_process_ignores_signals_that_stop_the_broker(
    child: Child, number: signal.Signals
) -> None:
    pid = await child.call(os.getpid)
    os.kill(pid, number)
    assert await child.call(os.getpid) == pid


async def test_a_process_killed_between_calls_costs_one_call(child: Child) -> None:
    os.kill(await child.call(os.getpid), signal.SIGKILL)
    with pytest.raises(ChildFailed):
        await child.call(os.getpid)
    assert await child.call(os.getpid) == child.pid


async def test_the_call_after_a_cancelled_call_receives_its_own_result(child: Child) -> None:
    await child.call(os.getpid)
    task = asyncio.create_task(child.call(time.sleep, 0.05))
    await asyncio.sleep(0.01)
    task.cancel()
    assert await child.call(int, "7") == 7


async def test_close_ends_the_process_and_later_calls_fail() -> None:
    child = Child()
    pid = await child.call(os.getpid)
    await child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ChildFailed, match="it is closed"):
        await child.call(os.getpid)
    await child.close()


async def test_close_kills_a_call_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.host.child.STOP_SECONDS", 0.1)
    child = Child()
    await child.call(os.getpid)
    task = asyncio.create_task(child.call(time.sleep, 60))
    await asyncio.sleep(0.05)
    await child.close()
    with pytest.raises(ChildFailed):
        await task


async def test_the_process_inherits_no_socket(child: Child) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(True)
        await child.call(os.getpid)
        held = [os.readlink(path) for path in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert [target for target in held if target.startswith("socket:")] == []


async def test_text_that_a_function_prints_does_not_disturb_the_replies(child: Child) -> None:
    await child.call(print, "a line on standard output")
    assert await child.call(int, "7") == 7


async def test_a_cancelled_call_that_fails_later_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = Child()
    await child.call(os.getpid)
    calls = [asyncio.create_task(child.call(time.sleep, 0.01)) for _ in range(2)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await child.close()
    del call, calls
    gc.collect()
    assert not caplog.records


def test_a_call_is_not_executed_if_the_parent_ended_before_the_process_was_ready(
    tmp_path: Path,
) -> None:
    script = """if True:
        import asyncio, os, pathlib, signal, sys
        from penstock.host.child import Child

        async def main():
            child = Child()
            call = asyncio.ensure_future(child.call(pathlib.Path.touch, pathlib.Path(sys.argv[1])))
            while child.pid is None:
                await asyncio.sleep(0)
            print(child.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """
    touched = tmp_path / "touched"
    parent = subprocess.run(
        [sys.executable, "-c", script, str(touched)], stdout=subprocess.PIPE, text=True
    )
    assert parent.returncode == -signal.SIGKILL
    while not _ended(int(parent.stdout)):
        time.sleep(0.01)
    assert not touched.exists()


def test_the_process_ends_with_its_parent() -> None:
    script = (
        "import asyncio, os, time\n"
        "from penstock.host.child import Child\n"
        "async def main():\n"
        "    child = Child()\n"
        "    print(await child.call(os.getpid), flush=True)\n"
        "    await child.call(time.sleep, 60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    while not _ended(pid):
        time.sleep(0.01)


def _ended(pid: int) -> bool:
    """Whether the process has ended; it may be a zombie of its new parent."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rsplit(")", 1)[1].split()[0] == "Z"
