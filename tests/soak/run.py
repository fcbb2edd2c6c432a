"""Run a soak: start processes, inject faults, let the work end and check the history."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from leasehold import AsyncWorkQueue
from leasehold.errors import InvalidArgument
from leasehold.testing.history import FinalState, Growth, History, Violation, check, check_memory
from tests.queue.keyspace import audit
from tests.soak.faults import FaultInjector
from tests.soak.jobs import QUEUES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: How long the rest of the work may take after the last fault (s).
DRAIN_SECONDS = 90.0
#: Memory is checked if it was sampled for at least so long (s).
JUDGED_SECONDS = 150.0


@dataclass
class Verdict:
    """The result of a soak."""

    seed: str
    #: How often each fault was injected, and each event is in the history.
    counts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    #: Other problems, one sentence each.
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, Growth] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return not self.violations and not self.wrong


async def soak(
    seconds: float, seed: str, folder: Path, *, workers: int = 5, producers: int = 2, rate: float = 60.0
) -> Verdict:
    """Run a soak and return its verdict.

    Args:
        seconds: How long faults are injected.
        seed: The same seed gives the same faults in the same order, but not at the same instants.
        folder: For the histories, the logs of the processes and the data of the server.
        workers: How many worker processes there are.
        producers: How many processes add items.
        rate: How many items all producers add per second.
    """
    verdict = Verdict(seed)
    faults = FaultInjector(folder, seed, workers=workers, producers=producers, rate=rate)
    try:
        await faults.open()
        await faults.inject(seconds)
        await faults.heal()
        await faults.stop("producer")
        await _drain(faults, verdict)
        await faults.stop("worker")
        finals = await _final_states(faults, verdict)
    finally:
        await faults.close()
    history = await asyncio.to_thread(History.load, folder)
    verdict.violations = await asyncio.to_thread(check, history, *finals)
    verdict.counts = faults.counts
    verdict.wrong += faults.wrong
    verdict.events = Counter(
        f"{event.kind} {event.outcome}" if event.outcome is not None else event.kind
        for event in history.events
        if event.called_at is not None or event.kind in ("begin", "end")
    )
    _judge_memory(faults, verdict)
    return verdict


async def _drain(faults: FaultInjector, verdict: Verdict) -> None:
    """Wait until no work is left, and replace workers that crash."""
    ends = time.monotonic() + DRAIN_SECONDS
    async with _queues(faults) as queues:
        while True:
            counts = {queue.name: await queue.counts() for queue in queues}
            if not any(count.total for count in counts.values()):
                return
            if time.monotonic() > ends:
                left = {name: tuple(count) for name, count in counts.items()}
                verdict.wrong.append(f"after {DRAIN_SECONDS:.0f} s without faults, work is left: {left}")
                return
            await faults.replace()
            await asyncio.sleep(0.2)


async def _final_states(faults: FaultInjector, verdict: Verdict) -> list[FinalState]:
    async with _queues(faults) as queues, Redis.from_url(faults.server.url) as admin:
        for queue in queues:
            try:
                await audit(admin, queue.name)
            except AssertionError as error:
                verdict.wrong.append(f"the keys of {queue.name} do not fit together: {error}")
        return [await FinalState.read(queue) for queue in queues]


@asynccontextmanager
async def _queues(faults: FaultInjector) -> AsyncIterator[list[AsyncWorkQueue]]:
    queues = [AsyncWorkQueue.from_url(faults.server.url, name) for name in QUEUES]
    try:
        yield queues
    finally:
        for queue in queues:
            await queue.close()


def _judge_memory(faults: FaultInjector, verdict: Verdict) -> None:
    for what, samples in faults.memory.items():
        try:
            growth = verdict.memory[what] = check_memory(samples)
        except InvalidArgument:
            continue  # too few samples
        if growth.grows and samples[-1][0] - samples[0][0] >= JUDGED_SECONDS:
            verdict.wrong.append(f"the memory of the {what} grows: {growth}")
