"""A queue's key space that a test can draw, seed, act on and compare: all of it, every time.

A key space is a plain dict, a key's name (without the prefix) to its contents:

    list    ["left", …, "right"]        hash    {"field": "value"}
    set     {"member"}                  zset    {"member": 1.0}
    string  "value"                     with a time to live    Expiring("value")

`picture` draws one from the states of the items, so that a test reads as before and after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.keys import QueueKeys
from leasehold.scripting.runner import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

#: The time of every script that is not told another, in ms. Nothing here asks a clock.
NOW = 1_000_000
#: The session that runs the scripts, unless a test says otherwise.
ME = "lh:me"
#: How long keys with a time to live are seeded for, in real ms: longer than any test.
LONG = 600_000

Contents = str | list[str] | set[str] | dict[str, float] | dict[str, str]


class Expiring(NamedTuple):
    """The contents of a key that has a time to live."""

    contents: Contents


State = dict[str, Contents | Expiring]


@dataclass(frozen=True)
class Held:
    """One lease of ours, as all the keys that know of it tell it."""

    token: int
    ends: float = NOW + 60_000
    first: int | None = None
    attempt: int = 1
    at: int = NOW
    by: str = ME

    @property
    def entry(self) -> str:
        """What the ledger says."""
        return f"{self.first or self.token} {self.token} {self.attempt} {self.at}"


@dataclass(frozen=True)
class Letter:
    """One dead letter."""

    token: int
    at: int = NOW
    error: str = "an error"
    attempt: int = 1


def data_of(item_id: str) -> str:
    """Return the data that drawn items have."""
    return f"data of {item_id}"


def picture(
    *,
    waiting: Iterable[str] = (),
    leased: Mapping[str, Held] | None = None,
    scheduled: Mapping[str, float] | None = None,
    past: Mapping[str, Held] | None = None,
    dead: Mapping[str, Letter] | None = None,
    fence: int = 0,
) -> State:
    """Draw the key space of a queue that nothing foreign has touched.

    Args:
        waiting: Ids in the order in which they would be leased.
        leased: Ids and their leases, in the order in which they were leased.
        scheduled: Ids and when they fall due.
        past: Leases that have ended, of items that wait or are scheduled again.
        dead: Dead letters.
        fence: The last token; 0 is none, and no key.
    """
    leased, scheduled, past = leased or {}, scheduled or {}, past or {}
    state: State = {f"item:{item_id}": data_of(item_id) for item_id in (*waiting, *leased, *scheduled)}
    state["queue"] = [*waiting][::-1]
    state["processing"] = [*leased][::-1]
    state["deadlines"] = {item_id: float(held.ends) for item_id, held in leased.items()}
    state["ledger"] = {item_id: held.entry for item_id, held in {**leased, **past}.items()}
    state["scheduled"] = {item_id: float(due) for item_id, due in scheduled.items()}
    for item_id, held in leased.items():
        state |= lease_keys(item_id, held.by)
    for item_id in scheduled:
        state[f"lease:{item_id}"] = Expiring("lh:scheduled")
    state["dead"] = {item_id: float(letter.at) for item_id, letter in (dead or {}).items()}
    for item_id, letter in (dead or {}).items():
        state[f"dead:{item_id}"] = {
            "data": data_of(item_id),
            "error": letter.error,
            "attempt": str(letter.attempt),
            "token": str(letter.token),
        }
    if fence:
        state["fence"] = str(fence)
    return {key: contents for key, contents in state.items() if contents}


def lease_keys(item_id: str, holder: str) -> State:
    """Draw the two keys that tell foreign clients of a lease."""
    return {
        f"lease:{item_id}": Expiring(holder),
        f"leased_by_session:{item_id}": Expiring(holder),
    }


class Given(NamedTuple):
    """One item as `lease_many` gives it."""

    id: str
    data: str
    token: int
    attempt: int


def listed(contents: Contents | Expiring) -> list[str]:
    """Take the contents of a key for those of a list."""
    assert isinstance(contents, list)
    return contents


def items_of(reply: list[Any]) -> list[Given]:
    """Read the items of a reply of `lease_many`, which begins with the time, the wait and the sessions."""
    return [
        Given(_text(item_id), _text(data), token, attempt)
        for item_id, data, token, attempt in batched(reply[3:], 4)
    ]


def batched(values: list[Any], size: int) -> list[list[Any]]:
    """Cut a list into pieces of one size."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def new(item_id: str, *, delay: int = 0, unique: bool = False) -> tuple[object, ...]:
    """Give the row of `add_items` that makes a drawn item."""
    return (item_id, data_of(item_id), delay, int(unique))


class Space:
    """The key space of one queue on a real server."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix

    def key(self, name: str) -> str:
        """Give a key's full name."""
        return f"{self.prefix}:{name}"

    async def seed(self, state: Mapping[str, Contents | Expiring]) -> None:
        """Write keys as drawn, in the place of what they held."""
        async with self.redis.pipeline(transaction=True) as pipe:
            for name, drawn in state.items():
                key, contents = self.key(name), drawn.contents if isinstance(drawn, Expiring) else drawn
                pipe.delete(key)
                if isinstance(contents, str):
                    pipe.set(key, contents)
                elif isinstance(contents, list):
                    pipe.rpush(key, *contents)
                elif isinstance(contents, set):
                    pipe.sadd(key, *contents)
                elif all(isinstance(value, int | float) for value in contents.values()):
                    pipe.zadd(key, contents)
                else:
                    pipe.hset(key, mapping={field: str(value) for field, value in contents.items()})
                if isinstance(drawn, Expiring):
                    pipe.pexpire(key, LONG)
            await pipe.execute()

    async def snapshot(self) -> State:
        """Read every key of the queue, also those that nobody expects."""
        return await snapshot(self.redis, self.prefix)

    async def run(self, script: str, rows: Iterable[Iterable[object]] = (), **arguments: object) -> Any:
        """Run one script: its arguments by name, what it takes many of as rows.

        What a script wants and is not given has a value that means nothing in particular.
        """
        given: dict[str, object] = {
            "prefix": self.prefix,
            "now_ms": NOW,
            "session": ME,
            "return_front": 0,
            "max_bytes": 8 << 20,
            "grace_ms": 2000,
            "count": 500,
            "start": 0,
            "age_ms": 0,
            "which": "all",
            **arguments,
        }
        bound = bind(script, QueueKeys(self.prefix, str(given["session"])))
        named = {name: value if isinstance(value, int) else encoded(value) for name, value in given.items()}
        rest = [encoded(value) for row in rows for value in row]
        return await self.send(*bound.command(named, rest))

    async def send(self, *command: str | bytes | float) -> Any:
        """Send one command."""
        return await self.redis.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs has no types


def encoded(value: object) -> bytes:
    """Give a value as the server is told it."""
    return value if isinstance(value, bytes) else str(value).encode()


async def snapshot(redis: Redis, prefix: str) -> State:
    """Read every key of one queue, with type, contents, and whether it has a time to live."""
    keys = [key async for key in redis.scan_iter(match=_escaped(f"{prefix}:") + "*", count=1000)]
    async with redis.pipeline(transaction=True) as pipe:
        for key in keys:
            pipe.type(key)
            pipe.pttl(key)
        found = zip(keys, batched(await pipe.execute(), 2), strict=True)
        about = [(key, kind, ttl) for key, (kind, ttl) in found if kind != b"none"]
        for key, kind, _ in about:
            _READ[kind](pipe, key)
        contents = await pipe.execute()
    state: State = {}
    for (key, kind, ttl), raw in zip(about, contents, strict=True):
        if raw is None or (kind != b"string" and not raw):
            continue  # its time to live ended between the reads: no type is kept empty but a string
        name, drawn = _text(key).removeprefix(f"{prefix}:"), _DRAW[kind](raw)
        state[name] = drawn if ttl < 0 else Expiring(drawn)
    return state


#: By type: how a key is read, and how what was read is drawn.
_READ: dict[bytes, Callable[[Pipeline, bytes], object]] = {
    b"string": lambda pipe, key: pipe.get(key),
    b"list": lambda pipe, key: pipe.lrange(key, 0, -1),
    b"set": lambda pipe, key: pipe.smembers(key),
    b"zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    b"hash": lambda pipe, key: pipe.hgetall(key),
    b"stream": lambda pipe, key: pipe.xrange(key),
}
_DRAW: dict[bytes, Callable[[Any], Contents]] = {
    b"string": lambda raw: raw.decode(errors="backslashreplace"),
    b"list": lambda raw: [_text(value) for value in raw],
    b"set": lambda raw: {_text(value) for value in raw},
    b"zset": lambda raw: {_text(value): score for value, score in raw},
    # The lease script fills up a value of the ledger with spaces, to make a table of a small hash.
    b"stream": lambda raw: [f"{_text(entry[b'what'])} {_text(entry[b'id'])}" for _, entry in raw],
    b"hash": lambda raw: {_text(field): _text(value).rstrip() for field, value in raw.items()},
}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in r"\*?[]" else character for character in text)
