"""The results of `counts`, `inspect`, `find` and the cleaners: frozen, with named fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.item.codec import is_moment, read_stored
from leasequeue.queue.encoding import MAX_LEVEL
from leasequeue.queue.findings import joined
from leasequeue.queue.lease import StageRef
from leasequeue.queue.pushes.progress import read_progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.codecs import Payloads
    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.findings import Finding
    from leasequeue.states import State


class Counts(NamedTuple):
    """How many items are in each state, at one instant."""

    #: Can be leased, including items on their way to a waiting process.
    waiting: int
    #: Under lease, including expired leases that are not reclaimed yet.
    leased: int
    #: Delayed, or to be retried later: not due yet.
    scheduled: int
    #: Dead letters: items that ran out of attempts.
    dead: int

    @property
    def total(self) -> int:
        """All unfinished items: waiting, leased and scheduled."""
        return self.waiting + self.leased + self.scheduled


@dataclass(frozen=True, kw_only=True)
class ItemView:
    """One item at one instant."""

    #: Its id.
    id: str
    #: `"waiting"`, `"leased"` or `"scheduled"`.
    state: State
    #: Bytes of data; None for a ghost: an id whose data is gone, which `lease` will drop.
    size: int | None
    #: The data; None if it was not asked for, did not fit into the reply, or is gone.
    data: bytes | None
    #: The value of the lease key: a session of Leasequeue begins with "lh:". "lh:scheduled" for a scheduled
    #: item, None for a waiting one.
    holder: str | None
    #: The token of its last lease; None if no Leasequeue client has leased it.
    token: int | None
    #: How often this incarnation was leased; released leases are not counted.
    attempt: int
    #: When its lease ends or, if scheduled, when it falls due: seconds since 1970, server's clock.
    due: float | None
    #: Seconds since it was last leased; None if never. (The time of adding is not stored.)
    age: float | None
    #: The end of the error of the last attempt that has failed, at most 1,000 bytes; None if none has.
    error: str | None
    #: Its level: items of a higher one are leased first.
    priority: int = 0
    #: Its group; None if it has none.
    group: str | None = None
    #: Its tags, sorted.
    tags: tuple[str, ...] = ()
    #: When it is discarded if no worker has begun with it: seconds since 1970, server's clock; None: never.
    expires: float | None = None
    #: What a holder of it has reported last, with `Lease.progress`; None: nothing.
    progress: Any = None
    #: The id of the flow run of which it is a stage, or a child of one; None: of none.
    flow_run: str | None = None
    #: The queue whose `flow_runs` has this flow run; None: there is none.
    flow_home: str | None = None


class ItemOptions(NamedTuple):
    """What an item carries beyond its data."""

    priority: int = 0
    group: str | None = None
    tags: tuple[str, ...] = ()
    expires: float | None = None
    stage: StageRef | None = None


def read_options(text: bytes | None) -> ItemOptions:
    """Parse the options of an item as they are stored; None: it has none. What is no JSON is ignored."""
    stored: dict[str, Any] = read_stored(text, {})
    level, group, expires = stored.get("level", 0), stored.get("group"), stored.get("expires")
    run, tags = stored.get("run"), stored.get("tags")
    return ItemOptions(
        int(max(-MAX_LEVEL, min(MAX_LEVEL, level))) if is_moment(level) else 0,
        group if isinstance(group, str) and group else None,
        tuple(one for one in tags if isinstance(one, str)) if isinstance(tags, list) else (),
        expires / 1000 if is_moment(expires) else None,
        StageRef.read(run) if isinstance(run, str) else None,
    )


@dataclass(frozen=True, kw_only=True)
class CleanReport:
    """What a clean found and repaired. All zero is a clean queue."""

    #: Entries examined.
    examined: int = 0
    #: Items requeued: expired leases, due items, ids in the inbox of a dead process.
    reclaimed: int = 0
    #: Entries dropped because their items no longer exist.
    dropped: int = 0
    #: Leases of foreign clients that are now watched.
    adopted: int = 0
    #: Items that were in no list and were requeued (deep clean and `fsck` only).
    restored: int = 0
    #: What else was found, by problem.
    findings: tuple[Finding, ...] = ()

    @property
    def repaired(self) -> int:
        """How many repairs the findings are."""
        return sum(one.count for one in self.findings if one.is_repaired)

    @property
    def unrepaired(self) -> int:
        """How many of the findings are left to you."""
        return sum(one.count for one in self.findings if not one.is_repaired)

    def __add__(self, other: CleanReport) -> CleanReport:
        return CleanReport(
            examined=self.examined + other.examined,
            reclaimed=self.reclaimed + other.reclaimed,
            dropped=self.dropped + other.dropped,
            adopted=self.adopted + other.adopted,
            restored=self.restored + other.restored,
            findings=joined(self.findings, other.findings),
        )


#: Values per item in the reply of `inspect`.
_FIELDS = 11


def fetched(views: Iterable[ItemView | DeadLetter]) -> int:
    """Return how many bytes of data the server has sent of some views; decoded, they may be more."""
    return sum(one.size or 0 for one in views if one.data is not None)


def read_inspection(state: State, reply: list[Any], payloads: Payloads, *, with_data: bool) -> list[ItemView]:
    """Parse the reply of the `inspect` script."""
    now_ms = reply[0]
    views: list[ItemView] = []
    for at in range(1, len(reply), _FIELDS):
        item_id, size, data, due_ms, holder, token, attempt, leased_ms, error, stored, progress = reply[
            at : at + _FIELDS
        ]
        options = read_options(stored)
        views.append(
            ItemView(
                id=item_id.decode(errors="surrogateescape"),
                state=state,
                size=None if size < 0 else size,
                data=payloads.shown(data, item_id) if with_data else None,
                holder=None if holder is None else holder.decode(errors="replace"),
                token=token or None,
                attempt=attempt,
                due=None if due_ms < 0 else due_ms / 1000,
                age=(now_ms - leased_ms) / 1000 if leased_ms else None,
                error=error.decode(errors="replace") if error else None,
                priority=options.priority,
                group=options.group,
                tags=options.tags,
                expires=options.expires,
                progress=read_progress(progress),
                flow_run=options.stage.run if options.stage else None,
                flow_home=options.stage.home if options.stage else None,
            )
        )
    return views


def read_found(reply: list[Any], payloads: Payloads, *, with_data: bool) -> ItemView | None:
    """Parse the reply of the `find_many` script to one id; None if it found no item."""
    now_ms, *found = reply
    if not found:
        return None
    state: State = found[0].decode()
    return read_inspection(state, [now_ms, *found[1:]], payloads, with_data=with_data)[0]
