"""The registry of a queue: the workers that serve it, and failing those that are gone."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasequeue.queue.engine import Engine

#: About how many registrations are read at once; a small hash is read as a whole.
PAGE = 100
#: How many leases one step of the walk checks, and how many items one step returns.
WALK_STEP, FAIL_STEP = 500, 100

#: What a worker can be told.
Order = Literal["quiet", "resume", "stop"]


class Beat(NamedTuple):
    """What the server answers to a heartbeat."""

    #: Whether the worker is registered.
    accepted: bool
    #: If it is not: whether it was failed, or is being failed. Otherwise its registration was lost.
    failed: bool
    now_ms: int
    #: What the worker was told last; empty: nothing.
    told: str
    #: How many workers are registered.
    workers: int
    #: Other workers whose registration no longer holds.
    expired: list[str]


class Registration(NamedTuple):
    """A worker that is registered on a queue."""

    #: Its session on this queue, which holds its leases.
    session: str
    #: Until when it is alive, by the server's clock in ms; None: until it leaves, or unknown.
    until_ms: int | None
    #: Whether its time has passed, or it is being failed.
    expired: bool
    #: What it was told last; empty: nothing.
    told: str
    #: What it says of itself.
    about: Mapping[str, Any]
    #: The time of the answer, by the server's clock in ms.
    now_ms: int

    @property
    def connections(self) -> tuple[int, ...]:
        """The server's numbers of its connections, as it has registered them; see `Registry.fail`."""
        found = self.about.get("connections", ())
        return tuple(one for one in found if isinstance(one, int)) if isinstance(found, list) else ()


class Registry:
    """The workers of one queue. Internal: `leasequeue.fleet` is what users see."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def beat(self, about: Mapping[str, Any], *, alive_ms: int | None, first: bool) -> Beat:
        """Register the worker of this session, or refresh its registration.

        Args:
            about: What the worker says of itself; see "Scripts for workers" on the protocol's page.
            alive_ms: For how long it holds; None: until the worker leaves.
            first: Whether to register. Otherwise the server refuses a worker that is not registered. One that
                was failed is refused in any case.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        accepted, now_ms, told, count, *expired = await self._engine().run(
            "worker_beat",
            alive_ms=b"" if alive_ms is None else alive_ms,
            first=int(first),
            about=json.dumps(about, separators=(",", ":")).encode(),
        )
        ours = self._engine().session.id
        others = [one for one in map(_text, expired) if one != ours]
        return Beat(accepted == 1, accepted == 0, now_ms, _text(told), count, others)

    async def leave(self) -> bool:
        """End the registration of the worker of this session; return whether there was one."""
        return bool(await self._engine().run("worker_leave"))

    async def tell(self, worker: str, what: Order) -> bool:
        """Tell a worker what to do; return False if it is not registered."""
        return bool(await self._engine().run("worker_tell", worker=worker.encode(), what=what.encode()))

    async def workers(self) -> list[Registration]:
        """Return the workers that are registered.

        One that leaves meanwhile is missing in the second walk; of one that comes, nothing is known but that.
        """
        engine, cursor, until = self._engine(), b"", dict[bytes, bytes]()
        now_ms = 0
        while cursor != b"0":
            now_ms, cursor, *values = await engine.run("workers", cursor=cursor or b"0", count=WALK_STEP)
            until.update(zip(values[::2], values[1::2], strict=True))
        cursor, about = b"", dict[bytes, bytes]()
        while cursor != b"0":
            cursor, values = await engine.read("workers", "HSCAN", "workers", cursor or b"0", b"COUNT", PAGE)
            about.update(zip(values[::2], values[1::2], strict=True))
        return [
            _registration(now_ms, name, until.get(name, b""), about.get(b"told:" + name, b""), text)
            for name, text in about.items()
            if not name.startswith(b"told:")
        ]

    async def fail(
        self, worker: str, *, expired: bool = False, connections: Iterable[int] | None = None
    ) -> int | None:
        """Fail a worker, as `fail_many` does.

        Returns:
            How many ids were returned. None: it is not registered, or it is alive.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return (await self.fail_many({worker: connections}, expired=expired)).get(worker)

    async def fail_many(
        self, workers: Mapping[str, Iterable[int] | None], *, expired: bool = False
    ) -> dict[str, int]:
        """Fail workers: return the items that they hold to the front of the queue, in their old order.

        Their later outcomes are rejected, and their next heartbeats are refused. Any number of clients may
        call this at once. If a call is interrupted, the next one goes on. One walk over all leases finds
        those of all workers.

        Args:
            workers: At most 1,000 of them: each by its session on this queue, with the connections that it
                must have registered, in that order; None: any.
            expired: Fail only those whose registration no longer holds.

        Returns:
            How many ids were returned, for each worker that was registered, and not alive.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """

        async def step(worker: str, ids: Sequence[bytes], *, ends: bool) -> int:
            named = workers[worker]
            return int(
                await self._engine().run(
                    "fail_session",
                    ids,
                    worker=worker.encode(),
                    expired=int(expired),
                    connections=b"" if named is None else b",".join(b"%d" % one for one in named),
                    ends=int(ends),
                )
            )

        counts = await asyncio.gather(*(step(one, [], ends=False) for one in workers))
        returned = {one: count for one, count in zip(workers, counts, strict=True) if count >= 0}
        held = await self._held([*returned]) if returned else {}

        async def return_items(worker: str) -> None:
            # The last to be returned is the first in the queue.
            ids = held.get(worker.encode(), [])
            parts = [ids[at : at + FAIL_STEP] for at in range(0, len(ids), FAIL_STEP)] or [[]]
            for number, part in enumerate(parts, 1):
                answer = await step(worker, part[::-1], ends=number == len(parts))
                if answer < 0:
                    break  # another client has done the rest
                returned[worker] += answer

        await asyncio.gather(*map(return_items, returned))
        return returned

    async def _held(self, workers: Sequence[str]) -> dict[bytes, list[bytes]]:
        """Return the ids of the items that each session holds, those that were leased last first."""
        sessions = [one.encode() for one in workers]
        cursor, found = b"0", dict[bytes, tuple[int, bytes]]()
        while True:
            cursor, *values = await self._engine().run(
                "session_leases", sessions, cursor=cursor, count=WALK_STEP
            )
            rows = zip(values[::3], values[1::3], values[2::3], strict=True)
            found.update({one: (token, session) for one, token, session in rows})
            if cursor == b"0":
                break
        held: dict[bytes, list[bytes]] = {}
        for one, (_, session) in sorted(found.items(), key=lambda row: row[1][0], reverse=True):
            held.setdefault(session, []).append(one)
        return held


def _registration(now_ms: int, session: bytes, until: bytes, told: bytes, about: bytes) -> Registration:
    until_ms = None if until in {b"inf", b""} else int(float(until))
    try:
        facts = json.loads(about)
    except ValueError:  # another client has written it
        facts = {}
    expired = until_ms is not None and until_ms <= now_ms
    return Registration(
        _text(session), until_ms, expired, _text(told), facts if isinstance(facts, dict) else {}, now_ms
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
