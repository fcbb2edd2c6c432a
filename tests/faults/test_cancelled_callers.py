"""A caller may be cancelled at any moment: no item is lost, and no other caller is affected."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Lease, QueueClosed
from tests.eventually import eventually
from tests.queue.asking import alone, blocked, until
from tests.queue.keyspace import Places, audit, left_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = [pytest.mark.core, pytest.mark.slow]

#: More turns of the loop than any call takes.
MAX_STEPS = 500


async def turn() -> None:
    """Wait for the next turn of the event loop in which anything happens.

    While nothing does, turns differ in nothing, and a busy machine would have hundreds of them.
    """
    loop: Any = asyncio.get_running_loop()
    if loop._ready:  # other callbacks are to be run
        await asyncio.sleep(0)
        return
    woken = loop.create_future()

    def process(events: object) -> None:
        del loop._process_events  # the method of the class again
        woken.set_result(None)
        loop._process_events(events)

    loop._process_events = process
    await woken


class Stepped:
    """Runs a call, and cancels it after a number of turns of the event loop."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.finished = False

    async def __call__(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return what the call returned, or None if it was cancelled."""
        task = asyncio.create_task(call)
        for _ in range(self.step):
            if task.done():
                break
            await turn()
        self.finished = not task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None


async def at_every_step(once: Callable[[Stepped], Awaitable[None]]) -> None:
    """Repeat a call, cancelled one turn of the loop later each time, until it ends before that."""
    for step in range(MAX_STEPS):
        stepped = Stepped(step)
        await once(stepped)
        if stepped.finished:
            return
    raise AssertionError(f"not through after {MAX_STEPS} turns of the loop")


async def ready(redis: Redis, queue: AsyncWorkQueue, count: int) -> Places:
    """Wait until `count` items wait, none of them in an inbox, and check the whole state."""

    async def are_waiting() -> bool:
        return await redis.llen(f"{queue.name}:queue") == count

    await until(f"{count} items wait", are_waiting)
    return await audit(redis, queue.name)


@pytest.mark.parametrize("warm", [False, True])
async def test_add(make_queue: MakeQueue, redis: Redis, name: str, *, warm: bool) -> None:
    async def once(stepped: Stepped) -> None:
        async with make_queue(name=f"{name}-add-{warm}-{stepped.step}") as queue:
            if warm:
                await queue.counts()
            others = [asyncio.create_task(queue.add_item(Item(b"x", id=f"other-{n}"))) for n in range(3)]
            answer = await stepped(queue.add_item(Item(b"x", id="mine")))
            assert answer in (None, True)
            assert await asyncio.gather(*others) == [True] * 3
            applied = b"mine" in (await audit(redis, queue.name)).all
            if answer:
                assert applied
            assert await queue.add_item(Item(b"x", id="mine")) is not applied
            assert await queue.counts() == (4, 0, 0, 0)

    await at_every_step(once)


@pytest.mark.parametrize(("count", "block"), [(3, False), (1, True)])
@pytest.mark.parametrize("warm", [False, True])
async def test_lease(
    make_queue: MakeQueue, redis: Redis, name: str, *, count: int, block: bool, warm: bool
) -> None:
    """The items of the cancelled caller return to the front at once."""

    async def once(stepped: Stepped) -> None:
        async with make_queue(name=f"{name}-lease-{stepped.step}") as queue:
            await add_six(make_queue, queue)
            if warm:
                await queue.counts()
            first = asyncio.create_task(queue.lease(60, block=block))
            mine = await stepped(queue.lease_many(count, 60, block=block)) or []
            last = await queue.lease(60, block=block)
            held = [lease for lease in (await first, *mine, last) if lease]
            assert len(held) == 2 + len(mine)
            found = await ready(redis, queue, 6 - len(held))
            assert sorted(found.leased) == sorted(lease.id.encode() for lease in held)
            assert found.waiting == sorted(found.waiting), "they keep their order"
            assert await queue.complete_many(held) == [True] * len(held)

    await at_every_step(once)


class StallAfterScript(list[bytes]):
    """Takes the place of a proxy's commands: it forwards one script and no reply, until it is resumed."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def append(self, command: bytes) -> None:
        """Note a command, just before it is forwarded."""
        super().append(command)
        if command == b"EVALSHA":
            self._proxy.stall()


@pytest.mark.parametrize(("count", "block"), [(3, False), (1, True)])
async def test_lease_whose_reply_is_on_its_way(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, *, count: int, block: bool
) -> None:
    """The items were leased for a caller that was cancelled since: they return to the front at once."""
    async with make_queue(url=proxy.url) as queue:
        await add_six(make_queue, queue)
        await queue.counts()
        proxy.commands = StallAfterScript(proxy)
        mine = asyncio.create_task(queue.lease_many(count, 60, block=block))

        async def are_leased() -> bool:
            return await redis.zcard(f"{queue.name}:deadlines") == count

        await until("the items are leased", are_leased)
        mine.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mine
        proxy.commands = []
        proxy.resume()
        assert (await ready(redis, queue, 6)).waiting == [b"%d" % n for n in range(6)]
        [lease] = await queue.lease_many(1, 60)
        assert (lease.id, lease.token) == ("0", count + 1)


async def test_lease_while_waiting(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    """Cancel around the moment at which the item arrives."""

    async def once(stepped: Stepped) -> None:
        waiting_name = f"{name}-waiting-{stepped.step}"
        async with make_queue(name=waiting_name) as queue, make_queue(name=waiting_name) as other:
            waiting = asyncio.create_task(queue.lease(60))
            await blocked(redis, 1)
            await other.add_item(Item(b"x", id="x"))
            for _ in range(stepped.step):
                if not waiting.done():
                    await turn()
            stepped.finished = not waiting.cancel()
            [mine] = await asyncio.gather(waiting, return_exceptions=True)
            async with asyncio.timeout(120):
                lease = mine if isinstance(mine, Lease) else await other.lease(60)
            assert isinstance(lease, Lease)
            assert lease.id == "x"
            assert await other.complete(lease)
        assert not await left_over(redis, waiting_name)

    await at_every_step(once)


@pytest.mark.parametrize("call", ["complete", "renew", "release"])
@pytest.mark.parametrize("warm", [False, True])
async def test_a_call_with_a_lease(
    make_queue: MakeQueue, redis: Redis, name: str, call: str, *, warm: bool
) -> None:
    """The other callers of the trip are answered; repeating the call shows whether it was applied."""

    async def once(stepped: Stepped) -> None:
        async with make_queue(name=f"{name}-{call}-{warm}-{stepped.step}") as queue:

            def ask(lease: Lease) -> Coroutine[Any, Any, bool]:
                if call == "renew":
                    return queue.renew(lease, 600)
                return queue.complete(lease) if call == "complete" else queue.release(lease)

            mine, *others = await four_leases(make_queue, queue, warm=warm)
            asked = [asyncio.create_task(ask(lease)) for lease in others]
            answer = await stepped(ask(mine))
            assert answer in (None, True)
            assert await asyncio.gather(*asked) == [True] * 3
            found = await audit(redis, queue.name)
            if call == "renew":
                assert all(lease.remaining() > 300 for lease in others)
                assert len(found.leased) == 4
                assert await ask(mine) is True
            else:
                applied = mine.id.encode() not in found.leased
                assert applied or not answer
                assert await ask(mine) is not applied
            ends = {"complete": (0, 0, 0, 0), "renew": (0, 4, 0, 0), "release": (4, 0, 0, 0)}
            assert await queue.counts() == ends[call]
        if call == "complete":
            assert not await left_over(redis, queue.name)

    await at_every_step(once)


@pytest.mark.parametrize("state", ["connecting", "idle", "waiting", "busy"])
async def test_close(make_queue: MakeQueue, redis: Redis, name: str, state: str) -> None:
    """Closing continues; another call of close waits for its end."""

    async def once(stepped: Stepped) -> None:
        queue = make_queue(name=f"{name}-close-{state}-{stepped.step}")
        calls: list[asyncio.Task[Any]] = []
        if state != "connecting":
            await queue.counts()
        if state in ("connecting", "busy"):
            calls = [asyncio.create_task(queue.add_item(Item(b"x"))) for _ in range(3)]
        if state == "waiting":
            calls = [asyncio.create_task(queue.lease(60)) for _ in range(3)]
            await blocked(redis, 1)
        await asyncio.sleep(0)
        await stepped(queue.close())
        if stepped.step:  # before that, it had not begun
            with pytest.raises(QueueClosed):
                await queue.counts()
        await queue.close()
        async with asyncio.timeout(120):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(end is True or isinstance(end, QueueClosed) for end in ends), ends
        assert len((await audit(redis, queue.name)).waiting) == ends.count(True)
        assert await redis.zcard(f"{queue.name}:sessions") == 0
        await alone(redis)

    await at_every_step(once)


async def test_a_caller_cancelled_when_the_connection_is_lost_leaves_no_unread_error(
    make_queue: MakeQueue, proxy: Proxy, name: str
) -> None:
    """The error arrives, and the caller is cancelled before it gets it: no exception is reported later."""

    async def once(stepped: Stepped) -> None:
        async with make_queue(name=f"{name}-going-{stepped.step}", url=proxy.url) as queue:
            await queue.add_item(Item(b"x"))
            proxy.commands.clear()
            calls = [
                queue.add_item(Item(b"x")),
                queue.lease(60),
                queue.counts(),
                queue.lease(60, block=False),
            ]
            tasks = [asyncio.create_task(call) for call in calls]
            await eventually("they are sent", lambda: proxy.commands.count(b"EVALSHA") >= 2)
            cutting = asyncio.create_task(proxy.cut())
            for _ in range(stepped.step):
                if not all(task.done() for task in tasks):
                    await turn()
            stepped.finished = not any(task.cancel() for task in tasks)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await cutting
            for end in ends:
                if isinstance(end, BaseException):
                    assert isinstance(end, (ConnectionLost, asyncio.CancelledError)), end

    for _ in range(3):
        await at_every_step(once)


@pytest.mark.parametrize("call", ["add_item", "lease", "waiting", "counts", "complete_many"])
async def test_a_caller_cancelled_when_an_error_arrives_leaves_no_unread_error(
    queue: AsyncWorkQueue, call: str
) -> None:
    """The reply is an error, and then the caller is cancelled: no exception is reported later."""
    await queue.add_items([Item(b"x"), Item(b"x")])
    leases = await queue.lease_many(2, 60)
    calls: dict[str, Coroutine[Any, Any, Any]] = {
        "add_item": queue.add_item(Item(b"x")),
        "lease": queue.lease(60, block=False),
        "waiting": queue.lease(60),
        "counts": queue.counts(),
        "complete_many": queue.complete_many(leases),
    }
    made = calls.pop(call)
    for unused in calls.values():
        unused.close()
    task = asyncio.create_task(made)
    await asyncio.sleep(0)
    future: asyncio.Future[Any] = task._fut_waiter  # type: ignore[attr-defined]  # what it waits for
    future.set_exception(ConnectionLost("cut", maybe_applied=True))
    task.cancel()
    del future
    with pytest.raises(asyncio.CancelledError):
        await task
    del task, made
    gc.collect()


async def four_leases(make_queue: MakeQueue, queue: AsyncWorkQueue, *, warm: bool) -> list[Lease]:
    """Lease four items, over another connection unless `warm`."""
    if warm:
        await queue.add_items([Item(b"x", id=f"{n}") for n in range(4)])
        return await queue.lease_many(4, 60)
    async with make_queue(name=queue.name) as other:
        await other.add_items([Item(b"x", id=f"{n}") for n in range(4)])
        leases = await other.lease_many(4, 60)
    for lease in leases:
        lease._queue = queue
    return leases


async def add_six(make_queue: MakeQueue, queue: AsyncWorkQueue) -> None:
    """Add the items 0 to 5 over another connection."""
    async with make_queue(name=queue.name) as adder:
        await adder.add_items([Item(b"x", id=f"{n}") for n in range(6)])
