"""Searches all states that can be reached on a real server, breadth first, for one that breaks a rule.

What is explored is a bound: it says what the steps are, what must hold after each, and which states are
alike. The engine keeps all keys of the server as a text, puts them back before each step, and remembers by
which steps each state was reached.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import hiredis

from leasequeue.wire.scripts import load, origin_of
from lua.compose.composer import compose
from lua.compose.linker import name_of
from lua.compose.writer import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from leasequeue.wire.scripts import Script

Command = tuple[str | int | bytes, ...]

#: Dumps and restores all keys but those that begin with `~`. The ends of keys, and scores with a fraction,
#: which are made from such ends, are rounded to units of ARGV[2], because the server's own clock continues;
#: ARGV[1] is the time of the test's clock.
_KEYS = """
local now, unit = tonumber(ARGV[1]), tonumber(ARGV[2])
local reads = {
  string = { 'GET' }, list = { 'LRANGE', 0, -1 }, hash = { 'HGETALL' }, set = { 'SMEMBERS' },
  zset = { 'ZRANGE', 0, -1, 'WITHSCORES' },
}
local writes = { list = 'RPUSH', hash = 'HSET', set = 'SADD', zset = 'ZADD' }
local function dump()
  local found, names = {}, redis.call('KEYS', '[^~]*')
  table.sort(names)
  for i, key in ipairs(names) do
    local kind, last = redis.call('TYPE', key).ok, -1
    local contents = redis.call(reads[kind][1], key, unpack(reads[kind], 2))
    if kind == 'string' then
      last = redis.call('PTTL', key)
      last = last < 0 and -1 or now + math.floor((last + unit / 2) / unit) * unit
    elseif kind == 'zset' then
      for j = 2, #contents, 2 do
        local score = tonumber(contents[j])
        if score % 1 ~= 0 then
          contents[j] = string.format('%.1f', math.floor((score - 0.5 + unit / 2) / unit) * unit + 0.5)
        end
      end
    end
    found[i] = { key, kind, contents, last }
  end
  return cjson.encode(found)
end
local function restore(text)
  for _, key in ipairs(redis.call('KEYS', '[^~]*')) do
    redis.call('DEL', key)
  end
  for _, entry in ipairs(cjson.decode(text)) do
    local key, kind, contents, last = unpack(entry)
    if kind == 'string' and last < 0 then
      redis.call('SET', key, contents)
    elseif kind == 'string' and last > now then
      redis.call('SET', key, contents, 'PX', last - now)
    elseif kind == 'zset' then
      for j = 1, #contents, 2 do
        redis.call('ZADD', key, contents[j + 1], contents[j])
      end
    elseif kind ~= 'string' then
      redis.call(writes[kind], key, unpack(contents))
    end
  end
end
"""
_LOAD = _KEYS + "restore(ARGV[3]) redis.call('SET', '~base', dump()) return 1"
_DUMP = _KEYS + "return dump()"
#: Dumps the keys, and puts the loaded ones back; the reply is nil if nothing has changed.
_BACK = (
    _KEYS
    + """
local after, base = dump(), redis.call('GET', '~base')
if after == base then return false end
restore(base)
return after
"""
)


class Fault(NamedTuple):
    """In `file` of `lua/`, `old` becomes `new`, in all places."""

    file: str
    old: str
    new: str
    places: int = 1


@cache
def composed(faults: tuple[Fault, ...] = ()) -> Mapping[str, Script]:
    """Return the scripts, with faults put into their texts."""
    if not faults:
        return load()
    sources, files = Sources(texts_with(faults)), {f"lua/{fault.file}" for fault in faults}
    return {**load()} | {
        name: compose(path, sources.scripts, sources.library)
        for path, name in ((path, name_of(path)) for path in sources.scripts)
        if files & _files_of(load()[name])
    }


def texts_with(faults: Iterable[Fault]) -> dict[str, str]:
    """Return the texts of all files of lua/, with faults put into them."""
    texts = dict(Sources.read().texts)
    for fault in faults:
        name = fault.file.removesuffix(".lua")
        count = texts[name].count(fault.old)
        assert count == fault.places, f"{fault.file} has {fault.old!r} {count} times, not {fault.places}"
        texts[name] = texts[name].replace(fault.old, fault.new)
    return texts


def _files_of(script: Script) -> set[str]:
    """Return the files that the text of a script is from."""
    origins = (origin_of(script, line) for line in range(1, script.body.count(b"\n") + 2))
    return {origin.partition(":")[0] for origin in origins if origin}


def pack(*command: str | float | bytes) -> bytes:
    """Return a command as it is sent to the server."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stubs allow one word only
    return packed


class Server:
    """A server of a search, which is emptied. Commands are sent without waiting for their replies.

    Args:
        url: The URL of the server.
        unit_ms: To how many ms the ends of keys are rounded.
    """

    def __init__(self, url: str, unit_ms: int) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._unit_ms = unit_ms
        self.call("FLUSHALL")
        self._load, self._dump, self._back = (
            self.call("SCRIPT", "LOAD", text) for text in (_LOAD, _DUMP, _BACK)
        )

    def call(self, *command: str | float | bytes) -> Any:
        """Send a command, and return the reply."""
        self.send(pack(*command))
        return checked(self.reply())

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

    def load(self, keys: bytes, now_ms: int) -> bytes:
        """Return the command that puts keys on the server as they are at a time: some have ended."""
        return pack("EVALSHA", self._load, 0, now_ms, self._unit_ms, keys)

    def dump(self, now_ms: int) -> bytes:
        """Return the command whose reply is all keys."""
        return pack("EVALSHA", self._dump, 0, now_ms, self._unit_ms)

    def back(self, now_ms: int) -> bytes:
        """Return the command that puts the loaded keys back; its reply is those before, or nil."""
        return pack("EVALSHA", self._back, 0, now_ms, self._unit_ms)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def checked(reply: Any) -> Any:
    """Return the reply of a helper."""
    if isinstance(reply, Exception):
        raise reply
    return reply


# ------------------------------------------------------------------------------------------------- the search


class Found(NamedTuple):
    """A state that was reached for the first time: its digest, from where, by which step."""

    digest: bytes
    parent: int
    step: Any
    state: Any


class Broken(NamedTuple):
    """A rule that was broken: in which state, by which step (None: in its recovery), and what."""

    parent: int
    step: Any
    what: str


class Explorer(Protocol):
    """Takes all steps from states, on one server."""

    #: How many steps it has taken, and from how many states it let the live system recover.
    steps: int
    recoveries: int

    def expand(self, states: Sequence[tuple[int, Any]], *, last: bool) -> Iterator[Found | Broken]:
        """Yield the states that follow, once each, and what is broken.

        Args:
            states: The states, each with its number.
            last: Only check these states, and take no step.
        """

    def close(self) -> None:
        """Close the connections."""


class Bound(Protocol):
    """What a search explores. No path is longer than `depth`; steps are taken from so many states."""

    @property
    def depth(self) -> int: ...
    @property
    def states(self) -> int: ...
    def start(self) -> tuple[bytes, Any]:
        """Return the first state and its digest."""

    def explorer(self, url: str) -> Explorer:
        """Return what explores it on a server."""


@dataclass
class Result:
    """What a search has found.

    Attributes:
        levels: How many new states each level has.
        steps: How many steps were taken, and from how many states the live system recovered.
        seconds: How long it took.
        path: The shortest path to a violation.
        what: The violation, or nothing.
        in_recovery: Whether the state at the end of the path does not recover, instead of its last step.
    """

    levels: list[int] = field(default_factory=list)
    steps: int = 0
    recoveries: int = 0
    seconds: float = 0.0
    path: list[Any] = field(default_factory=list)
    what: str = ""
    in_recovery: bool = False

    @property
    def states(self) -> int:
        """How many states there are."""
        return sum(self.levels)

    def __str__(self) -> str:
        steps = [*map(str, self.path), *(["all clients have died"] if self.in_recovery else [])]
        return "\n".join([self.what, *steps])


Chunk = tuple["Sequence[tuple[int, Any]]", bool]
_explorer: Explorer | None = None


def _begin(urls: Any, bound: Bound) -> None:
    global _explorer  # noqa: PLW0603 - one for each process of the pool
    _explorer = bound.explorer(urls.get())


def _expand(chunk: Chunk) -> tuple[list[Found | Broken], int, int]:
    assert _explorer is not None
    steps, recoveries = _explorer.steps, _explorer.recoveries
    found = [*_explorer.expand(chunk[0], last=chunk[1])]
    return found, _explorer.steps - steps, _explorer.recoveries - recoveries


@contextmanager
def _pool(urls: Sequence[str], bound: Bound) -> Iterator[Callable[[list[Chunk]], Iterable[Any]]]:
    if len(urls) == 1:
        _begin(SimpleNamespace(get=lambda: urls[0]), bound)
        try:
            yield lambda chunks: map(_expand, chunks)
        finally:
            assert _explorer is not None
            _explorer.close()
        return
    spawn = multiprocessing.get_context("spawn")
    given = spawn.Queue()
    for url in urls:
        given.put(url)
    with ProcessPoolExecutor(len(urls), spawn, _begin, (given, bound)) as pool:
        yield lambda chunks: pool.map(_expand, chunks)


def _path(parents: Sequence[tuple[int, Any]], number: int, *steps: Any) -> list[Any]:
    path = [step for step in steps if step is not None]
    while number > 0:
        number, step = parents[number]
        path.insert(0, step)
    return path


def search(urls: Sequence[str], bound: Bound, *, chunk: int = 200) -> Result:
    """Search breadth first, with one process for each server if there are several; stop at a violation.

    Args:
        urls: The servers, which are emptied.
        bound: What is explored.
        chunk: How many states a process is given at a time.
    """
    began, result = time.monotonic(), Result()
    parents: list[tuple[int, Any]] = [(-1, None)]
    digest, state = bound.start()
    seen, level = {digest}, [(0, state)]
    with _pool(urls, bound) as expand:
        while level and not result.what:
            left = bound.states - result.states if len(result.levels) < bound.depth else 0
            result.levels.append(len(level))
            chunks: list[Chunk] = [
                (part[n : n + chunk], last)
                for part, last in ((level[: max(left, 0)], False), (level[max(left, 0) :], True))
                for n in range(0, len(part), chunk)
            ]
            level = []
            for found, steps, recoveries in expand(chunks):
                result.steps += steps
                result.recoveries += recoveries
                for one in found:
                    if isinstance(one, Broken):
                        path = _path(parents, one.parent, one.step)
                        if not result.what or len(path) < len(result.path):
                            result.path, result.what = path, one.what
                            result.in_recovery = one.step is None
                    elif one.digest not in seen:
                        seen.add(one.digest)
                        parents.append((one.parent, one.step))
                        level.append((len(parents) - 1, one.state))
                if result.what:
                    break
    result.seconds = time.monotonic() - began
    return result
