"""Puts states on a real server and reads them back, many steps in one trip."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from leasequeue.keys import KEYS
from lua.compose.writer import Sources
from tests.stateful.explorer.state import DELAYED, FOREIGN, FREE, NONE, OURS, ItemKeys, Keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasequeue.scripting.scripts import Script

#: The queue's name, and the time at which every step of a search runs.
PREFIX = "q"
NOW_MS = 1_700_000_000_000
#: A unit of time (ms). The keys with a time to live expire on the server's own clock, so it is long enough
#: that the real time between two commands does not matter.
UNIT_MS = 60_000
#: The value of a lease key, by its kind.
HOLDERS = {OURS: "lh:session", DELAYED: "lh:scheduled", FOREIGN: "a foreign session"}
DATA = "data"

_HELPERS = """
local layout = { %s }
local unit = %d
local function some(values, count)
  return values, count + (#values > 0 and 1 or 0)
end
local function dump()
  local out, n = {}, 0
  for i, key in ipairs(layout.lists) do out[#out + 1], n = some(redis.call('LRANGE', key, 0, -1), n) end
  for i, key in ipairs(layout.zsets) do
    out[#out + 1], n = some(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), n)
  end
  for i, key in ipairs(layout.sets) do out[#out + 1], n = some(redis.call('SMEMBERS', key), n) end
  for i, key in ipairs(layout.hashes) do out[#out + 1], n = some(redis.call('HGETALL', key), n) end
  local values = redis.call('MGET', unpack(layout.strings))
  for i, value in ipairs(values) do n = n + (value and 1 or 0) end
  out[#out + 1] = values
  values = redis.call('MGET', unpack(layout.leases))
  local ends = {}
  for i, value in ipairs(values) do
    ends[i] = 0
    if value then
      n = n + 1
      ends[i] = math.floor((redis.call('PTTL', layout.leases[i]) + unit / 2) / unit)
    end
  end
  out[#out + 1], out[#out + 2] = values, ends
  local dead = {}
  for i, key in ipairs(layout.dead) do
    dead[i] = redis.call('EXISTS', key)
    n = n + dead[i]
  end
  out[#out + 1] = dead
  out[#out + 1] = redis.call('DBSIZE') - n - redis.call('EXISTS', '~base')
  return cjson.encode(out)
end
local function restore(text)
  redis.call('DEL', unpack(layout.all))
  local state, at = cjson.decode(text), 0
  for i, key in ipairs(layout.lists) do
    at = at + 1
    if #state[at] > 0 then redis.call('RPUSH', key, unpack(state[at])) end
  end
  for i, key in ipairs(layout.zsets) do
    at = at + 1
    for j = 1, #state[at], 2 do redis.call('ZADD', key, state[at][j + 1], state[at][j]) end
  end
  for i, key in ipairs(layout.sets) do
    at = at + 1
    if #state[at] > 0 then redis.call('SADD', key, unpack(state[at])) end
  end
  for i, key in ipairs(layout.hashes) do
    at = at + 1
    if #state[at] > 0 then redis.call('HSET', key, unpack(state[at])) end
  end
  at = at + 1
  for i, key in ipairs(layout.strings) do
    if state[at][i] then redis.call('SET', key, state[at][i]) end
  end
  at = at + 1
  for i, key in ipairs(layout.leases) do
    if state[at][i] then redis.call('SET', key, state[at][i], 'PX', state[at + 1][i] * unit) end
  end
  at = at + 2
  for i, key in ipairs(layout.dead) do
    if state[at][i] == 1 then
      redis.call('HSET', key, 'data', 'data', 'error', '', 'attempt', 1, 'token', 1)
    end
  end
end
"""
_LOAD = "restore(ARGV[1]) redis.call('SET', '~base', dump()) return 1"
_BACK = """
local after, base = dump(), redis.call('GET', '~base')
if after == base then return false end
restore(base)
return after
"""


class Fault(NamedTuple):
    """In `file` of `lua/`, `old` becomes `new`, in all places."""

    file: str
    old: str
    new: str
    places: int = 1


def composed(faults: Iterable[Fault] = ()) -> dict[str, Script]:
    """Return the scripts, with faults put into their texts."""
    texts = dict(Sources.read().texts)
    for fault in faults:
        name = fault.file.removesuffix(".lua")
        count = texts[name].count(fault.old)
        assert count == fault.places, f"{fault.file} has {fault.old!r} {count} times, not {fault.places}"
        texts[name] = texts[name].replace(fault.old, fault.new)
    return {**Sources(texts).compose()}


class Layout:
    """The keys of one queue with a few ids and sessions, in the order in which they are dumped."""

    def __init__(self, ids: Sequence[str], sessions: int) -> None:
        self.ids = ids
        self.number = {name: n for n, name in enumerate(ids)}
        self.sessions = [f"lh:{n}" for n in range(sessions)]
        gone = KEYS["gone"].type
        zsets = ["deadlines", "scheduled", "sessions", "dead", *(["gone"] if gone == "zset" else [])]
        self.gone_is_a_zset = gone == "zset"
        lists = ["queue", "processing", "cleaning", *(f"inbox:{one}" for one in self.sessions)]
        leases = [f"{name}:{one}" for name in ("lease", "leased_by_session") for one in ids]
        self.names = {
            "lists": lists,
            "zsets": zsets,
            "sets": [] if gone == "zset" else ["gone"],
            "hashes": ["ledger", "errors"],
            "strings": ["fence", *(f"item:{one}" for one in ids)],
            "leases": leases,
            "dead": [f"dead:{one}" for one in ids],
        }

    def lua(self, code: str) -> bytes:
        """Return a script that begins with functions to dump and restore these keys."""
        names = {kind: [f"{PREFIX}:{name}" for name in names] for kind, names in self.names.items()}
        names["all"] = [name for kind in names.values() for name in kind]
        table = ", ".join(
            f"{kind} = {{ {', '.join(json.dumps(name) for name in names)} }}" for kind, names in names.items()
        )
        return (_HELPERS % (table, UNIT_MS) + code).encode()

    def text(self, keys: Keys, recent: Sequence[int]) -> bytes:
        """Return keys as the functions in Lua read them; `recent`: the items that were leased just now."""
        ids, items = self.ids, keys.items

        def scores(times: Iterable[int]) -> list[str]:
            pairs = zip(ids, times, strict=True)
            return [part for one, time in pairs if time != NONE for part in (one, score(time))]

        ends = [(one, end) for one, (end, _) in zip(self.sessions, keys.sessions, strict=True) if end != NONE]
        zsets: list[list[str]] = [
            scores(one.deadline for one in items),
            scores(one.due for one in items),
            [part for one, end in ends for part in (one, score(end))],
            [part for one, item in zip(ids, items, strict=True) if item.dead for part in (one, "1")],
        ]
        gone = scores(one.gone for one in items)
        records = [
            part
            for n, (one, item) in enumerate(zip(ids, items, strict=True))
            if item.first
            for part in (one, f"{item.first} {item.last} 1 {NOW_MS - (0 if n in recent else UNIT_MS)}")
        ]
        errors = [part for one, item in zip(ids, items, strict=True) if item.error for part in (one, "error")]
        leases = [(one.lease, one.lease_end) for one in items]
        leases += [(one.leased_by, one.leased_by_end) for one in items]
        lists = [keys.queue, keys.processing, keys.cleaning, *(inbox for _, inbox in keys.sessions)]
        return json.dumps(
            [
                *([ids[item] for item in line] for line in lists),
                *zsets,
                gone if self.gone_is_a_zset else gone[::2],
                records,
                errors,
                [str(keys.fence) if keys.fence else False, *(DATA if one.exists else False for one in items)],
                [HOLDERS[kind] if kind != FREE else False for kind, _ in leases],
                [end // 2 if end != NONE else 0 for _, end in leases],
                [one.dead for one in items],
            ]
        ).encode()

    def keys(self, text: bytes, now_ms: int = NOW_MS) -> Keys:
        """Return the keys of a dump."""
        dumped: list[Any] = json.loads(text)
        lines = [tuple(self.number[one] for one in line) for line in dumped[: 3 + len(self.sessions)]]
        deadlines, due, ends, dead, gone, records, errors, strings, values, lasts, letters, more = dumped[
            len(lines) :
        ]
        strangers = more
        if not self.gone_is_a_zset:
            gone = [part for one in gone for part in (one, str(now_ms))]
        end_of, due_of, gone_of, until = (_times(pairs, now_ms) for pairs in (deadlines, due, gone, ends))
        record_of = dict(zip(records[::2], records[1::2], strict=True)) if records else {}
        items = []
        for n, one in enumerate(self.ids):
            first, last = map(int, record_of.pop(one).split()[:2]) if one in record_of else (0, 0)
            lease, leased_by = values[n], values[n + len(self.ids)]
            buried = one in (dead or [])[::2]
            strangers += buried != letters[n]
            items.append(
                ItemKeys(
                    exists=int(bool(strings[n + 1])),
                    deadline=end_of.pop(one, NONE),
                    due=due_of.pop(one, NONE),
                    gone=gone_of.pop(one, NONE),
                    first=first,
                    last=last,
                    lease=_kind(lease),
                    lease_end=2 * lasts[n] if lease else NONE,
                    leased_by=_kind(leased_by),
                    leased_by_end=2 * lasts[n + len(self.ids)] if leased_by else NONE,
                    dead=letters[n],
                    error=int(one in (errors or [])[::2]),
                )
            )
        strangers += len(end_of) + len(due_of) + len(gone_of) + len(record_of)
        sessions = tuple(
            (until.pop(name, NONE), inbox) for name, inbox in zip(self.sessions, lines[3:], strict=True)
        )
        strangers += len(until)
        fence = int(strings[0] or 0)
        return Keys(tuple(items), lines[0], lines[1], lines[2], sessions, fence, strangers)


def ms(half_units: int) -> int:
    """Return a time of half units in ms."""
    return half_units * UNIT_MS // 2


def score(time: int) -> str:
    """Return a time as the scripts write it."""
    return f"{NOW_MS + (time // 2) * UNIT_MS}{'.5' if time & 1 else ''}"


def _times(pairs: list[str] | dict[str, str], now_ms: int) -> dict[str, int]:
    found = {}
    for n in range(0, len(pairs), 2):
        assert isinstance(pairs, list)
        left = float(pairs[n + 1]) - now_ms
        found[pairs[n]] = 2 * round(left / UNIT_MS) + (left % 1 != 0)
    return found


def _kind(value: str | None) -> int:
    if not value:
        return FREE
    if not value.startswith("lh:"):
        return FOREIGN
    return DELAYED if value == HOLDERS[DELAYED] else OURS


Command = tuple[str | int | bytes, ...]


def pack(command: Command) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub wants one value
    return packed


class Wire:
    """A connection on which many commands are under way."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("redis://").partition("/")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)

    def call(self, *arguments: str | int | bytes) -> Any:
        """Send one command and return its reply."""
        self.send(pack(arguments))
        reply = self.reply()
        if isinstance(reply, hiredis.HiredisError):
            raise reply
        return reply

    def send(self, data: bytes) -> None:
        """Send packed commands."""
        self._socket.sendall(data)

    def reply(self) -> Any:
        """Return the next reply; an error is returned, too."""
        while (reply := self._reader.gets()) is Ellipsis:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Board:
    """The server, with the scripts of a search loaded, and helpers that put states on it."""

    def __init__(self, url: str, layout: Layout, faults: Iterable[Fault]) -> None:
        self.wire = Wire(url)
        self.wire.call("FLUSHALL")
        self.layout = layout
        #: When the deep clean began.
        self.started_ms = NOW_MS
        self.scripts = composed(faults)
        for script in self.scripts.values():
            assert self.wire.call("SCRIPT", "LOAD", script.body) == script.sha
        self._load, back, dump = (
            self.wire.call("SCRIPT", "LOAD", layout.lua(code)) for code in (_LOAD, _BACK, "return dump()")
        )
        #: Dumps the keys, and puts the loaded state back; the reply is nil if nothing has changed.
        self.back = pack(("EVALSHA", back, 0))
        self.dumping: Command = ("EVALSHA", dump, 0)
        self.dump = pack(self.dumping)
        self._dumped: dict[bytes, Keys] = {}

    def load(self, keys: Keys, recent: Sequence[int] = ()) -> bytes:
        """Return the command that puts keys on the server; `recent`: the items that were leased just now."""
        return pack(("EVALSHA", self._load, 0, self.layout.text(keys, recent)))

    def keys(self, text: bytes) -> Keys:
        """Return the keys of a dump that was made at `NOW_MS`."""
        found = self._dumped.get(text)
        if found is None:
            if len(self._dumped) > 200_000:
                self._dumped.clear()
            found = self._dumped[text] = self.layout.keys(text)
        return found

    def close(self) -> None:
        """Close the connection."""
        self.wire.close()

    def script(
        self, name: str, *rest: str | int, session: int | str = 0, now_ms: int = NOW_MS, **others: str | int
    ) -> Command:
        """Return the command that runs a script, its keys and arguments given by name."""
        script = self.scripts[name]
        holder = self.layout.sessions[session] if isinstance(session, int) else session
        keys = [f"{PREFIX}:{'inbox:' + holder if key == 'inbox' else key}" for key in script.keys]
        values = {**_USUAL, "session": holder, "now_ms": now_ms, **others}
        arguments = [values[argument] for argument, kind in script.arguments.items() if kind != "rest"]
        return ("EVALSHA", script.sha, len(keys), *keys, *arguments, *rest)


#: Arguments that are the same in each step.
_USUAL: dict[str, str | int] = {
    "prefix": PREFIX,
    "return_front": 0,
    "max_bytes": 1 << 20,
    "count": 500,
    "cursor": "0",
    "set_many": 0,
    "pattern": f"{PREFIX}:item:*",
    "start": 0,
}
