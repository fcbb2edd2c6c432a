"""A clock that the test moves, and the queues that use it."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.testing import Clock
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.queue.fixtures import MakeQueue

START = datetime(2030, 1, 31, 23, 59, tzinfo=UTC)


def test_the_clock_stands_still_until_it_is_moved() -> None:
    clock = Clock(START)
    assert (clock.now, clock()) == (START, START.timestamp())
    clock.advance(30)
    clock.advance(timedelta(days=400))
    clock.advance(0)
    assert clock.now == START + timedelta(days=400, seconds=30)
    clock.move_to(datetime(2032, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert clock.now == datetime(2031, 12, 31, 23, tzinfo=UTC)


def test_the_clock_starts_at_the_next_full_second() -> None:
    before = datetime.now(UTC)
    clock = Clock()
    assert before <= clock.now <= datetime.now(UTC) + timedelta(seconds=1)
    assert clock.now.microsecond == 0


@pytest.mark.parametrize("duration", [-1, math.nan, math.inf, "1", None, True, timedelta(seconds=-1)])
def test_the_clock_only_advances_by_a_duration(duration: Any) -> None:
    clock = Clock(START)
    with pytest.raises(InvalidArgument, match="duration"):
        clock.advance(duration)
    assert clock.now == START


def test_a_time_must_have_a_time_zone_and_not_have_passed() -> None:
    naive = START.replace(tzinfo=None)
    with pytest.raises(InvalidArgument, match="start"):
        Clock(naive)
    clock = Clock(START)
    for moment in (naive, START - timedelta(seconds=1)):
        with pytest.raises(InvalidArgument, match="moment"):
            clock.move_to(moment)
    assert clock.now == START


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_waiting_caller_is_woken_from_any_thread(
    make_queue: MakeQueue, clock: Clock, *, in_thread: bool
) -> None:
    queue = clock.attach(make_queue(clock=clock))
    await queue.add_item(Item("first"))
    await queue.lease(timedelta(days=1))
    await queue.add_item(Item("second"), delay=timedelta(days=2))
    for data, attempt in ((b"first", 2), (b"second", 1)):
        waiting = asyncio.create_task(queue.lease(timedelta(days=9)))
        await eventually("a caller waits", lambda: bool(queue._engine().leasing._waiting))
        if in_thread:
            await asyncio.to_thread(clock.advance, timedelta(days=1))
        else:
            clock.advance(timedelta(days=1))
        lease = await asyncio.wait_for(waiting, 120)
        assert (lease.data, lease.attempt) == (data, attempt)


async def test_the_clock_moves_with_unused_and_closed_queues(make_queue: MakeQueue, clock: Clock) -> None:
    queue = clock.attach(make_queue(clock=clock))
    clock.advance(1)
    await queue.close()
    clock.advance(1)
