"""Break one key or entry of a queue at random, and say which invariants its keys break.

A step of corruption deletes, duplicates or changes one key or one entry, as an outside edit, an eviction or a
restore from an old backup does.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from leasequeue.keys import KEYS, MADE_KEYS
from tests.lua.space import Expiring

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from tests.lua.space import Space, State
    from tests.stateful.recovery import View

#: What a wrong entry may contain.
TEXTS = [
    "",
    "what",
    "1 2",
    "-1 -1 -1 -1",
    "9 2 1 1",
    "1 99999999999999999999 1 1",
    "3 3 1 0",
    "{",
    "[]",
    "nan",
]
#: Scores that no script writes, relative to now or not.
SCORES = [float("inf"), float("-inf"), -1.0, 0.0, 0.5, 1e300]


class Corruption:
    """Corrupts the keys of a queue, one at a time.

    Args:
        space: The keys.
        random: Draws.
        now: The time in ms.
        types: Whether a key may get another type.
        data: Whether the data of items may be hit.
        far: How long a lease or a delay may last that is made up, in ms.
    """

    def __init__(
        self,
        space: Space,
        random: Random,
        now: int,
        *,
        types: bool,
        data: bool = True,
        far: float = 10_000_000,
    ) -> None:
        self.space = space
        self.random = random
        self.now = now
        self.data = data
        self._types = types
        self._near = [-1000.0, -0.5, 0.0, 0.5, 1000.0, far, far + 0.5]
        self._steps = [self.delete, self.delete, self.remove, self.remove, self.remove, self.persist]
        self._steps += [self.insert] * 4
        if types:
            self._steps.append(self.retype)
        #: The commands that were sent.
        self.sent: list[str] = []

    async def step(self) -> None:
        """Break one key or entry."""
        keys = await self._keys()
        await self.random.choice(self._steps)(keys)

    async def _keys(self) -> list[str]:
        start = f"{self.space.prefix}:"
        found = [
            key.decode(errors="surrogateescape").removeprefix(start)
            async for key in self.space.redis.scan_iter(match=self.space.prefix + ":*", count=1000)
        ]
        return sorted(key for key in found if self.data or not key.startswith("item:"))

    async def _send(self, *command: str | float) -> Any:
        name, key, *rest = command
        self.sent.append(" ".join(map(repr, command)))
        full = self.space.key(str(key)).encode(errors="surrogateescape")
        sent = [part.encode(errors="surrogateescape") if isinstance(part, str) else part for part in rest]
        return await self.space.send(str(name), full, *sent)

    async def _type(self, key: str) -> str:
        full = self.space.key(key).encode(errors="surrogateescape")
        return str((await self.space.send("TYPE", full)).decode())

    async def delete(self, keys: list[str]) -> None:
        if keys:
            # Keys that a queue has once as often as all others together.
            single = [key for key in keys if ":" not in key or key == "events:keep"]
            await self._send("DEL", self.random.choice(self.random.choice([keys, single or keys])))

    async def retype(self, keys: list[str]) -> None:
        key = self.random.choice([*keys, *(key for key in KEYS if key not in {"none", "probe", "inbox"})])
        await self._send("DEL", key)
        if self.random.random() < 0.5:
            await self._send("SADD", key, "of another type")
        else:
            await self._send("RPUSH", key, "of another type")

    async def persist(self, keys: list[str]) -> None:
        for key in self.random.sample(keys, len(keys)):
            if await self._send("PERSIST", key):
                return

    async def remove(self, keys: list[str]) -> None:
        """Remove an entry of a list, a set, a hash, a sorted set or a stream."""
        for key in self.random.sample(keys, len(keys)):
            kind, entry = await self._entry(key)
            if entry is not None:
                command = {"list": "LREM", "set": "SREM", "hash": "HDEL", "zset": "ZREM", "stream": "XDEL"}
                await self._send(command[kind], key, *([0] if kind == "list" else []), entry)
                return

    async def insert(self, keys: list[str]) -> None:
        """Add an entry, or change one: of an item, a dead letter, or a name that no item has."""
        ids = [key.partition(":")[2] for key in keys if key.startswith(("item:", "dead:"))]
        name = self.random.choice([*ids, *ids, "nobody"])
        score = self.random.choice([*SCORES, *(self.now + near for near in self._near)])
        text = self.random.choice(TEXTS)
        fences = ["0", "1", *(["many", "1.5", "9" * 30] if self._types else [])]
        inserts: list[Callable[[], Awaitable[Any]]] = [
            lambda: self._send(self.random.choice(["LPUSH", "RPUSH"]), "queue", name),
            lambda: self._send(self.random.choice(["LPUSH", "RPUSH"]), "processing", name),
            lambda: self._send("LPUSH", self.random.choice(["inbox:lh:me", "inbox:lh:away"]), name),
            lambda: self._send("HSET", self.random.choice(["ledger", "options", "errors"]), name, text),
            lambda: self._send("ZADD", self.random.choice(ZSETS), score, name),
            lambda: self._send(
                "ZADD", "lanes", self.random.choice([0, 7]), self.random.choice(MEMBERS) + name
            ),
            lambda: self._send("ZADD", self.random.choice(["turns:49", "turns:50"]), score, "g"),
            lambda: self._send("ZADD", "levels", score, self.random.choice(["49", "50", "99"])),
            lambda: self._send("HSET", "control", self.random.choice(["concurrency", "rate/g"]), text),
            lambda: self._send("LPUSH", "held", name),
            lambda: self._send("ZADD", "sessions", score, self.random.choice(["lh:me", "lh:away"])),
            lambda: self._send("ZADD", "ticks", score, self.random.choice(["hourly", "weekly"])),
            lambda: self._send("HSET", self.random.choice(["schedules", "declared"]), "hourly", text),
            lambda: self._send("SET", "fence", self.random.choice(fences)),
            lambda: self._send("SET", f"{self.random.choice(STRINGS)}:{name}", "lh:me"),
            lambda: self._send("HSET", "events:keep", self.random.choice(["last", "count", "age_ms"]), text),
            lambda: self._send("HSET", f"dead:{name}", "token", text),
        ]
        await self.random.choice(inserts)()

    async def _entry(self, key: str) -> tuple[str, str | None]:
        """Return the type of a key, and an entry of it that is drawn; None: it has none."""
        kind = await self._type(key)
        read = {
            "list": ("LRANGE", 0, -1),
            "set": ("SMEMBERS",),
            "hash": ("HKEYS",),
            "zset": ("ZRANGE", 0, -1),
            "stream": ("XRANGE", "-", "+"),
        }
        if kind not in read:
            return kind, None
        command, *rest = read[kind]
        full = self.space.key(key).encode(errors="surrogateescape")
        entries = await self.space.send(str(command), full, *rest)
        if not entries:
            return kind, None
        entry = self.random.choice(sorted(entries))
        entry = entry[0] if kind == "stream" else entry
        return kind, str(entry.decode(errors="surrogateescape"))


ZSETS = ["deadlines", "scheduled", "dead", "gone", "heartbeats", "recent", "promoted", "running:g"]
STRINGS = ["lease", "leased_by_session", "result", "schedule", "delivered"]
MEMBERS = ["49g\0005000000000000001", "50\0004000000000000001", "what\0", "60g\0005000000000000000", ""]


def violations(view: View, now: int, *, waits: bool) -> Iterator[str]:
    """Yield which invariants the keys of a queue break: those of the protocol page.

    Args:
        view: The keys.
        now: The time in ms.
        waits: Whether an id may be in the queue without waiting, as leases drop it when they meet it.
    """
    yield from _types(view.keys)
    items = {name for name, data in view.items.items() if isinstance(data, str)}
    leased, scheduled = view.zset("deadlines"), view.zset("scheduled")
    ours = {name: end for name, end in leased.items() if end % 1 == 0}
    sessions = view.zset("sessions")
    waiting, arriving = Counter(view.contents("queue") or []), set()
    if any(key in view.keys for key in ("lanes", "held", "control", "levels")):
        waiting, arriving = Counter(), {*waiting}  # from there the next lease puts ids into their lanes
    waiting.update(view.contents("held") or [])
    laned = Counter(member.partition("\0")[2][16:] for member in view.zset("lanes"))
    waiting |= laned  # an id that is held, too, is dropped there when it is met
    for key in view.keys:
        if key.startswith("inbox:"):
            arriving.update(view.contents(key))  # the session takes them in a moment
            if key.removeprefix("inbox:") not in sessions:
                yield f"{key} has no session"
    for item_id in items:
        places = [waiting[item_id], item_id in ours, item_id in scheduled, item_id in leased]
        if not any(places) and item_id not in arriving:
            yield f"item {item_id!r} is in no place"
        if not waits and sum(places[:3]) > 1:
            yield f"item {item_id!r} is in two places: {places}"
    if not waits and waiting.keys() - items:
        yield f"ghosts: {waiting.keys() - items}"
    yield from _lanes(view)
    yield from _leases(view, ours, now)
    yield from _bookkeeping(view, items)


def _types(state: State) -> Iterator[str]:
    types = {"list": list, "hash": dict, "zset": dict, "set": set, "string": str, "counter": str}
    for key, contents in state.items():
        family, colon, _ = key.partition(":")
        made = next((made for made in MADE_KEYS if made.split(":")[0] == family and "<" in made), "")
        declared = MADE_KEYS.get(key) or (MADE_KEYS.get(made) if colon else None) or KEYS.get(family)
        kind = declared.type.partition(",")[0] if declared else ""
        if family in {"lost", "once", "set"} or kind not in types:
            continue
        found = contents.contents if isinstance(contents, Expiring) else contents
        if not isinstance(found, types[kind]):
            yield f"{key} is no {kind}"
        ends = {"result", "once", "set", "stream", "delivered", "idle", "watchers", "recent"}
        if family in ends and not isinstance(contents, Expiring):
            yield f"{key} has no time to live"
        if family in {"emitted", "logged"}:
            options, item_id = state.get("options", {}), key.partition(":")[2]
            text = options.get(item_id) if isinstance(options, dict) else ""
            noted = f'"{family}":' in f"{text} {state.get(f'dead:{item_id}')}"
            if noted == isinstance(contents, Expiring):
                yield f"{key}: has no time to live, or its item has not ended"


def _leases(view: View, ours: dict[str, float], now: int) -> Iterator[str]:
    ledger = view.hash("ledger")
    for item_id, end in ours.items():
        keys = [view.contents(f"{kind}:{item_id}") for kind in LEASE_KEYS]
        wrong = {
            "has no data": item_id not in view.items,
            "has no token": not re.match(r"\d+ \d+ \d+ \d+", ledger.get(item_id, "")),
            f"ends at {end}": end > now + 31 * 86_400_000,
            f"has the keys {keys}": end > now + 1000 and None in keys and "another session" not in keys,
            "is not in `processing`": item_id not in (view.contents("processing") or []),
        }
        yield from (f"the lease of {item_id!r} {what}" for what, is_wrong in wrong.items() if is_wrong)
    for item_id, due in view.zset("scheduled").items():
        keys = [view.contents(f"{kind}:{item_id}") for kind in LEASE_KEYS]
        wrong = {
            "has no data": item_id not in view.items,
            f"ends at {due}": due > 253_402_300_800_000,
            f"has the keys {keys}": due > now + 1000 and keys == [None, None],
        }
        yield from (f"the delay of {item_id!r} {what}" for what, is_wrong in wrong.items() if is_wrong)
    for key, contents in view.keys.items():
        if key.startswith(LEASE_KEYS) and contents == "lh:me":
            yield f"{key} has no time to live"


def _lanes(view: View) -> Iterator[str]:
    lanes, levels = view.zset("lanes"), view.zset("levels")
    for member, score in lanes.items():
        if not re.match(r"[45]\d[^\0]*\0\d{16}", member) or score:
            yield f"the lanes have {member!r} with the score {score}"
            continue
        lane = member.partition("\0")[0]
        if lane[:2] not in levels or lane[2:] not in view.zset(f"turns:{lane[:2]}"):
            yield f"the lane {lane!r} has no turn"
    for key in view.keys:
        if key.startswith("running:"):
            for item_id in view.zset(key):
                text = view.hash("options").get(item_id, "{}")
                if f'"group":{json.dumps(key.removeprefix("running:"))}' not in text:
                    yield f"{key} has {item_id!r}, whose options are {text}"
    for field, text in view.hash("control").items():
        if not re.match(r"\d+:\d+$" if field.startswith("rate") else r"\d+$|[a-z\d]+ \d+ ", text):
            yield f"the limit {field} is {text!r}"


LEASE_KEYS = ("lease", "leased_by_session")


def _bookkeeping(view: View, items: set[str]) -> Iterator[str]:
    for key in ("ledger", "options", "errors"):
        extra = view.hash(key).keys() - items - view.zset("deadlines").keys()
        if extra:
            yield f"{key} has entries without items: {extra}"
    fence = int(str(view.contents("fence") or "0"))
    for item_id, entry in view.hash("ledger").items():
        found = re.fullmatch(r"(\d+) (\d+) (\d+) (\d+)", entry)
        if not found or not 0 < int(found[1]) <= int(found[2]) + 1 <= fence + 1:
            yield f"the ledger has {entry!r} for {item_id!r}, with the fence {fence}"
    for item_id, text in view.hash("options").items():
        try:
            json.loads(text)
        except ValueError:
            yield f"the options {text!r} of {item_id!r}"
    if view.dead.keys() != view.zset("dead").keys():
        yield f"the dead letters {view.dead.keys()} are listed as {view.zset('dead').keys()}"
    yield from _schedules(view)
    keep = view.hash("events:keep")
    if keep and not all(re.fullmatch(r"\d+", keep.get(field, "")) for field in ("last", "count", "age_ms")):
        yield f"the settings of events {keep}"
    if "events" in view.keys and not keep:
        yield "events without settings"


def _schedules(view: View) -> Iterator[str]:
    schedules, ticks = view.hash("schedules").keys(), view.zset("ticks").keys()
    readable = {name for name, text in view.hash("schedules").items() if re.match(r"1 \w+ every \d+ ", text)}
    data = {key.removeprefix("schedule:") for key in view.keys if key.startswith("schedule:")}
    if not readable <= ticks <= schedules or not data <= schedules:
        yield f"the schedules {schedules} have the ticks {ticks} and the data {data}"
    if not view.hash("declared").keys() <= schedules:
        yield f"the declared schedules {view.hash('declared')} are not {schedules}"
