"""The keys of a queue: their only declaration, from which the scripts and the reference take them."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from functools import cached_property
from typing import NamedTuple

from leasequeue.errors import InvalidArgument

#: The newest format of a queue's keys that this version knows, and the one that a program must know to use a
#: queue in this format. In which one it writes, the queue says: see `leasequeue.queue.formats`.
FORMAT, FLOOR = 1, 1


class Key(NamedTuple):
    """One key of a queue, or one for each item, session or job."""

    #: The type, as the server calls it; a counter is a string that holds a number.
    type: str
    #: What the key holds. Times are the server's, in ms since 1970.
    contents: str


#: The keys that the scripts declare, by what follows the queue's name. There is an inbox for each session.
KEYS = {
    "queue": Key("list", "ids that wait; pushed left, taken right"),
    "processing": Key("list", "ids under lease; pushed left"),
    "inbox": Key("list", "ids on their way to one waiting process; pushed left"),
    "gone": Key(
        "zset",
        "id → when it was noted that its lease has ended and its entry in `P:processing` was not found",
    ),
    "deadlines": Key(
        "zset",
        "id → when its lease expires. An item is under a lease of ours if and only if it has an entry with a "
        "whole number; watched leases of other clients end on half a millisecond",
    ),
    "scheduled": Key("zset", "id → when it falls due"),
    "ledger": Key(
        "hash",
        "id → `first last attempt at`: the first and the last token of this incarnation, the number of the "
        "last attempt, and when it was last leased, or renewed after the lease had expired",
    ),
    "fence": Key("counter", "the last token"),
    "sessions": Key("zset", "session → until when it is alive"),
    "idle": Key(
        "zset, with a time to live",
        "`<word>@<session>` → until when it waits for an item that is added, to be leased for it at once and "
        "sent to it after this word, in units of "
        "100 ms, times 32,768, plus the lease time in ms",
    ),
    "workers": Key(
        "hash",
        "worker → what it says of itself, a JSON object: [its fields](protocol.md#scripts-for-workers); "
        "`told:<worker>` → its last order: `<order> <number>`",
    ),
    "heartbeats": Key(
        "zset",
        "worker → until when it is alive; `inf`: until it leaves; 0: it is being failed",
    ),
    "watchers": Key(
        "hash, with a time to live",
        "id → the sessions that wait for the end of the item, each as `<secret>@<session>`",
    ),
    "options": Key(
        "hash",
        "id → the options of an unfinished item, as JSON, without those that are the default: `level`, "
        "`group`, `tags` (a list), `weight` (as how many of a rate it counts), `unstarted` (the key that no "
        "second item has until its first run begins), `expires` (when it is discarded if no worker has begun "
        "with it), `trace` "
        "(`traceparent` of the span that added it), `run` (the stage of a flow run: the prefix of its home "
        "queue, NUL, its id, NUL, the stage's path, NUL, the run's mark), `emitted` and `logged` (for how "
        "many ms its chunks are kept after its end)",
    ),
    "errors": Key("hash", "id → the error of the last attempt of an unfinished item, at most 1,000 bytes"),
    "dead": Key("zset", "id → when it became a dead letter"),
    "schedules": Key(
        "hash", "name → what the schedule says: [its definition](protocol.md#scripts-for-schedules)"
    ),
    "ticks": Key("zset", "name → when the schedule is due next"),
    "declared": Key(
        "hash",
        "name → the declarations of a schedule that workers declare, a line each: `<first> <last> "
        "<definition>`, when it was declared first and last",
    ),
    "events": Key(
        "stream", "the kept events, their ids `<number>-1`: [the fields](protocol.md#scripts-for-events)"
    ),
    "sample": Key(
        "string, `PX`",
        "ids that waited when `sample_queue` was called, and when: [the fields](protocol.md#sample_queue)",
    ),
    "shards": Key(
        "string", "over how many queues the items are spread, and by what: `<number> <id or group>`"
    ),
    "format": Key(
        "string",
        "in which format the queue is written, which one a program must know to use it, and by which version "
        "this was set: `<format> <floor> <version>`. Without it, both are 1",
    ),
    "probe": Key("string, `PX`", "exists only while `probe` runs"),
    "none": Key(
        "none",
        "never exists, and is the last key of every script: "
        "[while a slot is being moved](protocol.md#sending-a-script), it makes the server refuse the script",
    ),
}
#: The key that every script declares last.
NONE = "none"
#: The keys whose names the scripts make of the queue's name and an id, or with another name.
MADE_KEYS = {
    "delivered:<session>": Key(
        "string, `PX`",
        "`<token> <id>`: the item delivered to the session last, unless it has acknowledged it",
    ),
    "failed_session:<session>": Key(
        "string, `PX`", "exists for an hour after a worker of this session was failed"
    ),
    "item:<id>": Key("string", "the data, raw bytes. The item exists if and only if this key does"),
    "lease:<id>": Key(
        "string, `PX`",
        "the session that holds the item. For other clients to see: ours go by `P:deadlines`",
    ),
    "leased_by_session:<id>": Key("string, `PX`", "the same, under its name in redis-work-queue 0.1"),
    "dead:<id>": Key(
        "hash",
        "the dead letter: `data`, `error` (text), `attempt`, `token` (its last token), and `options` if the "
        "item had some. It exists if and only if this key does",
    ),
    "schedule:<name>": Key(
        "string", "the data of the items that the schedule adds; without data there is no key"
    ),
    "events:keep": Key(
        "hash",
        "exists while events are kept, published or counted: `count` and `age_ms` (0: no bound; both: none "
        "are kept), `live` (`sharded <secret>` or `plain <secret>`: how they are published, and with what "
        "they are sealed; empty: they are not), `last` (the number of the last event), `rollup` (1: some "
        "kinds are counted)",
    ),
    "rollup:<span>": Key(
        "string, `PX`",
        "the history of a span: an hour by minutes (`<span>` is `minute:` and the number of this hour since "
        "1970), a day by hours (`hour:`) or 32 days (`day:`): [the cells](protocol.md#history_read)",
    ),
    "cancelled": Key(
        "zset, with a time to live",
        "id → until when callers that ask for its result find that the item was cancelled; if this lies on "
        "half a millisecond, that it has expired",
    ),
    "progress": Key("hash", "id → what a holder of the item has reported last, JSON of at most 1,000 bytes"),
    "tags": Key(
        "zset, all scores 0", "the unfinished items and the dead letters with tags: `<tag>`, NUL, `<id>`"
    ),
    "unstarted": Key(
        "hash",
        "key → the id of the unfinished item that was added with it last, as `unstarted` in its options",
    ),
    "unsettled": Key(
        "hash",
        "id → the reference of its stage, for items of flow runs that ended in another way than by the "
        "scripts for flow runs; it ends in NUL if the item was completed. `!<reference>` → the run's mark "
        "or `cancel`: what is left of this stage is to be cancelled",
    ),
    "recent": Key(
        "zset, with a time to live", "id → until when the id stays taken, even if its item has ended"
    ),
    "lanes": Key(
        "zset, all scores 0",
        "the waiting items that have a level or a group: `<50 - level, 2 digits><group>`, NUL, `<place, 16 "
        "digits><id>`",
    ),
    "held": Key(
        "list", "the waiting ids without a level and a group, while the queue is controlled; as `P:queue`"
    ),
    "levels": Key("zset", "50 - level → since when it was not served"),
    "turns:<50 - level>": Key(
        "zset",
        "group → when its lane in this level was last served, or may be served again; from 10^15 on: once a "
        "slot is free or the group resumes",
    ),
    "promoted": Key("zset", "id → when it was moved from its lane to `P:queue`, to wake a session"),
    "alarm": Key(
        "string, `PX`", "`<time> <session>`: when and which session leases, as a limit permits it then"
    ),
    "control": Key(
        "hash",
        "limits and pauses: [the fields](protocol.md#set_limits); `closed` → `deleted <when>` while the "
        "queue is being deleted",
    ),
    "cleaner": Key("string, `PX`", "the session that does the light cleans"),
    "deep_cleaner": Key("string, `PX`", "the session that does the deep cleans"),
    "rates": Key(
        "zset",
        "group (empty: the queue) → until when its rate is used up, in µs since 1970; with NUL and `heavy`: "
        "until when an item with a weight has last used it",
    ),
    "holds": Key(
        "hash", "limits that handlers hold by name: `concurrency/<name>`, `rate/<name>`, as in `P:control`"
    ),
    "holders:<name>": Key(
        "zset, with a time to live",
        "ticket → until when it has a place of the limit: `<weight> <session>#<number>`",
    ),
    "hold_line:<name>": Key(
        "zset, with a time to live", "ticket → since when it waits for a place of the limit"
    ),
    "hold_rates": Key(
        "zset, with a time to live", "limit → until when its rate is used up, in µs since 1970"
    ),
    "running:<group>": Key("zset", "leased items of the group → when their entry is checked"),
    "once:<run>": Key("set, with a time to live", "the ids that a run of a bulk job has added"),
    "once:<run>:ended": Key("string, `PX`", "this run of a bulk job has ended, and adds nothing more"),
    "once:<job>:run": Key("string, `PX`", "the run of the bulk job of this name that has not ended"),
    "set:<name>": Key(
        "list, with a time to live",
        "a set of leased items: `<token> <id>`, or `-` where one was given up",
    ),
    "set:<name>:failures": Key(
        "hash, with a time to live",
        "id → `<delay in ms> <size> <error>`: items of the set to be failed when the others are completed",
    ),
    "stream:<name>": Key(
        "hash, with a time to live", "a stream of leases: `reader`, the last that took it over"
    ),
    "too_new_for:<format>": Key(
        "string",
        "`<floor> <version>`, as in `P:format`: the scripts of programs that know no format above this one "
        "refuse to do anything",
    ),
    "lost:<name>": Key(
        "any",
        "what `fsck` has found under `P:<name>` and the queue could not use; `P:lost:options` is a hash of "
        "options that cannot be read",
    ),
    "run:<id>": Key(
        "hash, with a time to live once it has ended", "a flow run: [its fields](protocol.md#flow-runs)"
    ),
    "runs:<state>": Key(
        "zset, with a time to live unless a run is unfinished",
        "the flow runs that are `active`, `completed`, `failed` or `cancelled`: id → since when",
    ),
    "runs:ends": Key(
        "zset, with a time to live unless a run is unfinished",
        "flow run → when its hash expires; `inf`: it is unfinished",
    ),
    "runs:by:<look-up>": Key(
        "zset, with a time to live unless a run is unfinished",
        "the flow runs that have a value of an attribute: id → when its hash expires; `inf`: it is "
        "unfinished. `<look-up>` is `<flow>`, NUL, `<attribute>`, NUL, `<value>`",
    ),
    "emitted:<id>": Key(
        "stream, with a time to live once the item has ended",
        "the chunks that the runs of the item have emitted: `token`, `attempt` and `chunk` of each, under "
        "`<token>-<bytes>`, which counts the bytes until its end and 32 for each chunk",
    ),
    "logged:<id>": Key(
        "stream, with a time to live once the item has ended, but not as a dead letter",
        "the log of the runs of the item, in chunks as in `P:emitted:<id>`",
    ),
    "result:<id>": Key(
        "string, `PX`", "the result of a completed item; under the name of a bulk job, its report"
    ),
}
#: What follows the queue's name in keys that are made with an id or another name: `item`, `lease`, `dead`, …
FAMILIES = frozenset(made.partition(":")[0] for made in MADE_KEYS if "<" in made)


class KeyPrefix(str):
    """A prefix of keys, as in the redis-work-queue family.

    It is a `str`, so it can be used as a queue's name.

        >>> results = KeyPrefix("emails").concat(":result:")
        >>> results.of("42")
        'emails:result:42'
    """

    __slots__ = ()

    @property
    def prefix(self) -> str:
        """The string itself."""
        return str(self)

    def of(self, name: str) -> str:
        """Return the prefix and a name, joined."""
        return f"{self}{name}"

    def concat(self, name: str) -> KeyPrefix:
        """Return the prefix and a name, joined, as a longer prefix."""
        return KeyPrefix(self.of(name))


#: What the secrets of this process are made from.
_SEED = secrets.token_bytes(16)


class QueueKeys:
    """The keys of one queue that scripts declare, by their names in `KEYS`, and its channels."""

    def __init__(self, prefix: str, session: str) -> None:
        self.prefix = prefix.encode()
        self.session = session.encode()
        self._by_name = {name: f"{prefix}:{name}".encode() for name in (*KEYS, "due", "live")}
        for name in ("inbox", "push"):
            self._by_name[name] = f"{prefix}:{name}:{session}".encode()

    def __getitem__(self, name: str) -> bytes:
        return self._by_name[name]

    @cached_property
    def secret(self) -> bytes:
        """What messages to the session are sealed with: the same in each event loop that acts for it."""
        made = hashlib.sha256(b"\0".join((_SEED, self.prefix, self.session))).digest()
        return base64.urlsafe_b64encode(made[:18])

    @property
    def data_pattern(self) -> bytes:
        """A glob that matches the data keys of this queue, and no others: see `check_prefix`."""
        return self._glob + b":item:*"

    @property
    def pattern(self) -> bytes:
        """A glob that matches the keys of this queue, and those of queues whose names begin with its own."""
        return self._glob + b":*"

    @property
    def _glob(self) -> bytes:
        return escaped(self.prefix)


def escaped(name: bytes) -> bytes:
    """Return a name as a part of a glob that matches only itself."""
    return re.sub(rb"([\\*?\[\]])", rb"\\\1", name)


class SessionOrigin(NamedTuple):
    """The process that a session belongs to."""

    host: str
    pid: int


def new_session(host: str, pid: int) -> str:
    """Return a new id for a session of a process: `lh:<host>/<pid>/<16 hexadecimal digits>`.

    Of the host's name, the first 64 letters are used; signs other than A-Z, a-z, 0-9, ., _ and - become -.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:64]
    return f"lh:{name}/{pid}/{secrets.token_hex(8)}"


def session_origin(session: str) -> SessionOrigin | None:
    """Return the process that a session belongs to; None if its id does not say so."""
    parts = re.fullmatch(r"lh:([A-Za-z0-9._-]*)/(\d+)/[0-9a-f]{16}", session, re.ASCII)
    return SessionOrigin(parts[1], int(parts[2])) if parts else None


def check_prefix(name: object) -> str:
    """Check a queue's name.

    The keys of a queue `a:item` would be those of items of the queue `a`: `a:item:queue` is the list of the
    one, and the data of the item `queue` of the other. So no part of a name after a colon may be the name of
    such a family of keys.
    """
    allowed = "a string of 1 to 512 bytes in UTF-8"
    if not isinstance(name, str) or not name:
        raise InvalidArgument("name", name, allowed)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument("name", name, allowed) from error
    if size > 512:
        raise InvalidArgument("name", name, allowed)
    first, *others = name.split(":")
    for at, part in enumerate(others):
        if part in FAMILIES:
            owner = ":".join([first, *others[:at]])
            theirs = f"keys that begin with '{owner}:{part}:' belong to the queue {owner!r}"
            raise InvalidArgument("name", name, f"a name without ':{part}': {theirs}")
    return str(name)


def hash_tag(prefix: str) -> str | None:
    """Return what is between the first braces of a name, by which a cluster finds its keys; None: nothing."""
    _, _, rest = prefix.partition("{")
    tag, closes, _ = rest.partition("}")
    return tag if tag and closes else None


def check_hash_tag(prefix: str) -> None:
    """Check that all keys of a queue are in one slot of a cluster."""
    if hash_tag(prefix) is None:
        raise InvalidArgument(
            "name", prefix, f"on a cluster, a name with a hash tag, such as {'{' + prefix + '}'!r}"
        )
