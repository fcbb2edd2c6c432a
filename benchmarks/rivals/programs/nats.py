"""NATS JetStream with a push consumer, which is twice as fast as a pull consumer.

- It is at-least-once: the stream keeps a message until it is acknowledged, and delivers it again after 30 s.
- The stream is in memory, and deletes what is acknowledged (`WORK_QUEUE`), as a queue does.
- Jobs that do nothing run one after the other in the callback, which is the fastest; jobs that sleep run in
  tasks. How many messages the server sends ahead of the acknowledgements is below.
- Many messages are published without waiting for each reply.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType

from benchmarks.rivals.programs import protocol

AHEAD = 1_000


async def open_stream(url: str) -> Any:
    """Connect, and create the stream."""
    client = await nats.connect(f"nats://{url}")
    stream = client.jetstream(publish_async_max_pending=4_000)
    await stream.add_stream(
        name="jobs", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.MEMORY
    )
    return stream


async def produce(url: str) -> None:
    """Publish messages with JSON data."""
    stream = await open_stream(url)

    async def add(number: int, ms: int) -> None:
        await stream.publish("jobs", json.dumps([number, ms]).encode())

    async def add_many(numbers: range, ms: int) -> None:
        replies = [
            await stream.publish_async("jobs", json.dumps([number, ms]).encode()) for number in numbers
        ]
        await asyncio.gather(*replies)

    await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Subscribe, and acknowledge each message after its run."""
    stream = await open_stream(task.url)
    slots = asyncio.Semaphore(task.concurrency or 1)
    running: set[asyncio.Task[None]] = set()

    async def run(message: Any) -> None:
        await protocol.job(*json.loads(message.data))
        await message.ack()

    async def run_beside(message: Any) -> None:
        await slots.acquire()
        one = asyncio.create_task(run(message))
        running.add(one)
        one.add_done_callback(ended)

    def ended(one: asyncio.Task[None]) -> None:
        running.discard(one)
        slots.release()

    callback = run if task.concurrency is None else run_beside
    config = ConsumerConfig(max_ack_pending=AHEAD, ack_wait=30)
    await stream.subscribe("jobs", durable="worker", cb=callback, manual_ack=True, config=config)
    await asyncio.Event().wait()
