"""Queues, dead letters, flow runs and workers in masses: the server copies one that clients made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue import Item
from tests.dashboard.fleets import register
from tests.plans.run_hashes import chain

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

#: How many copies one script makes.
_STEP = 5_000
#: Copies that are older than the first one.
_DEAD = """
local at = redis.call('ZSCORE', KEYS[1] .. ':dead', 'first')
for number = ARGV[1], ARGV[2] do
  local id = 'copy-' .. number
  redis.call('COPY', KEYS[1] .. ':dead:first', KEYS[1] .. ':dead:' .. id)
  redis.call('ZADD', KEYS[1] .. ':dead', at - number, id)
end
"""
_RUNS = """
local base = KEYS[1] .. ':runs:'
local at = redis.call('ZSCORE', base .. 'active', 'first')
for number = ARGV[1], ARGV[2] do
  local id = 'copy-' .. number
  redis.call('COPY', KEYS[1] .. ':run:first', KEYS[1] .. ':run:' .. id)
  redis.call('ZADD', base .. 'active', at - number, id)
  redis.call('ZADD', base .. 'ends', '+inf', id)
  redis.call('ZADD', base .. 'by:access\\0size\\0001', '+inf', id)
end
"""
_WORKERS = """
local session = redis.call('ZRANGE', KEYS[1] .. ':heartbeats', 0, 0)[1]
local about = redis.call('HGET', KEYS[1] .. ':workers', session)
local ends = redis.call('ZSCORE', KEYS[1] .. ':heartbeats', session)
for number = ARGV[1], ARGV[2] do
  local id = string.format('%032d', number)
  redis.call('HSET', KEYS[1] .. ':workers', id, (string.gsub(about, 'first', id)))
  redis.call('ZADD', KEYS[1] .. ':heartbeats', ends, id)
end
"""


async def _copy(redis: Redis, script: str, queue: AsyncWorkQueue, count: int) -> None:
    for at in range(1, count, _STEP):
        await redis.eval(script, 1, queue.name, at, min(at + _STEP, count) - 1)


async def add_dead_letters(redis: Redis, queue: AsyncWorkQueue, count: int, error: str) -> None:
    """Add so many dead letters with one error."""
    await queue.add_item(Item(b'{"task": "send", "args": {"to": "ann"}}', "first"))
    (lease,) = await queue.lease_many(1, 60, timeout=10)
    await queue.fail(lease, error)
    await _copy(redis, _DEAD, queue, count)


async def add_flow_runs(redis: Redis, queue: AsyncWorkQueue, count: int) -> None:
    """Add so many flow runs of a flow `access` that waits in its first stage; the attribute `size` is 1."""
    plan = chain(queue.name, "check", "ask", "decide", "tell", size=b"1")
    await queue.flow_runs.start(plan, "first")
    await _copy(redis, _RUNS, queue, count)


async def add_workers(redis: Redis, url: str, queue: AsyncWorkQueue, count: int) -> None:
    """Register so many workers."""
    running = [[f"mail-{number}", "send_mail", 1e12] for number in range(10)]
    await register(url, queue.name, "first", running=running)
    await _copy(redis, _WORKERS, queue, count)


async def add_queues(redis: Redis, count: int) -> None:
    """Add so many queues with an item each, as clients of other libraries do."""
    for at in range(0, count, _STEP):
        async with redis.pipeline(transaction=False) as pipe:
            for number in range(at, min(at + _STEP, count)):
                pipe.set(f"queue-{number:05}:item:one", b"data")
                pipe.lpush(f"queue-{number:05}:queue", b"one")
            await pipe.execute()
