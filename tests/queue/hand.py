"""Random calls of a queue, for the tests that replay its events."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Failure, Item, Lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.queue.fixtures import Clock


class Hand:
    """Makes random calls of a queue, and moves the clock."""

    def __init__(self, queue: AsyncWorkQueue, clock: Clock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.dice = random.Random(seed)
        self.held: list[Lease] = []
        self.acts: list[Callable[[], Awaitable[None]]]
        self.acts = [self.add, self.lease, self.lease, self.complete, self.complete, self.renew, self.release]
        self.acts += [self.fail, self.wait, self.mend]

    async def act(self) -> None:
        """Make one call."""
        await self.dice.choice(self.acts)()

    def some(self, most: int = 30) -> list[Lease]:
        """Pick current and past leases; some are used again."""
        picked = self.dice.sample(self.held, min(len(self.held), self.dice.randint(0, most)))
        if self.dice.random() < 0.8:
            self.held = [lease for lease in self.held if lease not in picked]
        del self.held[:-200]
        return picked

    async def add(self) -> None:
        items = [Item(b"x" * self.dice.randint(0, 9), id=f"{self.dice.randint(0, 300)}")]
        if self.dice.random() < 0.1:
            await self.queue.add_unique_item(items[0])
            return
        items += [Item(b"x", id=f"{self.dice.randint(0, 300)}") for _ in range(self.dice.randint(0, 40))]
        await self.queue.add_items(items, delay=self.dice.choice([0, 0, 60, 600]))

    async def lease(self) -> None:
        self.held += await self.queue.lease_many(
            self.dice.randint(1, 40), self.dice.randint(60, 600), block=False
        )

    async def complete(self) -> None:
        await self.queue.complete_many(self.some(), fenced=self.dice.random() < 0.2)

    async def renew(self) -> None:
        await self.queue.renew_many(self.some(), self.dice.randint(60, 900))

    async def release(self) -> None:
        delay = self.dice.choice([0, 0, 120])
        await self.queue.release_many(self.some(10), delay=delay, front=self.dice.random() < 0.5)

    async def fail(self) -> None:
        await self.queue.fail_many(
            [Failure(lease, "no", self.dice.choice([0, 60, None])) for lease in self.some(10)]
        )

    async def wait(self) -> None:
        self.clock.now += self.dice.choice([0.001, 1, 30, 300])

    async def mend(self) -> None:
        letters = self.queue.dead_letters
        if self.dice.random() < 0.5:
            await letters.requeue(*{f"{self.dice.randint(0, 300)}" for _ in range(20)})
        elif self.dice.random() < 0.5:
            await letters.drop(*{f"{self.dice.randint(0, 300)}" for _ in range(5)})
        else:
            await self.queue.light_clean()


class ControllingHand(Hand):
    """Also cancels, replaces, prioritises, limits, pauses and purges, and fails workers."""

    def __init__(self, queue: AsyncWorkQueue, clock: Clock, seed: int) -> None:
        super().__init__(queue, clock, seed)
        self.acts += [self.add_some, self.add_some, self.replace, self.cancel, self.report, self.switch]
        self.acts += [self.promote]
        self.acts += [self.clear, self.fail_holder]

    def ids(self, most: int) -> list[str]:
        """Pick ids."""
        return [f"{self.dice.randint(0, 300)}" for _ in range(self.dice.randint(1, most))]

    async def add_some(self) -> None:
        level, group = self.dice.choice([0, 0, 1, -1]), self.dice.choice([None, "a", "b"])
        items = [Item(b"x" * self.dice.randint(0, 9), id=id_) for id_ in self.ids(20)]
        expires_in = self.dice.choice([None, None, 100])
        await self.queue.add_items(items, priority=level, group=group, expires_in=expires_in)

    async def replace(self) -> None:
        items = [Item(b"y" * self.dice.randint(0, 9), id=id_) for id_ in self.ids(20)]
        delay, level = self.dice.choice([0, 0, 60]), self.dice.choice([0, 1])
        await self.queue.add_items(items, delay=delay, priority=level, replace=True)

    async def cancel(self) -> None:
        await self.queue.cancel_many(self.ids(5))

    async def promote(self) -> None:
        for one in await self.queue.inspect("scheduled", count=2, data=False):
            await self.queue.promote(one.id)

    async def report(self) -> None:
        rows = [(lease.id.encode(), b"%d" % lease.token, b"50") for lease in self.some(5)]
        if rows:
            await self.queue._engine().many("progress", rows)

    async def switch(self) -> None:
        group = self.dice.choice([None, "a"])
        if self.dice.random() < 0.5:
            await self.queue.pause(reason="it is full", for_=self.dice.choice([None, 30]), group=group)
        else:
            await self.queue.resume(group=None)
            await self.queue.resume(group="a")
        if self.dice.random() < 0.5:
            await self.queue.limits.set(concurrency=self.dice.randint(5, 50), group=group)

    async def clear(self) -> None:
        if self.dice.random() < 0.1:
            await self.queue.admin.purge(scheduled=self.dice.random() < 0.5, dead=self.dice.random() < 0.5)

    async def fail_holder(self) -> None:
        """Register this process as a worker, and let another one find that it has gone."""
        if self.dice.random() < 0.8:
            return
        engine, session = self.queue._engine(), self.queue.session.encode()
        await engine.run("worker_beat", alive_ms=1, first=1, about=b'{"name":"host/1"}')
        rows = [lease.id.encode() for lease in self.held]
        await engine.run("fail_session", rows[:500], worker=session, expired=0, connections=b"", ends=1)
