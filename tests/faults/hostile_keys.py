"""What another client may write into any key of a queue: of its type, of other types, in each of its fields.

The keys are those of `leasequeue.keys`, so a new key is covered without a change here. What a right key holds
is taken from the queue of the tests of scripts; of a key that is not there, only type and name are known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasequeue.keys import KEYS, MADE_KEYS, NONE
from tests.lua.space import Expiring
from tests.lua.test_wrong_types import BUSY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis.asyncio.client import Pipeline

DEEP = 100_000
#: Texts that are no UTF-8, no number or too large a one, or no JSON that can be read.
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "no UTF-8": b"\xff\xfe\0",
    "line break and NUL": b"a\r\n\0\x1b]0;x\x07",
    "lone surrogate": rb'"\ud800"',
    "NaN": b"NaN",
    "infinity": b"inf",
    "minus infinity": b"-inf",
    "too large": b"1e999",
    "negative": b"-1",
    "fraction": b"0.5",
    "400 digits": b"9" * 400,
    "5,000 digits": b"9" * 5000,
    "two to the 63": b"9223372036854775808",
    "deep list": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "1 MiB": b"x" * (1 << 20),
    "null": b"null",
    "true": b"true",
    "list": b"[]",
    "list of null": b"[null]",
    "object": b"{}",
    "text": b'"x"',
}
#: The same for a part of a value. What is deep or long there meets the same parser as a whole value does: it
#: only has to be deeper than cjson and Python's parser go, which is 1,000.
PARTS = TEXTS | {"deep list": b"[" * 2000 + b"]" * 2000, "deep object": b'{"a":' * 2000 + b"1" + b"}" * 2000}
PARTS["1 MiB"] = b"x" * (1 << 14)
#: Scores of sorted sets.
SCORES = (float("inf"), float("-inf"), -1.0, 0.0, 0.5, 1e300, -1e300, 2.0**63, 1e15)
#: How many bytes of a text may be part of a key's name.
LONGEST_NAME = 200

#: What a stage is, with all its facts.
DEFINITION = json.dumps(
    {
        "queue": "q",
        "data": "d",
        "children": 1,
        "then": ["b"],
        "of": 1,
        "join": "all",
        "policy": "all",
        "level": 1,
    }
)
#: What is in the keys that the queue of the tests of scripts does not have.
MORE: dict[str, Any] = {
    "delivered:lh:x": "1 id",
    "gone": {"id": 1.0},
    "idle": {"lh:x": 1.0},
    "watchers": {"id": "lh:x lh:y"},
    "events:keep": {"last": "7", "count": "1000", "age_ms": "60000", "live": "plain"},
    "control": {
        "rate": "1000:1",
        "rate/g": "1000:1",
        "concurrency": "1",
        "concurrency/*": "1",
        "ageing": "5000",
        "paused": "inf 1 why",
        "paused/g": "inf 1 why",
        "shared": "pool",
    },
    "schedules": {"s1": "1 once every 1000 -", "s2": "1 all cron UTC * * * * *"},
    "unstarted": {"k": "id"},
    "unsettled": {"id": "home\0r1\0a\0", "!home\0r1\0a": "cancel"},
    "options": {"id": '{"level":1,"group":"g","expires":1,"trace":"00-1-2-3","run":"home\\u0000r1\\u0000a"}'},
    "workers": {
        "lh:x": json.dumps(
            {
                "worker": "lh:x",
                "name": "n",
                "host": "h",
                "pid": 1,
                "started": 1,
                "at": 1,
                "connections": [1],
                "server": "s",
                "alive_ms": 1,
                "gone_after": 1,
                "concurrency": 1,
                "active": 1,
                "runs": 1,
                "failures": 1,
                "running": [["id", "h", 1]],
                "permanent": False,
                "quiet": True,
            }
        ),
        "told:lh:x": "stop",
    },
    "run:r1": {
        "state": "active",
        "active": "1",
        "flow": "f",
        "created": "1",
        "ended": "1",
        "keep": "1",
        "lookup": '[["user_id",["62"]]]',
        "correlation": "c",
        "level": "1",
        "trace": "t",
        "error": "a: b",
        "result": "a",
        "attributes": '["x"]',
        "stages": '["a"]',
        "a:x": "1",
        "s:a": "x",
        "n:a": DEFINITION,
        "e:a": "bad",
        "t:a": "1",
        "j:a": "1 1 0 0 0",
        "m:a": "1",
        "r:a": "1",
        "b:a": "[]",
        "k:a/0": '{"queue":"q","data":"d"}',
        "s:a/0": "w",
        "r:a/0": "1",
    },
}


@dataclass
class Hostile:
    """The keys of one queue as another client has written them, and the ids and names in them."""

    what: str
    keys: dict[bytes, Any] = field(default_factory=dict)
    ids: list[bytes] = field(default_factory=list)

    def write(self, pipeline: Pipeline, queue: str) -> None:
        """Write them, and an item under each id."""
        for one in filter(is_shown, dict.fromkeys(self.ids)):
            pipeline.set(f"{queue}:item:".encode() + one, b"{}")
            pipeline.lpush(f"{queue}:queue", one)
        for name, contents in self.keys.items():
            key = f"{queue}:".encode() + name
            pipeline.delete(key)
            if isinstance(contents, bytes):
                pipeline.set(key, contents)
            elif isinstance(contents, list):
                pipeline.rpush(key, *contents)
            elif isinstance(contents, set):
                pipeline.sadd(key, *contents)
            elif isinstance(contents, tuple):
                for one in contents:
                    pipeline.execute_command("XADD", key, one[0], *one[1:])
            elif contents and isinstance(next(iter(contents.values())), float):
                pipeline.zadd(key, contents)
            elif contents:
                pipeline.hset(key, mapping=contents)


def all_keys() -> dict[str, str]:
    """Return the keys of the table that can exist, and the type of each."""
    return {
        name: key.type.partition(",")[0].replace("counter", "string").replace("any", "hash")
        for name, key in {**KEYS, **MADE_KEYS}.items()
        if name != NONE
    }


def is_shown(item_id: bytes) -> bool:
    """Return whether this can be the id of an item, and so of a job in a path."""
    return 0 < len(item_id) <= LONGEST_NAME


def hostile(name: str, kind: str) -> Iterator[Hostile]:
    """Yield queues in which a key of the table is hostile: of its own type, and of others."""
    stored, examples = _examples(name)
    is_family = "<" in name or name == "inbox"
    if is_family:
        yield _family(name, stored, kind, examples)
    elif kind in {"list", "set", "zset"}:
        yield _members(stored, kind)
    elif kind == "hash" and name not in {"events:keep", "control"}:
        yield _entries(stored, examples)
    elif kind == "hash":  # with the same fields always
        for what, text in TEXTS.items():
            yield Hostile(what, {stored: dict.fromkeys(examples, text)})
    elif kind == "stream":
        yield _stream(stored)
    else:
        for what, text in _texts_of(examples):
            yield Hostile(what, {stored: text})
    what, contents = ("string", b"x") if kind != "string" else ("list", [b"x"])
    yield Hostile(f"is a {what}", {_made(stored, b"v0") if is_family else stored: contents}, [b"v0"])


def _examples(name: str) -> tuple[bytes, Any]:
    """Return the key's name, with a placeholder, and what is in it."""
    known: Mapping[str, Any] = BUSY | MORE
    head, bracket, rest = name.partition("<")
    tail = rest.partition(">")[2]
    if name == "inbox":
        head, bracket, tail = "inbox:", "<", ""
    if not bracket:
        contents = known.get(name)
    else:
        fitting = (key for key in known if key.startswith(head) and key.endswith(tail) and key != head)
        found = next(fitting, None)
        contents = None if found is None else known[found]
    contents = contents.contents if isinstance(contents, Expiring) else contents
    if isinstance(contents, dict):
        contents = {key.encode(): str(value).encode() for key, value in contents.items()}
    return f"{head}%s{tail}".encode() if bracket else name.encode(), contents


def _made(stored: bytes, one: bytes) -> bytes:
    return stored.replace(b"%s", one)


def _family(name: str, stored: bytes, kind: str, examples: Any) -> Hostile:
    """Make a key for each text; of a hash, one for each text in each field."""
    found = Hostile("of all kinds")

    def put(contents: Any) -> None:
        item_id = b"v%d" % len(found.ids)
        found.ids.append(item_id)
        found.keys[_made(stored, item_id)] = contents

    if kind == "hash":
        fields = examples or {b"field": b"value"}
        for changed in fields:
            for _, text in _texts_of(fields[changed]):
                put({**fields, changed: text})
            put({one: text for one, text in fields.items() if one != changed} or {b"other": b"x"})
    elif kind in {"list", "set", "zset"}:
        put(_members(stored, kind).keys[stored])
    else:
        for _, text in _texts_of(examples):
            put(text)
    for text in TEXTS.values():  # and hostile names
        found.keys[_made(stored, text[:LONGEST_NAME])] = next(iter(found.keys.values()))
        found.ids.append(text[:LONGEST_NAME])
    if name == "run:<id>":
        found.keys[b"runs:active"] = dict.fromkeys(found.ids, 1.0)
        found.keys[b"runs:ends"] = dict.fromkeys(found.ids, float("inf"))
    if name == "dead:<id>":
        found.keys[b"dead"] = dict.fromkeys(found.ids, 1.0)
    return found


def _members(stored: bytes, kind: str) -> Hostile:
    members = [*TEXTS.values()]
    if kind == "list":
        return Hostile("of all kinds", {stored: members}, members)
    if kind == "set":
        return Hostile("of all kinds", {stored: {*members}}, members)
    scored = {member: SCORES[at % len(SCORES)] for at, member in enumerate(members)}
    scored |= {b"s%d" % at: score for at, score in enumerate(SCORES)}
    return Hostile("of all kinds", {stored: scored}, [*scored])


def _entries(stored: bytes, examples: Any) -> Hostile:
    """Make a hash with an entry for each text: as the name, as the value, and in the value's JSON."""
    found: dict[bytes, bytes] = {}
    values = [*(examples or {b"id": b"value"}).values()]
    for text in TEXTS.values():
        found[text] = values[0]
    for value in values:
        for _, text in _texts_of(value):
            found[b"v%d" % len(found)] = text
    for name in examples or ():
        if name[:1] == b"!" or name.startswith(b"told:"):
            found |= {name + b"%d" % at: text for at, text in enumerate(TEXTS.values())}
    return Hostile("of all kinds", {stored: found}, [*found])


def _stream(stored: bytes) -> Hostile:
    entries = []
    right = {
        b"what": b"added",
        b"id": b"x",
        b"time": b"1",
        b"due": b"1",
        b"details": b'{"until":1,"count":1}',
    }
    number = 0
    for changed in right:
        for text in TEXTS.values():
            number += 1
            values = [part for name, value in {**right, changed: text}.items() for part in (name, value)]
            entries.append((b"%d-1" % number, *values))
    for text in TEXTS.values():
        number += 1
        entries.append((b"%d-1" % number, text, text))
    keep = {b"last": b"%d" % number, b"count": b"1000", b"age_ms": b"0", b"live": b"plain"}
    return Hostile("of all kinds", {stored: tuple(entries), b"events:keep": keep})


def _texts_of(example: Any) -> Iterator[tuple[str, bytes]]:
    """Yield texts in place of a value, of each part between spaces or NULs, and of each field of its JSON."""
    yield from TEXTS.items()
    text = example if isinstance(example, bytes) else str(example or "").encode()
    for space in (b" ", b"\0", b":"):
        parts = text.split(space)
        for at in range(len(parts)) if len(parts) > 1 else ():
            for what, other in PARTS.items():
                yield f"part {at}: {what}", space.join([*parts[:at], other, *parts[at + 1 :]])
    try:
        facts = json.loads(text)
    except ValueError:
        return
    for name in facts if isinstance(facts, dict) else ():
        whole = {one: json.dumps(value).encode() for one, value in facts.items()}
        for what, other in PARTS.items():
            for written in (other, json.dumps(other.decode(errors="replace")).encode()):
                changed = {**whole, name: written}
                pairs = (b"%b:%b" % (json.dumps(key).encode(), value) for key, value in changed.items())
                yield f"{name}: {what}", b"{" + b",".join(pairs) + b"}"
