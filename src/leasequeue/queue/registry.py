"""The registry of a queue: the workers that serve it, and failing those that are gone."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leasequeue.item.codec import read_stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from leasequeue.wire.session import Session

#: About how many registrations are read at once; a small hash is read as a whole. Of some, so many at once.
PAGE, SOME = 100, 25
#: How many heartbeats one step reads: 500 took the server 0.7 to 1.5 ms, as each is found by itself.
BEATS = 200
#: How many leases one step of the walk checks, and how many items one step returns.
WALK_STEP, FAIL_STEP = 500, 100

#: The longest text that a worker may say of itself, as `worker_beat` has it.
MAX_ABOUT_BYTES = 65_536

#: What a worker can be ordered to do.
Order = Literal["quiet", "resume", "stop"]


class Beat(NamedTuple):
    """What the server answers to a heartbeat."""

    accepted: bool
    #: If it is not: whether it was failed, or is being failed. Otherwise its registration was lost.
    failed: bool
    #: The last order for the worker, and its number, from 1 on; empty and 0: none.
    order: str
    order_number: int
    workers: int
    #: Other workers whose registration no longer holds.
    expired: list[str]


class RegisteredWorker(NamedTuple):
    """A worker that is registered on a queue."""

    #: Its session on this queue, which holds its leases.
    session: str
    #: Until when it is alive, by the server's clock in ms; None: until it leaves, or unknown.
    until_ms: int | None
    #: Whether its time has passed, or it is being failed.
    dead: bool
    #: The last order for it; empty: none.
    order: str
    #: What it says of itself, as any client may write it.
    about: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its session when it started, and perhaps a number: the same on all its queues."""
        return self.text("worker") or self.session

    @property
    def versions(self) -> dict[str, str]:
        """The versions of `leasequeue` and `python`, and the newest format that it knows, as it says."""
        found = self.about.get("versions")
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    @property
    def format(self) -> int:
        """The newest format of the queue's keys that it knows, as it says."""
        said = self.versions.get("format", "")
        return int(said) if said.isdecimal() and len(said) < 10 else 1

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self.text("name") or self.session

    def text(self, key: str) -> str:
        """Return a text that it says; empty if it is none."""
        return _as_text(self.about.get(key))

    def number(self, key: str) -> float:
        """Return a number that it says; 0 if it is none."""
        return _as_number(self.about.get(key))

    def count(self, key: str) -> int:
        """Return a number that it says, without its fraction."""
        return int(self.number(key))

    @property
    def running(self) -> list[tuple[str, str, float]]:
        """Its runs of this queue: item, handler, and when it began, by its own clock in ms since 1970."""
        rows = self.about.get("running")
        return [
            (_as_text(row[0]), _as_text(row[1]), _as_number(row[2]))
            for row in (rows if isinstance(rows, list) else ())
            if isinstance(row, list) and len(row) == 3
        ]


class Registry:
    """The workers of one queue. Internal: `Fleet` is what users see."""

    def __init__(
        self, session: Session, run: Callable[..., Awaitable[Any]], read: Callable[..., Awaitable[Any]]
    ) -> None:
        self._session = session
        self._run = run
        self._read = read

    def new_worker_id(self) -> str:
        """Return an id for a worker that starts in this event loop.

        It is the session for the first one, and has a number for others that use the session.
        """
        session = self._session
        session.workers += 1
        return session.id if session.workers == 1 else f"{session.id}.{session.workers}"

    async def beat(self, about: Mapping[str, Any], *, alive_ms: int | None, first: bool) -> Beat:
        """Register the worker of this session, or refresh its registration.

        `about` is what the worker says of itself: see "Scripts for workers" on the protocol's page. If it
        were too long, its last runs are left out, and then its last queues. It holds for `alive_ms`; None:
        until the worker leaves. Without `first`, the server refuses a worker that is not registered. One that
        was failed is refused in any case.
        """
        accepted, _now_ms, order, count, *expired = await self._run(
            "worker_beat",
            alive_ms=b"" if alive_ms is None else alive_ms,
            first=int(first),
            about=_about_text(about),
        )
        ours = self._session.id
        others = [one for one in map(_text, expired) if one != ours]
        return Beat(accepted == 1, accepted == 0, *_order(order), count, others)

    async def leave(self) -> bool:
        """End the registration of the worker of this session; return whether there was one."""
        return bool(await self._run("worker_leave"))

    async def tell(self, worker: str, what: Order) -> bool:
        """Give a worker an order; return False if it is not registered."""
        return bool(await self._run("worker_tell", worker=worker.encode(), what=what.encode()))

    async def workers(self, sessions: Collection[str] | None = None) -> list[RegisteredWorker]:
        """Return the workers that are registered: all, or those with some sessions on this queue.

        One that leaves in between is missing in the second walk; of one that comes, only that is known.
        """
        until, about = dict[bytes, bytes](), dict[bytes, bytes]()
        now_ms = 0
        cursor = begin = b"" if sessions is None else b"0"
        while cursor != b"0":
            now_ms, cursor, *values = await self._run("workers", cursor=cursor or b"0", count=BEATS)
            until.update(zip(values[::2], values[1::2], strict=True))
        cursor = begin
        while cursor != b"0":
            cursor, values = await self._read("workers", "HSCAN", "workers", cursor or b"0", b"COUNT", PAGE)
            about.update(zip(values[::2], values[1::2], strict=True))
        asked = [one.encode(errors="surrogateescape") for one in sessions or ()]
        for at in range(0, len(asked), SOME):
            some = asked[at : at + SOME]
            now_ms, _, *values = await self._run("workers", some, cursor=b"0", count=1)
            until.update(zip(values[::2], values[1::2], strict=True))
            names = [*some, *(b"told:" + one for one in some)]
            texts = await self._read("workers", "HMGET", "workers", *names)
            about.update((name, text) for name, text in zip(names, texts, strict=True) if text is not None)
        found = []
        for session, text in about.items():
            if not session.startswith(b"told:"):
                end = float(until.get(session, b"inf"))
                until_ms = None if end == math.inf else int(max(0.0, end))
                order, _ = _order(about.get(b"told:" + session, b""))
                dead = until_ms is not None and until_ms <= now_ms
                found.append(RegisteredWorker(_text(session), until_ms, dead, order, read_facts(text)))
        return found

    async def fail(
        self, worker: str, *, expired: bool = False, connections: Iterable[int] | None = None
    ) -> int | None:
        """Fail a worker, as `fail_many` does.

        Return how many ids were returned. None: it is not registered, or it is alive.
        """
        return (await self.fail_many({worker: connections}, expired=expired)).get(worker)

    async def fail_many(
        self, workers: Mapping[str, Iterable[int] | None], *, expired: bool = False
    ) -> dict[str, int]:
        """Fail workers: return the items that they hold to the front of the queue, in their old order.

        Their later outcomes are rejected, and their next heartbeats are refused. Any number of clients may
        call this at once. If a call is interrupted, the next one goes on. One walk over all leases finds
        those of all workers. Return how many ids were returned, for each worker that was registered, and not
        alive.

        Args:
            workers: At most 1,000 of them: each by its session on this queue, with the connections that it
                must have registered, in that order; None: any.
            expired: Fail only those whose registration no longer holds.
        """

        async def step(worker: str, ids: Sequence[bytes], *, ends: bool) -> int:
            named = workers[worker]
            return int(
                await self._run(
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
            cursor, *values = await self._run("session_leases", sessions, cursor=cursor, count=WALK_STEP)
            rows = zip(values[::3], values[1::3], values[2::3], strict=True)
            found.update({one: (token, session) for one, token, session in rows})
            if cursor == b"0":
                break
        held: dict[bytes, list[bytes]] = {}
        for one, (_, session) in sorted(found.items(), key=lambda row: row[1][0], reverse=True):
            held.setdefault(session, []).append(one)
        return held


def read_facts(text: object) -> dict[str, Any]:
    """Return what a worker says of itself in its registration, which another client may have written."""
    known = text if isinstance(text, bytes) and len(text) <= MAX_ABOUT_BYTES else None
    return read_stored(known, dict[str, Any]())


def _about_text(about: Mapping[str, Any]) -> bytes:
    """Return what a worker says of itself, without what would make it longer than a server accepts."""
    text = json.dumps(about, separators=(",", ":"))
    for what in ("running", "queues"):
        while len(text) > MAX_ABOUT_BYTES and (rows := about.get(what)):
            about = {**about, what: rows[: len(rows) * 3 // 4]}
            text = json.dumps(about, separators=(",", ":"))
    return text.encode()


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # JSON may have half of a surrogate pair, which no id or name can have
        return value.encode(errors="backslashreplace").decode()
    return value


def _as_number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else 0


def _order(value: bytes) -> tuple[str, int]:
    """Return an order as `worker_tell` notes it, and its number."""
    order, _, number = _text(value).partition(" ")
    return order, int(number) if number.isdecimal() and len(number) < 16 else 0


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
