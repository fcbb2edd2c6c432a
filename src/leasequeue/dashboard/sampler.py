"""The sampler: it asks each queue for its statistics, for all viewers together, while a page is open.

There is one for each dashboard in a process. A page shows what it has seen, so that the number of viewers
costs the server nothing. Of many queues, each turn asks a slice: those on open pages, then the next ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from array import array
from typing import TYPE_CHECKING, Any

from leasequeue.dashboard.charts import history_chart
from leasequeue.errors import (
    ConnectionLost,
    LeasequeueError,
    LimitExceeded,
    QueueDeleted,
    ScriptFailed,
    ServerError,
    WrongKeyType,
)
from leasequeue.errors.log import Log
from leasequeue.queue.shards.parts import joined_stats
from leasequeue.queue.shards.queue import ShardedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from markupsafe import Markup

    from leasequeue.dashboard.sources import ShownQueues
    from leasequeue.queue import AsyncWorkQueue, QueueStats

#: How often a turn begins, and how long after the last page was asked for the sampler sleeps (s).
EVERY, AWAKE_SECONDS = 3.0, 20.0
#: How many queues a turn asks, how many of them at once, and for how long one, or one shard, may take (s).
SLICE, AT_ONCE, STATS_SECONDS, SHARD_SECONDS = 256, 16, 10.0, 4.0
#: How many samples of a queue are kept: five minutes, in 24 bytes each.
KEPT = 100
#: Over how long rates are measured (s).
RATE_SECONDS = 30.0
#: How often the hours of its last day are read (s).
DAY_EVERY = 60.0
#: From when on it stands out that nothing was completed while items wait (s).
STALLED_SECONDS = 60.0

#: What is wrong with one queue, while the server answers.
OF_ONE_QUEUE = (WrongKeyType, ScriptFailed, LimitExceeded, QueueDeleted)

log = Log("leasequeue.dashboard")


class QueueHistory:
    """What was seen of a queue in the last minutes."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The last statistics; None: there are none yet.
        self.stats: QueueStats | None = None
        #: Why there are none, or no newer ones; None: there are.
        self.problem: LeasequeueError | None = None
        #: Of each of its shards, if it has some, the last statistics, and why there are no newer ones.
        self.shards: dict[str, QueueStats | None] = {}
        self.away: dict[str, LeasequeueError] = {}
        #: By time: how many waited, how many leases had begun, and how many had ended.
        self._at, self._waiting, self._begun, self._ended = (array("d") for _ in range(4))
        self._moved_at = 0.0
        #: The hours of the last day, drawn once for all pages, if the queue keeps its history; and when to
        #: read them again.
        self.day: Markup | None = None
        self.day_due = 0.0

    def add_shards(self, answers: Mapping[str, QueueStats | LeasequeueError]) -> None:
        """Note what each shard has answered. One that is away counts with what it said last."""
        self.away = {name: one for name, one in answers.items() if isinstance(one, LeasequeueError)}
        seen = [one for one in answers.values() if not isinstance(one, LeasequeueError)]
        if not seen:
            self.problem = next(iter(self.away.values()))
            return
        seen += [one for one in map(self.shards.get, self.away) if one]
        self.shards = {
            name: self.shards.get(name) if isinstance(one, LeasequeueError) else one
            for name, one in answers.items()
        }
        self.add(joined_stats(self.name, seen))

    def add(self, stats: QueueStats) -> None:
        """Note a sample."""
        ended = stats.leases - stats.counts.leased
        if self._at and (stats.at <= self._at[-1] or stats.leases < self._begun[-1]):
            self._clear()  # the clock of the server was set, or it has lost its data
        if not self._at or ended > self._ended[-1] or not stats.counts.waiting:
            self._moved_at = stats.at
        self.stats, self.problem = stats, None
        values = (stats.at, stats.counts.waiting, stats.leases, ended)
        for kept, value in zip(self._arrays(), values, strict=True):
            kept.append(value)
            del kept[:-KEPT]

    def _arrays(self) -> tuple[array[float], ...]:
        return self._at, self._waiting, self._begun, self._ended

    def _clear(self) -> None:
        for kept in self._arrays():
            del kept[:]

    @property
    def rates(self) -> tuple[float, float] | None:
        """How many items came, and how many leases ended, each second; None: unknown.

        A lease ends when its item is completed, fails or is released. An item that waits again comes again.
        """
        first = next((at for at, when in enumerate(self._at) if when >= self._at[-1] - RATE_SECONDS), -1)
        if first < 0 or first == len(self._at) - 1:
            return None
        past = self._at[-1] - self._at[first]
        come = self._waiting[-1] - self._waiting[first] + self._begun[-1] - self._begun[first]
        return max(0.0, come / past), max(0.0, (self._ended[-1] - self._ended[first]) / past)

    @property
    def waited(self) -> list[tuple[float, float]]:
        """The times of the samples, and how many items waited."""
        return [*zip(self._at, self._waiting, strict=True)]

    @property
    def is_paused_in_part(self) -> bool:
        """Whether some of its shards are paused."""
        return any(one is not None and one.paused for one in self.shards.values())

    @property
    def is_unserved(self) -> bool:
        """Whether items wait, and no worker that is alive serves the queue."""
        return bool(self.stats and self.stats.counts.waiting and not self.stats.workers_alive)

    @property
    def stalled(self) -> float | None:
        """For how many seconds nothing has ended, though items wait; None: not that long, or paused."""
        if self.stats is None or self.stats.paused or not self.stats.counts.waiting:
            return None
        past = self.stats.at - self._moved_at
        return past if past >= STALLED_SECONDS else None


class Sampler:
    """Asks the queues, as long as `look` is called."""

    def __init__(
        self,
        queues: ShownQueues,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queues = queues
        self.histories: dict[str, QueueHistory] = {}
        #: Why no server answered in the last turn; None: one did.
        self.problem: LeasequeueError | None = None
        self._every = every
        self._clock = clock
        self._looked_at: dict[str, float] = {}
        self._last_look = -AWAKE_SECONDS
        self._next = 0
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None

    @property
    def is_awake(self) -> bool:
        """Whether it asks the queues again and again."""
        return self._task is not None and not self._task.done()

    async def look(self, names: Iterable[str] = ()) -> None:
        """Wake the sampler, and wait until it has asked once; name the queues that are looked at."""
        now = self._last_look = self._clock()
        self._looked_at |= dict.fromkeys(names, now)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._first = loop.create_future()
            self._task = loop.create_task(self._run(self._first))
        if self._first is not None:
            await asyncio.shield(self._first)

    def check(self) -> None:
        """Raise the error of the last turn, if no server answered."""
        if self.problem is not None:
            raise self.problem

    async def sample(self, name: str) -> None:
        """Ask one queue now, as it was changed."""
        queue = self.queues.by_name().get(name)
        if queue is None:
            return
        history = self.histories.setdefault(name, QueueHistory(name))
        try:
            async with asyncio.timeout(STATS_SECONDS):
                if isinstance(queue, ShardedQueue):
                    with contextlib.suppress(ServerError):  # the first shard may be away, and others be there
                        await queue.check_shards()
                    answers = await asyncio.gather(*map(_ask_shard, queue.shards))
                    names = [one.name for one in queue.shards]
                    history.add_shards(dict(zip(names, answers, strict=True)))
                else:
                    history.add(await queue.stats())
                    history.shards = {}
                await self._read_day(history, queue)
        except TimeoutError:
            history.problem = _no_reply(STATS_SECONDS)
        except LeasequeueError as error:
            history.problem = error

    async def _read_day(self, history: QueueHistory, queue: AsyncWorkQueue) -> None:
        now = self._clock()
        if now >= history.day_due:
            history.day_due = now + DAY_EVERY
            with contextlib.suppress(LeasequeueError):  # the statistics have arrived
                day = await queue.history("hour", count=24)
                history.day = history_chart(day.cells, small=True) if day.kept else None

    async def turn(self) -> None:
        """Find the queues, and ask a slice of them."""
        try:
            await self.queues.find()
        except LeasequeueError as error:
            if not self.queues.by_name():  # else a node may be away, and others are there
                self.problem = error
                return
        names = [*self.queues.by_name()]
        known = {*names}
        self.histories = {name: one for name, one in self.histories.items() if name in known}
        limit = asyncio.Semaphore(AT_ONCE)

        async def sample(name: str) -> None:
            async with limit:
                await self.sample(name)

        chosen = self._slice(names, known)
        await asyncio.gather(*map(sample, chosen))
        problems = [self.histories[name].problem for name in chosen]
        away = [one for one in problems if one and not isinstance(one, OF_ONE_QUEUE)]
        self.problem = away[0] if away and all(problems) else None

    def _slice(self, names: list[str], known: set[str]) -> list[str]:
        soonest = self._clock() - AWAKE_SECONDS
        self._looked_at = {name: at for name, at in self._looked_at.items() if at > soonest and name in known}
        chosen = dict.fromkeys(itertools.islice(reversed(self._looked_at), SLICE // 2))
        start = self._next % len(names) if names else 0
        others = itertools.islice(itertools.chain(names[start:], names[:start]), len(names))
        for name in others:
            if len(chosen) >= SLICE:
                break
            chosen.setdefault(name)
            self._next = start = start + 1
        return [*chosen]

    async def _run(self, first: asyncio.Future[Any]) -> None:
        try:
            while self._clock() - self._last_look < AWAKE_SECONDS:
                try:
                    await self.turn()
                except Exception:
                    log.exception("the dashboard could not ask the queues; it tries again")
                if not first.done():
                    first.set_result(None)
                await asyncio.sleep(self._every)
        finally:
            if not first.done():
                first.cancel()

    async def close(self) -> None:
        """End, if it is awake."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _ask_shard(shard: AsyncWorkQueue) -> QueueStats | LeasequeueError:
    """Return the statistics of a shard, or why there are none."""
    try:
        async with asyncio.timeout(SHARD_SECONDS):
            return await shard.stats()
    except TimeoutError:
        return _no_reply(SHARD_SECONDS)
    except LeasequeueError as error:
        return error


def _no_reply(seconds: float) -> LeasequeueError:
    return ConnectionLost(f"no reply within {seconds:g} s", maybe_applied=False)
