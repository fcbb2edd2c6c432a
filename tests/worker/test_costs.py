"""What each worker does all the time costs the server the same, however many others there are."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.queue import engines_of
from leasequeue.worker.maintenance import Maintenance
from tests.queue.keyspace import calls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

FAR = 1 << 50
#: The commands that are sent for each session, or each worker, where a script reads all of them.
COUNTED = ("llen", "zscore", "hget", "lrange", "exists", "zrange", "get", "zcard", "hmget", "hexists")
#: What a worker does each second or each minute.
CALLS: dict[str, dict[str, Any]] = {
    "check_waiting": {},
    "clean_turn": {"deep": 0, "every_ms": 60_000},
    "leave": {"stays": 1, "word": b""},
    "register": {"keep_ms": 10_000, "lease_ms": b"", "word": b"", "before": b""},
    "worker_beat": {"alive_ms": 30_000, "first": 1, "about": b"{}"},
    "counts": {},
}


async def register(redis: Redis, name: str, count: int) -> None:
    """Register so many workers, which also wait for items."""
    about = json.dumps({"name": "host/1", "connections": [7], "server": "x"})
    names = [f"lh:host/{number}/{number:016x}" for number in range(count)]
    await redis.zadd(f"{name}:sessions", dict.fromkeys(names, FAR))
    await redis.zadd(f"{name}:heartbeats", dict.fromkeys(names, FAR))
    await redis.hset(f"{name}:workers", mapping=dict.fromkeys(names, about))


@pytest.fixture
async def tidied(redis: Redis, name: str) -> AsyncIterator[None]:
    """Remove the registrations at the end."""
    yield
    await redis.delete(*(f"{name}:{key}" for key in ("sessions", "heartbeats", "workers", "cleaner")))


@pytest.mark.usefixtures("tidied")
@pytest.mark.parametrize("script", CALLS)
async def test_a_call_sends_as_many_commands_with_a_thousand_workers_as_with_ten(
    queue: AsyncWorkQueue, redis: Redis, name: str, script: str
) -> None:
    await queue.counts()
    engine = engines_of(queue).running
    assert engine is not None
    sent = []
    for count in (10, 1000):
        await register(redis, name, count)
        await engine.run(script, **CALLS[script])
        before = await calls(redis, *COUNTED)
        await engine.run(script, **CALLS[script])
        sent.append(await calls(redis, *COUNTED) - before)
    assert sent[0] == sent[1] > 0


@pytest.mark.usefixtures("tidied")
async def test_one_of_many_workers_cleans(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another one continues when that has missed its turns."""
    queues = [make_queue() for _ in range(8)]
    cleaned: Counter[str] = Counter()

    async def clean_once(_: Maintenance, queue: AsyncWorkQueue, *, deep: bool) -> None:
        assert not deep
        cleaned[queue.session] += 1

    monkeypatch.setattr(Maintenance, "clean_once", clean_once)
    workers = [Maintenance(clean_every=60, keep_dead=None, light_per_deep=float("inf")) for _ in queues]
    for _ in range(2):
        for queue, worker in zip(queues, workers, strict=True):
            await worker._clean(queue)
    assert cleaned == {queues[0].session: 2}
    await redis.delete(f"{name}:cleaner")
    for queue, worker in [*zip(queues, workers, strict=True)][1:]:
        await worker._clean(queue)
    assert cleaned == {queues[0].session: 2, queues[1].session: 1}


@pytest.mark.usefixtures("tidied")
async def test_a_worker_that_cannot_clean_leaves_it_to_others(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue()
    tried = 0

    async def clean_once(_: Maintenance, queue: AsyncWorkQueue, *, deep: bool) -> None:  # noqa: ARG001 - as there
        nonlocal tried
        tried += 1
        raise ModuleNotFoundError

    monkeypatch.setattr(Maintenance, "clean_once", clean_once)
    worker = Maintenance(clean_every=60, keep_dead=None, light_per_deep=float("inf"))
    for _ in range(3):
        await worker._clean(queue)
        await redis.pexpire(f"{name}:cleaner", 120_000)
    assert tried == 1
    await worker._clean(queue)
    assert tried == 2
