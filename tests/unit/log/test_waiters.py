import asyncio

import pytest

from penstock.log.waiters import Waiters


async def test_a_wake_up_completes_every_waiter_of_its_partitions_and_forgets_them() -> None:
    waiters = Waiters()
    with (
        waiters.arrival(0) as one,
        waiters.arrival(0) as two,
        waiters.arrival(1) as other,
        waiters.arrival(2) as third,
    ):
        assert len(waiters) == 4
        waiters.wake([0, 2, 9])
        assert [f.done() for f in (one, two, other, third)] == [True, True, False, True]
        assert len(waiters) == 1
        await one


async def test_a_waiter_leaves_in_any_case() -> None:
    waiters = Waiters()
    with pytest.raises(ZeroDivisionError), waiters.arrival(0):
        raise ZeroDivisionError
    assert len(waiters) == 0

    async def wait() -> None:
        with waiters.arrival(3) as arrival:
            await arrival

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert len(waiters) == 1
    task.cancel()
    await asyncio.wait([task])
    assert len(waiters) == 0


async def test_a_wake_up_between_registering_and_waiting_is_not_lost() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as arrival:
        waiters.wake([0])
        await asyncio.wait_for(arrival, 1)


async def test_closing_wakes_everybody() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as one, waiters.arrival(7) as two:
        waiters.wake_all()
        assert one.done()
        assert two.done()
    assert len(waiters) == 0


async def test_a_cancelled_waiter_does_not_disturb_a_wake_up() -> None:
    waiters = Waiters()
    with waiters.arrival(0) as one, waiters.arrival(0) as two:
        one.cancel()
        waiters.wake([0])
        assert two.done()
