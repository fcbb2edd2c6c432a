"""What the server must permit a user, and the rules that say so (`ACL SETUSER`).

The scripts say which commands they send. The others, which are sent over the connections, are declared here;
a test compares them with the code.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.keys import QueueKeys
from leasequeue.wire.scripts import load

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from leasequeue.wire.scripts import Script


class Role(StrEnum):
    """What a user of the server is for. Each permits what those after it permit."""

    #: All that Leasequeue can do.
    WORKER = "worker"
    #: Add items, start flow runs, wait for results, cancel, report, and read.
    PRODUCER = "producer"
    #: Read: counts, items, workers, events. It may run only scripts that others have loaded.
    WATCHER = "watcher"


class Sent(NamedTuple):
    """A command that is sent outside of the scripts."""

    #: What it is for.
    purpose: str
    #: What happens if it is forbidden.
    without: str
    #: The roles that need it.
    roles: frozenset[Role] = frozenset(Role)


REFUSED = "`AccessDenied`"
_WORKERS = frozenset({Role.WORKER})
_WRITERS = frozenset({Role.WORKER, Role.PRODUCER})
#: The commands that are sent outside of the scripts, as rules name them.
CONNECTIONS = {
    "blmove": Sent("wait for items", "a worker does not start; `lease` refuses to wait", _WORKERS),
    "client|id": Sent("name the connections of a worker", "its death is noticed when its leases expire"),
    "client|list": Sent("see which workers live", "deaths are noticed when leases expire", _WORKERS),
    "client|setinfo": Sent("name the library (redis-py)", "nothing"),
    "client|setname": Sent("name the connections of a worker", "its death is noticed when its leases expire"),
    "eval": Sent("send a script that the server does not know yet", f"{REFUSED} for that one", _WRITERS),
    "evalsha": Sent("run a script", REFUSED),
    "get": Sent(
        "read whether an item was cancelled, a queue has shards, or is too new",
        "cancels are noticed late; no shards",
    ),
    "hget": Sent("see whether anybody reads the stream of a job", "an abandoned job is not cancelled"),
    "hmget": Sent("read what workers say of themselves, and flow runs", REFUSED),
    "hscan": Sent("list workers", REFUSED),
    "info": Sent("read the server's version", "it is not checked; dead workers are noticed later"),
    "lrange": Sent("list ids", REFUSED),
    "ping": Sent("notice a connection that fell silent", "each connection counts as lost after a while"),
    "pubsub|numsub": Sent("see which workers live", "deaths are noticed when leases expire", _WORKERS),
    "scan": Sent("find the queues of a server (`leasequeue ls`)", REFUSED),
    "script|exists": Sent("load what watchers run", "they may have to wait for another client", _WRITERS),
    "script|load": Sent("load what watchers run", "they may have to wait for another client", _WRITERS),
    "select": Sent("use another database than 0", "`AccessDenied`, unless it is 0"),
    "ssubscribe": Sent("read published events", "`AccessDenied` for who reads them"),
    "subscribe": Sent("receive results, delays and cancels at once", "a warning; they arrive late"),
    "sunsubscribe": Sent("read published events no more", "nothing"),
    "time": Sent("read the server's clock (`leasequeue autoscale`)", "this machine's counts", _WORKERS),
    "type": Sent("find the queues of a server (`leasequeue ls`)", REFUSED),
    "unsubscribe": Sent("receive a channel no more", "nothing"),
    "wait": Sent("wait for replicas", "`AccessDenied` for queues with `replicas`", _WRITERS),
    "zrange": Sent("list ids and workers", REFUSED),
    "zscan": Sent("list ids", REFUSED),
}
#: What redis-py sends to a cluster, to find its nodes.
CLUSTER = ("cluster|slots", "command")
#: The scripts of producers, besides those that only read.
PRODUCING = frozenset(
    {
        *("add_items", "add_once", "await_results", "cancel_data", "cancel_many", "once_drop", "once_run"),
        *("run_cancel", "run_report", "run_settle", "run_start"),
    }
)
#: The scripts that read the queue, and note something if they may write. The probe finds out whether.
NOTING = frozenset({"open_shards", "probe", "sample_queue"})
#: The commands of scripts that only read.
READING = frozenset(
    {
        *("EXISTS", "GET", "GETRANGE", "HEXISTS", "HGET", "HLEN", "HMGET", "HRANDFIELD", "HSCAN"),
        *("HSTRLEN", "LINDEX", "LLEN", "LPOS", "LRANGE", "MGET", "PTTL", "SCAN", "SCARD", "SMISMEMBER"),
        *("STRLEN", "TIME", "TYPE", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZCOUNT", "ZLEXCOUNT"),
        *("ZMSCORE", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZSCAN", "ZSCORE"),
    }
)


class ServerFacts(NamedTuple):
    """What a server can permit."""

    version: tuple[int, ...]
    is_cluster: bool
    #: The commands that it knows, in lower case, and whether each writes.
    writes: Mapping[str, bool]

    @classmethod
    def read(cls, info: bytes, commands: Sequence[Any]) -> ServerFacts:
        """Read the replies to `questions`."""
        fields = dict(
            line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
        )
        writes = {
            known[0].decode(): b"write" in known[2] for known in commands if known
        }  # an unknown command is nil
        version = tuple(int(part) for part in re.findall(r"\d+", fields.get("redis_version", "")))
        return cls(version, fields.get("cluster_enabled") == "1", writes)

    @property
    def has_selectors(self) -> bool:
        """Whether rules may have a part in parentheses, for other keys and commands: from Redis 7.0."""
        return self.version >= (7,)

    def knows(self, rule: str) -> bool:
        """Return whether a rule may name this command. Before Redis 7, any subcommand may be named."""
        return rule in self.writes or ("|" in rule and self.version < (7,))


def questions() -> list[tuple[bytes, ...]]:
    """Return the commands whose replies `ServerFacts.read` reads."""
    used = {command.lower() for script in load().values() for command in script.commands}
    names = sorted({*used, *CONNECTIONS, *CLUSTER})
    return [(b"INFO",), (b"COMMAND", b"INFO", *(name.encode() for name in names))]


def commands_of(role: Role, server: ServerFacts) -> frozenset[str]:
    """Return the commands that a role needs, of those that the server knows, as rules name them."""
    scripts = [script for script in load().values() if _uses(role, script, server)]
    used = {command.lower() for script in scripts for command in script.commands}
    if role is Role.WATCHER:
        # See `NOTING`. What is published changes no key, and is no reading either.
        used = {one for one in used if not server.writes.get(one) and not one.endswith("publish")}
    sent = {name for name, one in CONNECTIONS.items() if role in one.roles}
    cluster = CLUSTER if server.is_cluster else ()
    return frozenset(name for name in {*used, *sent, *cluster} if server.knows(name))


def rules_of(
    names: Iterable[str], role: Role, server: ServerFacts, *, sharded: Container[str] = ()
) -> list[str]:
    """Return the rules that permit a role on some queues, and nothing else. They leave passwords as they are.

    The names are those of the queues, and of the limits that they share; `sharded` has those with shards.
    """
    patterns = [one for name in names for one in (_of_shards if name in sharded else _of_one)(name)]
    rules = ["resetkeys", *(f"~{one}" for one in patterns)]
    rules += ["resetchannels", *(f"&{one}" for one in patterns)]
    rules += ["-@all", *(f"+{command}" for command in sorted(commands_of(role, server)))]
    return ["clearselectors", *rules] if server.has_selectors else rules


def quoted(word: str) -> str:
    """Return a word as redis-cli reads it, in quotes if it needs them."""
    if word.isprintable() and not any(letter in "\"' " for letter in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    letters = (letter if letter.isprintable() else _hex(letter) for letter in escaped)
    return f'"{"".join(letters)}"'


def pattern_of(name: str) -> str:
    """Return a glob for the keys and the channels of a queue.

    Rules may not contain white space: each such character is one of any kind.
    """
    return re.sub(r"[\s\0]", "?", QueueKeys(name, "").pattern.decode(), flags=re.ASCII)


def _of_one(name: str) -> list[str]:
    return [pattern_of(name)]


def _of_shards(name: str) -> list[str]:
    """Return globs for the shards of a queue, however many there are: two are compared faster than 64."""
    inside = pattern_of(name).removesuffix(":*")
    return [f"{{{inside}}}:*", f"{{{inside}/[0-9]*}}:*"]


def watched() -> list[Script]:
    """Return the scripts that a watcher runs, and may not send: other clients load them."""
    return [script for script in load().values() if least_role(script) is Role.WATCHER]


def least_role(script: Script, *, only_reads: bool | None = None) -> Role:
    """Return the role that permits least, of those that run a script.

    `only_reads` says whether it writes nothing; None: what is known without a server.
    """
    reads = script.commands <= READING if only_reads is None else only_reads
    if reads or script.name in NOTING:
        return Role.WATCHER
    return Role.PRODUCER if script.name in PRODUCING else Role.WORKER


def _uses(role: Role, script: Script, server: ServerFacts) -> bool:
    only_reads = not any(server.writes.get(command.lower()) for command in script.commands)
    least = least_role(script, only_reads=only_reads)
    roles = [*Role]  # what permits most comes first
    return roles.index(role) <= roles.index(least)


def _hex(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in letter.encode())
