"""What waiting costs: commands of an idle waiter, and how many waiters one added item wakes.

A wake is a connection that comes for a lease after an item was added, as the server's MONITOR tells it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.bench import PATIENCE_SECONDS
from benchmarks.measure import SCRIPT_COMMANDS, command_stats, stats_between
from benchmarks.people import crowd, serve
from benchmarks.rows import Row, number_row
from leasehold import Item
from leasehold.scripting.catalogue import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.bench import Bench

#: What a waiter sends, of all that is never called inside a script.
SENT = (*SCRIPT_COMMANDS, "blmove", "ping", "hello", "select", "client|setinfo")
#: Waiters in this process, processes beside it, waiters in each of those.
CROWDS = ((1, 0, 0), (200, 0, 0), (0, 4, 50))
QUICK_CROWDS = ((1, 0, 0), (20, 0, 0), (0, 2, 10))
#: What is sent when the last item is done, for MONITOR to tell.
END = "leasehold benchmark end"


async def run(bench: Bench) -> list[Row]:
    """Measure each crowd by itself, first idle, then with one item at a time."""
    rows: list[Row] = []
    for here, processes, each in QUICK_CROWDS if bench.quick else CROWDS:
        waiters = here + processes * each
        setting: dict[str, int | str] = {"waiters": waiters, "processes": processes or 1}
        name = bench.name("idle")
        async with waiting(bench, name, here, processes, each):
            await bench.blocked(waiters)
            rate = await idle_rate(bench, bench.some(12, 2))
            woken = await wakes(bench, name, waiters)
        rows += [
            number_row("idle", "commands per idle waiter", "leasehold", setting, "1/s", [rate / waiters]),
            number_row("idle", "wakes per item", "leasehold", setting, "wakes", woken),
        ]
        await bench.blocked(0)
        await bench.clear()
    return rows


@asynccontextmanager
async def waiting(bench: Bench, name: str, here: int, processes: int, each: int) -> AsyncIterator[None]:
    """Have so many waiters while the block runs."""
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            stack.callback(crowd(bench.url(), name, each).kill)
        tasks = [asyncio.create_task(serve(bench.url(), name)) for _ in range(here)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def idle_rate(bench: Bench, seconds: float) -> float:
    """Commands per second that all waiters send while nothing happens."""
    before, started = await command_stats(bench), time.perf_counter()
    await asyncio.sleep(seconds)
    between = stats_between(before, await command_stats(bench))
    return sum(between.get(name, (0, 0.0))[0] for name in SENT) / (time.perf_counter() - started)


async def wakes(bench: Bench, name: str, waiters: int) -> list[int]:
    """How many waiters come for each of some items, the next one added when all wait again.

    Now and then an idle waiter happens to ask in that short time, so it is the median that counts.
    """
    async with bench.queue(name) as queue, bench.client() as client, client.monitor() as monitor:
        await queue.counts()
        for _ in range(bench.some(100, 20)):
            item = Item(b"wake")
            await queue.add_item(item)
            await gone(bench, f"{name}:item:{item.id}")
            await bench.blocked(waiters)
        await bench.redis.echo(END)
        seen: list[dict[str, Any]] = []
        async for command in monitor.listen():
            if END in command["command"]:
                return came(seen)
            seen.append(command)
    raise AssertionError("the server stopped telling what it does")


def came(seen: list[dict[str, Any]]) -> list[int]:
    """For each item added: how many connections asked for a lease before the next was added."""
    add, lease = (load()[name].sha.decode() for name in ("add_items", "lease_many"))
    found: list[set[tuple[str, str]]] = []
    for command in seen:
        if add in command["command"]:
            found.append(set())
        elif lease in command["command"] and found:
            found[-1].add((command["client_address"], command["client_port"]))
    return [len(connections) for connections in found]


async def gone(bench: Bench, key: str) -> None:
    """Wait until a key is no longer there."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await bench.redis.exists(key):  # noqa: ASYNC110 - nobody could tell us
            await asyncio.sleep(0.001)
