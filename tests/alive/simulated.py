"""A simulated fleet: many registered sessions, of which some die at once, on a real server and a moved clock.

A worker that looks after others is real: its looks run the scripts that a worker runs. The time is not: each
look begins when it is due, and each trip to the server takes TRIP.
"""

from __future__ import annotations

import heapq
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from leasequeue.alive import ring
from leasequeue.alive.connections import OwnConnections
from leasequeue.alive.ring import PeerWatch, Ring, successors
from leasequeue.queue.queue import engines_of
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from leasequeue import AsyncWorkQueue

#: How long a trip to the server takes (s), and until when the registrations hold (ms).
TRIP, FAR = 0.001, 1 << 50


class As:
    """The engine or the session of the test, as another session would have it; counts the trips."""

    def __init__(self, real: Any, me: str, fleet: SimulatedFleet) -> None:
        self._real = real
        self._fleet = fleet
        self.id = me

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name == "session":
            return As(found, self.id, self._fleet)
        return found


class SimulatedFleet:
    """Workers of one queue, registered with real connections: those that will die share one."""

    def __init__(self, queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self._queue = queue
        self._redis = redis
        self._patch = monkeypatch
        self.now = 0.0
        self._trips = self._count = 0
        #: When each was failed (s after its death).
        self.failed: dict[str, float] = {}
        #: How many looks there were.
        self.looks = 0

    async def start(self, url: str, sessions: Sequence[str], dying: set[str]) -> None:
        """Register the sessions, and let some of them die."""
        await self._queue.counts()
        own = OwnConnections(lambda: None)
        assert await own.check([self._queue])
        vouched = own.mark(self._queue)
        own.close()
        self._server = vouched.server
        async with Redis.from_url(url, single_connection_client=True) as mortal:
            lost = int(await mortal.client_id())
            fleet = {"name": "w", "server": vouched.server}
            for one in sessions:
                ids = [lost] if one in dying else vouched.connections
                about = json.dumps({**fleet, "connections": ids})
                await self._redis.hset(f"{self._queue.name}:workers", one, about)
        await self._redis.zadd(f"{self._queue.name}:heartbeats", dict.fromkeys(sessions, FAR))

        async def is_closed() -> bool:
            return lost not in {int(one["id"]) for one in await self._redis.client_list()}

        await until("their connection is closed", is_closed)
        # The others look at none that dies.
        self._watchers = [
            one
            for one in sorted({*sessions} - dying)
            if dying & {*successors(one, sessions)[: ring.LOOK_AFTER]}
        ]
        self._left = {*dying}
        self._count_trips()
        self._patch.setattr(ring, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _count_trips(self) -> None:
        """Count what is sent to the server; what is sent at the same time is one trip."""
        engine = engines_of(self._queue).running
        assert engine is not None
        runner, server = engine.runner, engine.route.server
        for of, call in ((runner, "run"), (runner, "read"), (server, "ask")):
            self._patch.setattr(of, call, self._counted(getattr(of, call)))

    def _counted(self, call: Any) -> Any:
        in_flight = 0

        async def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal in_flight
            self._trips += not in_flight
            in_flight += 1
            try:
                return await call(*arguments, **named)
            finally:
                in_flight -= 1

        return counted

    async def run(self, look_lasts: float = 0.0) -> None:
        """Let the workers look after each other until all dead ones are failed.

        Args:
            look_lasts: For how long each look lasts besides its trips (s): on a host that is starved.
        """
        engine = engines_of(self._queue).running
        found: list[str] = []
        turns: list[tuple[float, int, PeerWatch]] = []
        for number, me in enumerate(self._watchers):
            its = Ring(self._queue, As(engine, me, self))  # type: ignore[arg-type]  # it acts as one
            if not number:
                await its.read(self._server)
                found = [me, *its.others]
            its.others = successors(me, found)
            watch = PeerWatch(OwnConnections(lambda: None))
            watch._servers = {self._server: [its]}
            # The looks of all are spread over the time between two.
            phase = ring.LOOK_SECONDS * (number * 0.618 % 1)
            heapq.heappush(turns, (phase, number, watch))
        while self._left:
            self.now, number, watch = heapq.heappop(turns)
            began, self._trips = self.now, 0
            [(server, rings)] = watch._servers.items()
            self.now += look_lasts
            await watch._look(server, rings)
            self.looks += 1
            self.now += TRIP * self._trips
            await self._note()
            due = max(self.now + ring.SHORTEST_LOOK, watch._next_look(began))
            heapq.heappush(turns, (due, number, watch))

    async def _note(self) -> None:
        """Note who has been failed since the last look."""
        count = await self._redis.hlen(f"{self._queue.name}:workers")
        if count == self._count:
            return
        self._count = count
        found: list[Any] = await self._redis.hkeys(f"{self._queue.name}:workers")
        ids = {one.decode() for one in found}
        for one in self._left - ids:
            self.failed[one] = self.now
        self._left &= ids
