"""Seed the keys of a queue, run scripts on them, and compare all keys with what a test expects.

A key space is a plain dict from a key's name (without the prefix) to its contents:

    list    ["left", …, "right"]        hash    {"field": "value"}
    set     {"member"}                  zset    {"member": 1.0}
    string  "value"                     with a time to live    Expiring("value")

`picture` makes one from the states of items, so that a test shows the state before and after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.keys import QueueKeys
from leasequeue.queue.pushes.seals import unsealed
from leasequeue.wire.runner import BoundScript
from leasequeue.wire.scripts import load
from tests.queue.keyspace import glob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

#: The time of every script, in ms, unless a test passes another. No test here reads a clock.
NOW = 1_000_000
#: The session that runs the scripts, unless a test passes another.
ME = "lh:me"
#: The secret of a session, with which messages to it are sealed, and the word of its registration.
SECRET, WORD = "5ec4e7", "30d"
#: How it is noted that a session waits.
MY_NOTE = f"{SECRET}@{ME}"
#: The time to live of seeded keys that have one, in real ms: longer than any test.
LONG = 600_000

Contents = str | list[str] | set[str] | dict[str, float] | dict[str, str]


class Expiring(NamedTuple):
    """The contents of a key that has a time to live."""

    contents: Contents


State = dict[str, Contents | Expiring]


@dataclass(frozen=True)
class Held:
    """A lease of ours, as it is stored in several keys."""

    token: int
    ends: float = NOW + 60_000
    first: int | None = None
    attempt: int = 1
    at: int = NOW
    by: str = ME

    @property
    def entry(self) -> str:
        """Return the entry of the ledger."""
        return f"{self.first or self.token} {self.token} {self.attempt} {self.at}"


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    token: int
    at: int = NOW
    error: str = "an error"
    attempt: int = 1


def data_of(item_id: str) -> str:
    """Return the data of an item in a picture."""
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
    """Make the key space of a queue that no foreign client has used.

    Args:
        waiting: Ids in the order in which they would be leased.
        leased: Ids and their leases, in the order in which they were leased.
        scheduled: Ids and when they fall due.
        past: Leases that have ended, of items that wait or are scheduled again.
        dead: Ids and their dead letters.
        fence: The last token; 0: there is no such key.
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
    """Make the two keys that show a lease to foreign clients."""
    return {
        f"lease:{item_id}": Expiring(holder),
        f"leased_by_session:{item_id}": Expiring(holder),
    }


class Given(NamedTuple):
    """An item in a reply of `lease_many`."""

    id: str
    data: str
    token: int
    attempt: int


def listed(contents: Contents | Expiring) -> list[str]:
    """Return the contents of a key that is a list."""
    assert isinstance(contents, list)
    return contents


def items_of(reply: list[Any]) -> list[Given]:
    """Return the items in a reply of `lease_many`, after its first three values."""
    return [
        Given(_text(item_id), _text(data), token, attempt) for item_id, data, token, attempt in leased(reply)
    ]


def leased(reply: list[Any]) -> list[list[Any]]:
    """Return id, data, token and attempt of each item in a reply of `lease_many`, not what they carry."""
    return batched([one for one in reply[3:] if not isinstance(one, list)], 4)


def batched(values: list[Any], size: int) -> list[list[Any]]:
    """Split a list into pieces of the same size."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def new(item_id: str, *, delay: int = 0, unique: bool = False) -> tuple[object, ...]:
    """Return a row of `add_items` that adds an item of a picture."""
    return (item_id, data_of(item_id), delay, int(unique))


async def received(channel: PubSub) -> Any:
    """Return the next message of a channel."""
    message = await channel.get_message(timeout=120)
    assert message is not None
    return message["data"]


async def received_text(channel: PubSub) -> bytes | None:
    """Return the text of the next message of a channel, if it was sealed with `SECRET`."""
    return unsealed(await received(channel), SECRET.encode())


class Call(NamedTuple):
    """A call of a script: its rows and its other arguments."""

    script: str
    rows: Iterable[Iterable[object]] = ()
    arguments: Mapping[str, object] = {}


class Space:
    """The keys of one queue on a real server."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self._loaded: set[str] = set()

    def key(self, name: str) -> str:
        """Return a key's full name."""
        return f"{self.prefix}:{name}"

    async def seed(self, state: Mapping[str, Contents | Expiring]) -> None:
        """Write keys with one call, replacing what they held."""
        entries = []
        for name, drawn in state.items():
            contents, expires = (drawn.contents, True) if isinstance(drawn, Expiring) else (drawn, False)
            command, values = _written(contents)
            entries.append([name, expires, command, values])
        await self.send("EVAL", SEED, 1, f"{self.prefix}:", json.dumps(entries), LONG)

    async def snapshot(self) -> State:
        """Read every key of the queue, also those that no test expects."""
        return await snapshot(self.redis, self.prefix)

    async def run(self, script: str, rows: Iterable[Iterable[object]] = (), **arguments: object) -> Any:
        """Run a script, with its arguments by name and its rest as rows.

        An argument that the script needs and that is not passed gets a neutral value.
        """
        [reply] = await self.run_all([Call(script, rows, arguments)])
        return reply

    async def lease_all(self, count: int, lease_ms: int = 60_000) -> list[Given]:
        """Lease up to so many items, in as many calls as it takes."""
        given: list[Given] = []
        more = True
        while more and len(given) < count:
            reply = await self.run("lease_many", [(count - len(given), lease_ms)])
            given += items_of(reply)
            more = reply[1] == 0
        return given

    async def apply(
        self, before: State, script: str, rows: Iterable[Iterable[object]] = (), **arguments: object
    ) -> tuple[Any, State]:
        """Seed keys and run a script on them; return its reply and the keys after it."""
        await self.seed(before)
        return await self.run(script, rows, **arguments), await self.snapshot()

    async def run_all(self, calls: Iterable[Call | tuple[str | bytes, ...]]) -> list[Any]:
        """Run scripts and commands one after the other, with one trip to the server; return their replies."""
        async with self.redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*(self._command(call) if isinstance(call, Call) else call))
            return await pipe.execute()

    def _command(self, call: Call) -> tuple[bytes, ...]:
        script = load()[call.script]
        if call.script in self._loaded:
            return (b"EVALSHA", script.sha, *self.tail(call))
        self._loaded.add(call.script)
        return (b"EVAL", script.body, *self.tail(call))

    def tail(self, call: Call) -> tuple[bytes, ...]:
        """Return the number of keys, the keys and the arguments of a call, as they are sent to the server."""
        arguments: dict[str, object] = {
            "prefix": self.prefix,
            "now_ms": NOW,
            "session": ME,
            "secret": SECRET,
            "word": WORD,
            "before": "",
            "return_front": 0,
            "forget_ms": b"",
            "max_bytes": 8 << 20,
            "by_level": 0,
            "whole": 0,
            "grace_ms": 2000,
            "count": 500,
            "start": 0,
            "age_ms": 0,
            "publish": "",
            "rollup": "",
            "every_ms": "",
            "horizon_ms": "",
            "set_many": 0,
            "feeds": "*",
            "as_failed": "",
            "started_ms": 0,
            "cursor": "0",
            "of_group": "",
            "which": "all",
            "lease_ms": "",
            "step": "restore",
            "clean": "",
            **call.arguments,
        }
        bound = BoundScript(call.script, QueueKeys(self.prefix, str(arguments["session"])))
        named = {
            name: value if isinstance(value, int) else encoded(value) for name, value in arguments.items()
        }
        return bound.tail(named, [encoded(value) for row in call.rows for value in row])

    async def send(self, *command: str | bytes | float) -> Any:
        """Send a command."""
        return await self.redis.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs has no types


def encoded(value: object) -> bytes:
    """Return a value as it is sent to the server."""
    return value if isinstance(value, bytes) else str(value).encode()


def _written(contents: Contents) -> tuple[str, list[str]]:
    """Return the command that writes the contents of a key, and its values."""
    if isinstance(contents, str):
        return "SET", [contents]
    if isinstance(contents, list):
        return "RPUSH", contents
    if isinstance(contents, set):
        return "SADD", [*contents]
    if all(isinstance(value, int | float) for value in contents.values()):
        return "ZADD", [text for member, score in contents.items() for text in (repr(score), member)]
    return "HSET", [text for field, value in contents.items() for text in (field, str(value))]


#: Writes keys: rows of name, whether it has a time to live, command and values.
SEED = """
for _, entry in ipairs(cjson.decode(ARGV[1])) do
  local key, values = KEYS[1] .. entry[1], entry[4]
  redis.call('DEL', key)
  for from = 1, #values, 1000 do
    redis.call(entry[3], key, unpack(values, from, math.min(from + 999, #values)))
  end
  if entry[2] then
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
"""
#: Returns name, type, time to live and contents of each key that matches a pattern.
READ = """
local commands = {
  string = { 'GET' }, list = { 'LRANGE', 0, -1 }, set = { 'SMEMBERS' }, hash = { 'HGETALL' },
  zset = { 'ZRANGE', 0, -1, 'WITHSCORES' }, stream = { 'XRANGE', '-', '+' },
}
local found, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', KEYS[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local kind = redis.call('TYPE', key).ok
    local command = commands[kind]
    if command then
      local contents = redis.call(command[1], key, unpack(command, 2))
      found[#found + 1] = { key, kind, redis.call('PTTL', key), contents }
    end
  end
until cursor == '0'
return found
"""


async def snapshot(redis: Redis, prefix: str) -> State:
    """Read every key of a queue, with contents, and whether it has a time to live, at one moment."""
    found = await redis.execute_command("EVAL", READ, 1, glob(prefix) + b":*")  # type: ignore[no-untyped-call]  # theirs has no types
    state: State = {}
    for key, kind, ttl, raw in found:
        name, contents = _text(key).removeprefix(f"{prefix}:"), _DRAW[kind](raw)
        state[name] = contents if ttl < 0 else Expiring(contents)
    return state


#: By type: how the contents of a key are shown.
_DRAW: dict[bytes, Callable[[Any], Contents]] = {
    b"string": lambda raw: raw.decode(errors="backslashreplace"),
    b"list": lambda raw: [_text(value) for value in raw],
    b"set": lambda raw: {_text(value) for value in raw},
    b"zset": lambda raw: {_text(value): float(score) for value, score in batched(raw, 2)},
    # An entry begins with its fields `what` and `id`.
    b"stream": lambda raw: [f"{_text(entry[1])} {_text(entry[3])}" for _, entry in raw],
    # The lease script fills up a value of the ledger with spaces, to make a table of a small hash.
    b"hash": lambda raw: {_text(field): _text(value).rstrip() for field, value in batched(raw, 2)},
}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
