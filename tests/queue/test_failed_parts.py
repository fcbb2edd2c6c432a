"""A bug in a task of a queue object: who waits for it gets an error, or the task continues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import ScriptFailed
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.queue.pushes.listener import Listener
from leasequeue.queue.pushes.result_waits import ResultWaits
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.wire.subscriptions import Subscriptions
from tests.eventually import eventually
from tests.queue.asking import command, until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue


class Bug(Exception):
    """What the tasks fail with."""


def fail(*_: object, **__: object) -> NoReturn:
    """Fail, in place of a function."""
    raise Bug("a bug")


async def fail_when_called(*_: object, **__: object) -> NoReturn:
    """Fail, in place of an async function."""
    fail()


@pytest.mark.parametrize("function", ["_connect", "_send_move"])
async def test_who_waits_for_an_item_gets_the_error_of_listening(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Listener, function, fail_when_called if function == "_connect" else fail)
        async with asyncio.timeout(120):
            with pytest.raises(ScriptFailed, match="a bug") as caught:
                await queue.lease(30)
    assert isinstance(caught.value.__cause__, Bug)
    leasing = asyncio.create_task(queue.lease(30))
    await queue.add_item(Item(b"x"))
    async with asyncio.timeout(120):
        assert (lease := await leasing) is not None
    assert await queue.complete(lease)


async def test_who_leases_gets_the_error_of_reading_the_reply(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LeaseDispatcher, "_distribute", fail)
        async with asyncio.timeout(120):
            with pytest.raises(Bug):
                await queue.lease(30, block=False)
    assert await queue.lease(30, block=False) is None


async def test_who_waits_for_a_result_gets_the_error_of_asking(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    monkeypatch.setattr(ResultWaits, "_ask_for", fail_when_called)
    with pytest.raises(ScriptFailed, match="a bug"):
        await queue.results.wait("a", timeout=120)


async def test_who_follows_events_gets_the_error_of_connecting(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.events.publish()
    monkeypatch.setattr(Subscriptions, "_opened", fail_when_called)
    async with asyncio.timeout(120):
        with pytest.raises(ScriptFailed, match="a bug"):
            async for _ in queue.events(live=True):
                pass


async def test_a_subscriber_that_fails_leaves_the_repair_of_the_connection_to_the_others(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy
) -> None:
    queue = make_queue(url=proxy.url)
    heard: list[bytes] = []
    engine = engines_of(queue).running or await opened(queue)
    wrong = engine.route.subscribe(b"wrong", heard.append, fail)
    right = engine.route.subscribe(b"right", heard.append, lambda: None)
    await asyncio.gather(wrong.confirmed(), right.confirmed())
    await proxy.cut()

    async def arrives() -> bool:
        return int(await redis.publish("right", "x")) == 1

    await until("the subscription is repaired", arrives)
    await eventually("the message has come", lambda: heard == [b"x"])
    wrong.close()
    right.close()


async def test_receiving_pushes_is_tried_again_after_a_bug(queue: AsyncWorkQueue, redis: Redis) -> None:
    heard: list[bytes] = []
    tried = asyncio.Event()

    async def fail_once(*_: Any, **__: Any) -> NoReturn:
        patch.undo()
        tried.set()
        raise Bug

    patch = pytest.MonkeyPatch()
    patch.setattr(Subscriptions, "_opened", fail_once)
    end = engine_of(queue).pushes.follow("cancel", heard.append)
    await tried.wait()

    async def arrives() -> bool:
        return int(await command(redis, "PUBLISH", f"{queue.name}:push:{queue.session}", "cancel x")) == 1

    await until("the channel is received", arrives)
    await eventually("the message has come", lambda: heard == [b"x"])
    end()


async def opened(queue: AsyncWorkQueue) -> Any:
    """Return the engine of a queue after its first call."""
    await queue.counts()
    return engines_of(queue).running
