"""One key or entry of a queue is deleted, duplicated or changed at random: all invariants hold again.

One cycle of cleaning must repair it: what the workers of a queue do by themselves, or `fsck`. Then the queue
is emptied: no item is lost whose data exists, and none is completed twice. The same under load, with real
clients. The tests draw the same steps in each run; on a failure they show them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from pprint import pformat
from random import Random
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, LeasequeueError
from leasequeue.views import CleanReport
from tests.lua.space import NOW, Space, items_of
from tests.queue.asking import until
from tests.queue.keyspace import glob
from tests.stateful.corruption import Corruption, violations
from tests.stateful.leftovers import Drawn, draw, dumped, furnish, restore
from tests.stateful.recovery import Recovery, View

if TYPE_CHECKING:
    from leasequeue import Lease

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

#: How many states are drawn, and how often one key of each is corrupted.
SMALL, LARGE = (4, 10), (50, 100)


@pytest.mark.slow
@pytest.mark.seed("RWQ-G2")
@pytest.mark.parametrize("steps", [40, pytest.param(5_000, marks=pytest.mark.long)])
async def test_no_item_is_lost_or_doubled_under_load(redis_url: str, name: str, steps: int) -> None:
    async with Redis.from_url(redis_url) as client:
        load = Load(Space(client, name), redis_url, Random(steps))
        async with asyncio.timeout(300 + steps / 5):
            await load.run(steps)
        assert load.added - {*load.completed} - load.uncertain == set(), "each was completed"
        assert {item_id: count for item_id, count in load.completed.items() if count > 1} == {}


@pytest.mark.slow
@pytest.mark.seed("RWQ-G2", "RWQ-O14")
@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["few", "thousands"]
)
def test_all_invariants_hold_again_after_any_corruption(
    redis_url: str, name: str, size: tuple[int, int]
) -> None:
    failures = asyncio.run(_corrupt_all(redis_url, name, *size))
    if failures:
        shown = "\n\n".join(sorted(failures, key=len)[:3])
        pytest.fail(
            f"{len(failures)} of {size[0] * size[1]} have failed; the shortest:\n{shown}", pytrace=False
        )


@pytest.mark.slow
def test_all_invariants_hold_again_after_any_key_was_lost(redis_url: str, name: str) -> None:
    """Of a controlled queue with items in all places."""
    failures = asyncio.run(_lose_each_key(redis_url, name))
    assert not failures, "\n\n".join(failures[:3])


async def _lose_each_key(url: str, name: str) -> list[str]:
    async with Redis.from_url(url) as client:
        cases = Cases(Space(client, name), url)
        await fill_all_places(cases.space)
        state = Drawn(NOW, False, await dumped(cases.space, cases.pattern), [])
        assert {
            b"lanes",
            b"held",
            b"levels",
            b"turns:49",
            b"running:g",
            b"promoted",
            b"queue",
        } < state.keys.keys()
        keys = [key.decode() for key in state.keys if not key.startswith((b"item:", b"dead:"))]
        found = [await cases.failure(state, key, checks=checks) for key in keys for checks in (False, True)]
        await cases.close()
    return [one for one in found if one]


async def fill_all_places(space: Space) -> None:
    """Bring a queue with limits into a state with items in all places."""
    await space.run("set_limits", [("concurrency/*", 3), ("concurrency", 50), ("rate/h", "1000:9")])
    rows: list[tuple[object, ...]] = [
        (f"{group}{number}", "data", 0, f'0:{{"group":"{group}","level":{number % 2}}}')
        for number in range(6)
        for group in "gh"
    ]
    rows += [(f"p{number}", "data", 0, 0) for number in range(6)]
    rows += [("late", "data", 5_000, '0:{"group":"g"}'), ("old", "data", 0, '0:{"expires_in":9000}')]
    rows += [("window", "data", 0, '0:{"dedupe":60000}'), ("cancelled", "data", 0, 0)]
    assert await space.run("add_items", rows) == [1] * len(rows)
    dying, retried, held, *_ = items_of(await space.run("lease_many", [(9, 60_000)]))
    await space.run(
        "fail_many", [(dying.id, dying.token, -1, "why"), (retried.id, retried.token, 4_000, "why")]
    )
    await space.run("progress", [(held.id, held.token, '"half"')])
    await space.run("cancel_many", [("cancelled", 60_000)])
    await space.run("register", session="lh:asleep", keep_ms=60_000)


async def _corrupt_all(url: str, name: str, states: int, times: int) -> list[str]:
    failures: list[str] = []
    async with Redis.from_url(url) as client:
        cases = Cases(Space(client, name), url)
        for number in range(states):
            drawn = await asyncio.to_thread(draw, url, number)
            state = await furnish(cases.space, cases.pattern, drawn, Random(number))
            for seed in range(times):
                random = Random(f"{number} {seed}")
                checks = random.random() < 0.5
                failure = await cases.failure(state, random, checks=checks)
                failures += [f"State {number}, seed {seed}: {failure}"] if failure else []
        await cases.close()
    return failures


class Cases:
    """Corrupts states, has them repaired, and recovers them.

    Args:
        space: The keys of the queue.
        url: The server.
    """

    def __init__(self, space: Space, url: str) -> None:
        self.space = space
        self.pattern = glob(space.prefix) + b":*"
        self.recovery = Recovery(space, url)
        self._now = 0
        self._queue = AsyncWorkQueue.from_url(url, space.prefix, clock=lambda: self._now / 1000)

    async def close(self) -> None:
        """Close the queues."""
        await self._queue.close()
        await self.recovery.close()

    async def failure(self, state: Drawn, lost: str | Random, *, checks: bool) -> str:
        """Delete a key or corrupt what is drawn; return what is wrong after the repair; empty: nothing."""
        self._now = state.now + 1  # what was leased before is older than the cleaning
        await restore(self.space, self.pattern, state)
        random = lost if isinstance(lost, Random) else Random(lost)
        corruption = Corruption(self.space, random, state.now, types=checks)
        await (corruption.delete([lost]) if isinstance(lost, str) else corruption.step())
        before = View(await self.space.snapshot())
        try:
            report = await self._repair(checks=checks)
            found = View(await self.space.snapshot())
            problems = [*violations(found, self._now, waits=not checks)]
            problems += await self._lost(before, found)
            again = await self._queue.admin.fsck() if checks else CleanReport()
            problems += [f"another check repairs {one}" for one in again.findings if one.is_repaired]
            for key in [key for key in found.keys if key.startswith("lost:")]:
                await self.space.redis.unlink(self.space.key(key))
            problems += await self.recovery.problems(state, found, found, None)
        except LeasequeueError as error:
            problems, report = [f"a call raised {error!r}"], None
        if not problems:
            return ""
        lines = [f"By {'fsck' if checks else 'cleaning'}:", *corruption.sent]
        return "\n".join(
            [*lines, *(f"  - {one}" for one in problems), str(report), pformat(before.keys, width=140)]
        )

    async def _repair(self, *, checks: bool) -> CleanReport:
        if checks:
            return await self._queue.admin.fsck()
        return await self._queue.light_clean() + await self._queue.deep_clean()

    async def _lost(self, before: View, found: View) -> list[str]:
        gone = {name for name, data in before.items.items() if isinstance(data, str)} - found.items.keys()
        return [f"the repair has removed the data of {gone}"] if gone else []


class Load:
    """Real clients of a queue that is corrupted and cleaned at the same time.

    Args:
        space: The keys of the queue.
        url: The server.
        random: Draws what is corrupted.
    """

    def __init__(self, space: Space, url: str, random: Random) -> None:
        self.space = space
        self._url = url
        self._corruption = Corruption(space, random, 0, types=False, data=False, far=500)
        self._corrupts = self._works = True
        self.added: set[str] = set()
        self.completed: Counter[str] = Counter()
        #: Those whose completion has ended with an error, which may be one after the completion.
        self.uncertain: set[str] = set()

    async def run(self, steps: int) -> None:
        """Corrupt the queue so many times, then let the clients complete all items."""
        queue = AsyncWorkQueue.from_url(self._url, self.space.prefix)
        async with queue, asyncio.TaskGroup() as tasks:
            adding, cleaning = tasks.create_task(self._add(queue)), tasks.create_task(self._clean(queue))
            for _ in range(3):
                tasks.create_task(self._work(self._url))
            for _ in range(steps):
                self._corruption.now = round(time.time() * 1000)
                await self._corruption.step()
                await asyncio.sleep(0.002)
            self._corrupts = False
            await asyncio.gather(adding, cleaning)
            await queue.admin.fsck()
            await until("all items have ended", self._all_ended)
            # Not cancelled: one may not have read yet that an item was completed.
            self._works = False

    async def _all_ended(self) -> bool:
        return not [key async for key in self.space.redis.scan_iter(match=self.space.prefix + ":item:*")]

    async def _add(self, queue: AsyncWorkQueue) -> None:
        for number in itertools.count():
            if not self._corrupts:
                return
            with contextlib.suppress(LeasequeueError):  # a script fails if a setting of events cannot be read
                item = Item(b"work", id=f"i{number}")
                group, delay = ("g", 0) if number % 3 else (None, 0.05)
                if await queue.add_item(item, priority=number % 2, group=group, delay=delay):
                    self.added.add(item.id)
            await asyncio.sleep(0.003)

    async def _work(self, url: str) -> None:
        async with AsyncWorkQueue.from_url(url, self.space.prefix) as queue:
            while self._works:
                with contextlib.suppress(LeasequeueError):
                    for lease in await queue.lease_many(5, 0.5, block=False):
                        await self._handle(queue, lease)
                await asyncio.sleep(0.002)

    async def _handle(self, queue: AsyncWorkQueue, lease: Lease) -> None:
        if lease.token % 5 == 0:
            await queue.fail(lease, "an error", retry_in=0.05)
            return
        try:
            completed = await queue.complete(lease)  # others may complete meanwhile
            self.completed[lease.id] += completed
        except LeasequeueError:
            self.uncertain.add(lease.id)

    async def _clean(self, queue: AsyncWorkQueue) -> None:
        while self._corrupts:
            for clean in (queue.light_clean, queue.deep_clean, queue.admin.fsck):
                with contextlib.suppress(LeasequeueError):
                    await clean()
                await asyncio.sleep(0.02)
