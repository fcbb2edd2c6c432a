"""Judge a worker's health by its progress: whether it fetches the work that waits and renews its leases."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from itertools import cycle, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError, ServerOutOfMemory, ServerRefused
from leasequeue.errors.describing import describe
from leasequeue.errors.log import Lines, Log
from leasequeue.queue.queue import engine_of, engines_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.executor import Executor
    from leasequeue.worker.fetcher import Fetcher
    from leasequeue.worker.lease_renewer import LeaseRenewer

#: How often to check whether items wait while none is fetched (s), and how many queues each time.
CHECK_SECONDS = 1.3
MAX_CHECKED = 100
#: How many queues to ask at once to release items while the event loop is blocked.
MAX_RELEASED = 100
#: How often the event loop sets a heartbeat, and for how long it may miss them (s).
BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 3.0
#: How many frames of a blocked event loop are logged, the innermost ones: they name the handler.
LOGGED_FRAMES = 5
#: For how long the event loop or the background thread may stand still before the process counts as dead (s).
STUCK_SECONDS = 30.0

log = Log("leasequeue.worker")


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a worker at one moment."""

    #: Whether the worker is healthy.
    ok: bool
    #: What is wrong, a sentence each; empty if the worker is healthy.
    reasons: tuple[str, ...]
    #: The same without the names of queues, and errors of servers, which name addresses and users: for
    #: answers to anyone.
    public_reasons: tuple[str, ...]
    #: How many runs are in progress.
    running: int
    #: How many leased items wait for a slot.
    waiting: int
    #: Seconds since it last leased an item.
    since_last_lease: float
    #: Whether the event loop and the background thread continue. If not, only a restart of the process helps.
    live: bool = True
    #: Whether it is healthy, or all that is wrong is that a server has reached its `maxmemory`: items are
    #: leased and completed, which frees memory; or that it leaves some stages of flow runs to newer workers.
    works: bool = True
    #: How many messages on the channels of its queues were dropped, as no script of these has published them.
    unverified_messages: int = 0


class Monitor:
    """Watches one worker from the background thread."""

    def __init__(
        self,
        executor: Executor,
        renewer: LeaseRenewer,
        fetcher: Fetcher,
        queues: Collection[AsyncWorkQueue],
    ) -> None:
        self._executor = executor
        self._renewer = renewer
        self._fetcher = fetcher
        self._queues = queues
        self._beat_at = self._turned_at = time.monotonic()
        #: The background tasks that have failed: when, and why; and the error with which the worker stops.
        self.failing: dict[object, tuple[float, BaseException]] = {}
        self.failure: BaseException | None = None
        #: The thread of the main event loop, and whether the log says that it is blocked.
        self._thread = threading.get_ident()
        self._block_is_logged = False
        #: For each queue: since when items wait that are not fetched, and how many.
        self._ignored: dict[AsyncWorkQueue, tuple[float, int]] = {}
        #: For each queue: since when its server does not answer, and the error.
        self._away: dict[AsyncWorkQueue, tuple[float, LeasequeueError]] = {}
        #: For each server that has reached its `maxmemory`: since when.
        self._full: dict[object, tuple[float, LeasequeueError]] = {}

    async def beat(self) -> None:
        """Set the heartbeat of the main event loop, until cancelled."""
        self._thread = threading.get_ident()
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    async def watch(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Check whether items wait that are not fetched, until cancelled. The queues may change."""
        fetched_at, turn, rounds = self._fetcher.fetched_at, 0, 0
        while True:
            await asyncio.sleep(CHECK_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - no secret
            self._log_block()
            fetches = self._executor.free > 0 and not self._fetcher.quiet
            idle = self._fetcher.fetched_at == fetched_at and fetches
            fetched_at = self._fetcher.fetched_at
            served = [*queues]
            for gone in ({*self._ignored} | {*self._away}).difference(served):
                self._ignored.pop(gone, None)
                self._away.pop(gone, None)
            # Those with a problem again, and as many others; of the shards of a queue one after another.
            found = {*islice((*self._ignored, *self._away), MAX_CHECKED)}
            shards: dict[AsyncWorkQueue, list[AsyncWorkQueue]] = {}
            for queue in served:
                shards.setdefault(queue.whole, []).append(queue)
            rounds += 1
            others = [some[rounds % len(some)] for some in shards.values()]
            turn = turn % max(1, len(others))
            found.update(islice(cycle(others), turn, turn + min(MAX_CHECKED, len(others))))
            turn += MAX_CHECKED
            await asyncio.gather(*(self._check(queue, idle=idle) for queue in found))
            await self._check_memory(served)

    async def release_arrivals(self, queues: Collection[AsyncWorkQueue]) -> None:
        """While the event loop is blocked, release items that were moved to its session, until cancelled."""
        left: list[AsyncWorkQueue] = []
        while True:
            self._turned_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)
            if self.blocked_for() <= 2 * BEAT_SECONDS:
                left = [*queues]
                continue
            # While the event loop is blocked, no new move begins: at most one item arrives for each queue.
            asked = [queue for queue in left if engines_of(queue).is_listening]
            left = []
            for at in range(0, len(asked), MAX_RELEASED):
                part = asked[at : at + MAX_RELEASED]
                # `watch` reports errors, and the next turn tries again.
                answers = await asyncio.gather(
                    *(engines_of(queue).release_arrivals() for queue in part), return_exceptions=True
                )
                left += [queue for queue, count in zip(part, answers, strict=True) if count != 1]

    def blocked_for(self) -> float:
        """Return the seconds since the last heartbeat of the main event loop."""
        return time.monotonic() - self._beat_at

    def health(self) -> Health:
        """Return the worker's health; callable from any thread."""
        now = time.monotonic()
        ignored = [*self._ignored_queues(now)]
        reasons = []
        if (blocked := self.blocked_for()) > BLOCKED_SECONDS:
            reasons.append(f"the event loop has been blocked for {blocked:.1f} s")
        if (stuck := now - self._turned_at) > BLOCKED_SECONDS:
            reasons.append(f"the background thread has stood still for {stuck:.1f} s")
        failures = [*self._failures(now)]
        return Health(
            ok=not reasons and not ignored and not failures,
            reasons=(
                *(f"{what}: {_text(error)}" for what, error in failures),
                *(f"{waiting} items of {name} wait, {since}" for name, waiting, since in ignored),
                *reasons,
            ),
            public_reasons=(
                *(f"{what}: {type(error).__name__}, see the log" for what, error in failures),
                *(f"items wait, {since}" for _, _, since in ignored[:1]),
                *reasons,
            ),
            running=len(self._executor.running),
            waiting=len(self._renewer.waiting),
            since_last_lease=now - self._fetcher.fetched_at,
            live=max(blocked, stuck) <= STUCK_SECONDS,
            works=not reasons and not ignored and len(failures) <= bool(self._full) + bool(self._left()),
            unverified_messages=sum(engines_of(queue).unverified.count for queue in [*self._queues]),
        )

    def _log_block(self) -> None:
        """Log once that the event loop is blocked, and where, and once that it continues."""
        is_blocked = (blocked := self.blocked_for()) > BLOCKED_SECONDS
        if is_blocked and not self._block_is_logged:
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - documented, in spite of its name
            stack = "".join(traceback.format_stack(frame, limit=LOGGED_FRAMES)).rstrip() if frame else ""
            log.warning(
                "the event loop has been blocked for %.1f s, by code that awaits nothing:\n%s",
                *(blocked, Lines(stack)),
            )
        elif self._block_is_logged and not is_blocked:
            log.info("the event loop continues")
        self._block_is_logged = is_blocked

    async def _check(self, queue: AsyncWorkQueue, *, idle: bool) -> None:
        try:
            # It costs the same however many workers there are.
            waiting, may_wait = await engine_of(queue).run("check_waiting")
        except LeasequeueError as error:
            since, _ = self._away.get(queue, (time.monotonic(), error))
            self._away[queue] = (since, error)
            return
        self._away.pop(queue, None)
        if idle and waiting > 0 and not may_wait:
            since, _ = self._ignored.get(queue, (time.monotonic(), 0))
            self._ignored[queue] = (since, waiting)
        else:
            self._ignored.pop(queue, None)

    async def _check_memory(self, queues: Iterable[AsyncWorkQueue]) -> None:
        """Note the servers that have reached their `maxmemory`: they refuse new items, and many results."""
        engines = [engine for queue in queues if (engine := engines_of(queue).running) is not None]
        full: dict[object, tuple[float, LeasequeueError]] = {}
        for server in {engine.route.server for engine in engines}:
            try:
                if await server.is_full():
                    why = ServerOutOfMemory("the server has reached its maxmemory")
                    full[server] = self._full.get(server, (time.monotonic(), why))
            except LeasequeueError as error:
                log.debug("the server does not say how much memory it uses: %s", error)
        self._full = full

    def _failures(self, now: float) -> Iterator[tuple[str, BaseException]]:
        """Yield what cannot be done on a server, and which parts of the worker have failed, and why."""
        if self.failure is not None:
            yield "the worker stops, as a part of it has failed", self.failure
        for since, error in sorted([*self.failing.values()], key=itemgetter(0))[:1]:
            yield f"a background task has failed {now - since:.1f} s ago", error
        left = self._left()
        found = [
            ("no items can be leased", self._fetcher.failing.values()),
            ("leases cannot be renewed", self._renewer.failing.values()),
            ("the server does not answer", self._away.values()),
            ("the server refuses new items", self._full.values()),
            ("stages are left to newer workers", left),
        ]
        for what, failures in found:
            for since, error in sorted(failures, key=itemgetter(0))[:1]:
                refused = isinstance(error, ServerRefused) and failures is not left
                yield f"{'the server refuses' if refused else what} for {now - since:.1f} s", error

    def _left(self) -> list[tuple[float, LeasequeueError]]:
        """Return since when stages lead to queues that are too new for this worker, and the errors."""
        return [one for queue in [*self._queues] for one in engines_of(queue).feeds.left()]

    def _ignored_queues(self, now: float) -> list[tuple[str, int, str]]:
        """Return the queues with items that were seen waiting twice although a slot was free."""
        return [
            (queue.name, waiting, f"and none has been leased for {now - since:.1f} s")
            for queue, (since, waiting) in list(self._ignored.items())
            if now - since > CHECK_SECONDS
        ]


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, LeasequeueError) else describe(error)
