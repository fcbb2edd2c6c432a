"""The whole cycle, add, lease and complete of one item: alone, and by up to 1,000 coroutines."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.contestants import CEILING_ITEMS, Ours, Raw
from benchmarks.measure import Sample, interleaved, metered
from benchmarks.rows import Row, Setting, speed_row

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: Coroutines -> items in a round.
ITEMS = {1: 300, 10: 2_000, 100: 5_000, 1_000: 10_000}
PAYLOADS = (0, 100, 10_000)
PLAIN_PAYLOAD = 100


async def run(bench: Bench) -> list[Row]:
    """Measure, with the references in every round."""
    rows: list[Row] = []
    for payload in PAYLOADS:
        rows += await with_payload(bench, payload)
        await bench.clear()
    return rows


async def with_payload(bench: Bench, payload: int) -> list[Row]:
    """All contestants with items of so many bytes."""
    plain = payload == PLAIN_PAYLOAD
    rounds = bench.some(7 if plain else 5, 2)
    async with AsyncExitStack() as stack:
        contestants: list[tuple[Ours | Raw, Setting, int]] = []
        for per_call, items in ((1, ITEMS[1]), (CEILING_ITEMS, ITEMS[1_000])):
            client = await stack.enter_async_context(bench.client())
            raw = Raw(client, bench.name("cycle"), per_call)
            await raw.load()
            contestants.append((raw, {"payload": payload}, scaled(bench, items, payload, least=per_call)))
        for coroutines, items in ITEMS.items():
            if plain or coroutines in (1, 1_000):
                queue = await stack.enter_async_context(bench.queue(bench.name("cycle")))
                setting: Setting = {"payload": payload, "coroutines": coroutines}
                most = scaled(bench, items, payload, least=2 * coroutines)
                contestants.append((Ours(queue, coroutines), setting, most))
        found: list[list[Sample]] = [[] for _ in contestants]
        turns = [
            partial(turn, bench, who, items, payload, samples)
            for (who, _, items), samples in zip(contestants, found, strict=True)
        ]
        await interleaved(rounds, turns)
    return [
        speed_row("cycle", "cycle", who.who, setting, samples)
        for (who, setting, _), samples in zip(contestants, found, strict=True)
    ]


def scaled(bench: Bench, items: int, payload: int, *, least: int) -> int:
    """Fewer items where they are large, or where time is short."""
    return max(least, items // (4 if payload > 1_000 else 1) // bench.some(1, 10))


async def turn(bench: Bench, who: Ours | Raw, items: int, payload: int, samples: list[Sample]) -> None:
    """One round of one contestant."""
    if isinstance(who, Raw):
        await who.prepare_cycle(items, payload)
    async with metered(bench, items) as sample:
        await who.cycle(items, payload)
    samples.append(sample)
