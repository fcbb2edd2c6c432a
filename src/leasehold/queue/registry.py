"""The registry of a queue: the workers that serve it, and failing those that are gone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leasehold.queue.engine import Engine

#: How many leases one step of the walk checks, and how many items one step returns.
WALK_STEP, FAIL_STEP = 500, 100

#: What a worker can be told.
Order = Literal["quiet", "resume", "stop"]


class Beat(NamedTuple):
    """What the server answers to a heartbeat."""

    #: Whether the worker is registered; False: it was failed.
    accepted: bool
    now_ms: int
    #: What the worker was told last; empty: nothing.
    told: str
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
    """The workers of one queue. Internal: `leasehold.fleet` is what users see."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def beat(self, about: Mapping[str, Any], *, alive_ms: int | None, first: bool) -> Beat:
        """Register the worker of this session, or refresh its registration.

        Args:
            about: What the worker says of itself; see "Scripts for workers" on the protocol's page.
            alive_ms: For how long it holds; None: until the worker leaves.
            first: Whether to register. Otherwise the server refuses a worker that is not registered.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        accepted, now_ms, told, *expired = await self._engine().run(
            "worker_beat",
            alive_ms=b"" if alive_ms is None else alive_ms,
            first=int(first),
            about=json.dumps(about, separators=(",", ":")).encode(),
        )
        ours = self._engine().session.id
        others = [one for one in map(_text, expired) if one != ours]
        return Beat(accepted == 1, now_ms, _text(told), others)

    async def leave(self) -> bool:
        """End the registration of the worker of this session; return whether there was one."""
        return bool(await self._engine().run("worker_leave"))

    async def tell(self, worker: str, what: Order) -> bool:
        """Tell a worker what to do; return False if it is not registered."""
        return bool(await self._engine().run("worker_tell", worker=worker.encode(), what=what.encode()))

    async def workers(self) -> list[Registration]:
        """Return the workers that are registered."""
        cursor, found = b"0", dict[str, Registration]()
        while True:
            now_ms, cursor, *rows = await self._engine().run("workers", cursor=cursor)
            for at in range(0, len(rows), 4):
                one = _registration(now_ms, *rows[at : at + 4])
                found[one.session] = one
            if cursor == b"0":
                return [*found.values()]

    async def fail(
        self, worker: str, *, expired: bool = False, connections: Iterable[int] | None = None
    ) -> int | None:
        """Fail a worker: return the items that it holds to the front of the queue, in their old order.

        Its later outcomes are rejected, and its next heartbeat is refused. Any number of clients may call
        this at once. If a call is interrupted, the next one goes on.

        Args:
            worker: Its session on this queue.
            expired: Fail it only if its registration no longer holds.
            connections: Fail it only if these are the connections that it has registered, in that order.

        Returns:
            How many ids were returned. None: it is not registered, or it is alive.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        seen = b"" if connections is None else b",".join(b"%d" % one for one in connections)

        async def step(ids: list[bytes], *, ends: bool) -> int:
            return int(
                await self._engine().run(
                    "fail_session",
                    ids,
                    worker=worker.encode(),
                    expired=int(expired),
                    connections=seen,
                    ends=int(ends),
                )
            )

        returned = await step([], ends=False)
        if returned < 0:
            return None
        # The last to be returned is the first in the queue.
        ids = await self._held(worker)
        parts = [ids[at : at + FAIL_STEP] for at in range(0, len(ids), FAIL_STEP)] or [[]]
        for number, part in enumerate(parts, 1):
            answer = await step(part[::-1], ends=number == len(parts))
            if answer < 0:
                break  # another client has done the rest
            returned += answer
        return returned

    async def _held(self, worker: str) -> list[bytes]:
        """Return the ids of the items that a session holds, those that were leased last first."""
        cursor, found = b"0", dict[bytes, int]()
        while True:
            cursor, *pairs = await self._engine().run(
                "session_leases", holder=worker.encode(), cursor=cursor, count=WALK_STEP
            )
            found.update(zip(pairs[::2], pairs[1::2], strict=True))
            if cursor == b"0":
                return sorted(found, key=found.__getitem__, reverse=True)


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
