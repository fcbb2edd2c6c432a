"""`leasequeue events`."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.cli.program import started, usage_error
from tests.queue.asking import take, until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.cli.program import Leasequeue


async def test_kept_events_are_switched_on_printed_and_switched_off(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    missing = await leasequeue("events", queue.name)
    assert (missing.code, missing.out) == (2, "")
    assert "keeps no events: `leasequeue events" in missing.error
    assert (await leasequeue("events", queue.name, "--keep", "100")).error == (
        f"{queue.name} keeps about 100 events from now on"
    )
    await queue.add_item(Item(b"12", id="a"))
    await queue.complete(await take(queue))
    lines = (await leasequeue("events", queue.name)).table
    assert [(line[1], line[2]) for line in lines] == [("added", "a"), ("leased", "a"), ("completed", "a")]
    assert lines[0][0].endswith("Z")
    assert lines[0][3:] == ["size=2"]
    chosen = await leasequeue("events", queue.name, "--json", "--kind", "leased", "--id", "a")
    assert chosen.document["holder"] == queue.session
    assert chosen.document["due"] > chosen.document["at"]
    rest = await leasequeue("events", queue.name, "--json", "--since", str(chosen.document["number"]))
    assert rest.document["what"] == "completed"
    assert (await leasequeue("events", queue.name, "--stop")).code == 0
    assert (await leasequeue("events", queue.name)).code == 2


@pytest.mark.slow
async def test_published_events_are_printed_until_it_is_stopped(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    assert (await leasequeue("events", queue.name, "--publish")).code == 0
    command = ("events", queue.name, "--live", "--json", "--url", redis_url)
    async with started(*command) as process:
        assert process.stdout

        async def subscribed() -> bool:
            [(_, count)] = await redis.pubsub_numsub(f"{queue.name}:live")
            return int(count) > 0

        await until("the command reads", subscribed)
        await queue.add_item(Item(b"12", id="a"))
        await queue.complete(await take(queue), result=b"done", keep_result=None)
        events = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert [event["what"] for event in events] == ["added", "leased", "completed"]
        assert (events[2]["result"], events[2]["result_encoding"]) == ("done", "utf-8")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_switches_are_used_alone(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("events", queue.name, "--publish", "--live")
    assert "--stop, and alone" in usage_error(outcome)
