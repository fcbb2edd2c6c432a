"""The soak: processes at work, harm at random, and in the end the question whether all was right."""

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
from tests.soak.conductor import Conductor
from tests.soak.jobs import QUEUES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: How long the rest of the work may take when there is no more harm.
DRAIN_SECONDS = 90.0
#: Memory is judged when it was watched for so long, in seconds.
JUDGED_SECONDS = 150.0


@dataclass
class Verdict:
    """What came out of a soak."""

    seed: str
    #: What happened how often: acts of the conductor, and events of the history.
    did: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    #: Whatever else was not as it should be, a sentence each.
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, Growth] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return not self.violations and not self.wrong


async def soak(
    seconds: float, seed: str, folder: Path, *, workers: int = 5, producers: int = 2, rate: float = 60.0
) -> Verdict:
    """Soak for so long.

    Args:
        seconds: How long harm is done.
        seed: What is drawn from it: the same acts in the same order. When they come is up to the machine.
        folder: Where the histories go, what the processes say, and the server's data.
        workers: How many worker processes there are.
        producers: How many processes add items.
        rate: How many items they add a second, together.
    """
    verdict = Verdict(seed)
    conductor = Conductor(folder, seed, workers=workers, producers=producers, rate=rate)
    try:
        await conductor.open()
        await conductor.play(seconds)
        await conductor.let_all_go_on()
        await conductor.dismiss("producer")
        await _drain(conductor, verdict)
        await conductor.dismiss("worker")
        finals = await _final_states(conductor, verdict)
    finally:
        await conductor.close()
    history = await asyncio.to_thread(History.load, folder)
    verdict.violations = await asyncio.to_thread(check, history, *finals)
    verdict.did = conductor.did
    verdict.wrong += conductor.wrong
    verdict.events = Counter(
        f"{event.kind} {event.outcome}" if event.outcome is not None else event.kind
        for event in history.events
        if event.called_at is not None or event.kind in ("begin", "end")
    )
    _judge_memory(conductor, verdict)
    return verdict


async def _drain(conductor: Conductor, verdict: Verdict) -> None:
    """Wait until all the work is done; those who die of it are replaced."""
    ends = time.monotonic() + DRAIN_SECONDS
    async with _queues(conductor) as queues:
        while True:
            counts = {queue.name: await queue.counts() for queue in queues}
            if not any(count.total for count in counts.values()):
                return
            if time.monotonic() > ends:
                left = {name: tuple(count) for name, count in counts.items()}
                verdict.wrong.append(f"after {DRAIN_SECONDS:.0f} s in peace the work is not done: {left}")
                return
            await conductor.replace()
            await asyncio.sleep(0.2)


async def _final_states(conductor: Conductor, verdict: Verdict) -> list[FinalState]:
    async with _queues(conductor) as queues, Redis.from_url(conductor.server.url) as admin:
        for queue in queues:
            try:
                await audit(admin, queue.name)
            except AssertionError as error:
                verdict.wrong.append(f"the keys of {queue.name} do not fit together: {error}")
        return [await FinalState.read(queue) for queue in queues]


@asynccontextmanager
async def _queues(conductor: Conductor) -> AsyncIterator[list[AsyncWorkQueue]]:
    queues = [AsyncWorkQueue.from_url(conductor.server.url, name) for name in QUEUES]
    try:
        yield queues
    finally:
        for queue in queues:
            await queue.close()


def _judge_memory(conductor: Conductor, verdict: Verdict) -> None:
    for what, samples in conductor.memory.items():
        try:
            growth = verdict.memory[what] = check_memory(samples)
        except InvalidArgument:
            continue  # too short, or a system that does not tell
        if growth.grows and samples[-1][0] - samples[0][0] >= JUDGED_SECONDS:
            verdict.wrong.append(f"the memory of the {what} grows: {growth}")
