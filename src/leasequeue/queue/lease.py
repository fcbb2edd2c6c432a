"""A leased item: the item, and the right to work on it for a time."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from leasequeue.item import Item

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from leasequeue.durations import Duration


#: When the lease of an item that was cancelled has ended, by `time.monotonic()`.
CANCELLED = float("-inf")
#: What an item takes of a flow run if it is no stage of one.
NO_INPUTS: Mapping[str, bytes] = MappingProxyType({})


class StageRef(NamedTuple):
    """Where a stage of a flow run is recorded.

    Attributes:
        home: The name of the queue whose keys hold the run.
        run: The id of the run.
        path: The name of the stage; of a child, `<path of its parent>/<index>`. Empty: the run itself.
        mark: What distinguishes this run from earlier and later ones of its id; empty: it is not known.
    """

    home: str
    run: str
    path: str
    mark: str = ""

    @property
    def item_id(self) -> str:
        """The id of the stage's item."""
        return f"{self.run}/{self.path}"

    @property
    def stage(self) -> str:
        """The name of the stage of the plan that this is, or that it is a child of."""
        return self.path.partition("/")[0]

    def encode(self) -> bytes:
        """Return the reference as the scripts know it."""
        return "\0".join(self if self.mark else self[:3]).encode(errors="surrogateescape")

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """Read a reference; None if this is none."""
        return cls.read(raw.decode(errors="surrogateescape"))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read a reference that is text; None if this is none."""
        parts = text.split("\0")
        return cls(*parts) if len(parts) in (3, 4) and parts[0] and parts[1] else None


class LeasingQueue(Protocol):
    """What a lease needs of its queue."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    async def complete(self, lease: Lease) -> bool:
        """Finish the item."""
        ...

    async def renew(self, lease: Lease, lease_time: Duration) -> bool:
        """Let the lease end `lease_time` from now."""
        ...

    async def progress(self, lease: Lease, value: Any) -> bool:
        """Report how far the work on the item is."""
        ...

    def _report(self, lease: Lease, value: Any) -> None:
        """Report that soon."""
        ...

    async def emit(self, lease: Lease, chunk: bytes, *, keep: Duration = ..., max_bytes: int = ...) -> bool:
        """Add a chunk to the stream of the item."""
        ...

    async def release(self, lease: Lease, *, delay: Duration = 0, front: bool = True) -> bool:
        """Release the item before its lease expires."""
        ...

    async def fail(
        self, lease: Lease, error: str | BaseException, *, retry_in: Duration | None = None
    ) -> bool:
        """Report that the work on the item failed."""
        ...


class Lease(Item):
    """An item under lease. Use it as a context manager to complete it when the block succeeds.

        async with lease:
            await send(lease.data)      # after an error the item is retried when the lease expires

    Attributes:
        token: The fencing token. Tokens of one queue only grow, also across completion, deletion and adding
            again. Pass it to the systems that you write to, and let them refuse lower ones.
        attempt: The number of this attempt: how often this incarnation of the item was leased, including
            this time; released leases are not counted.
        deadline: When the lease ends, in seconds since 1970, by the server's clock.
        completed: The result of the context manager's `complete`; None before.
        trace: The `traceparent` of the span that added the item, if that was traced and sampled; else None.
            Of a stage of a flow run, that of the run of the stage before it; of several, of the last.
        stage: The stage of a flow run that the item is for; None: it is for none.
        inputs: What the stage takes of its run, by parameter, in JSON, as a worker has read it.
    """

    __slots__ = (
        "_attempt",
        "_carried",
        "_ends",
        "_id",
        "_inputs",
        "_queue",
        "_stage",
        "_token",
        "completed",
        "deadline",
    )

    deadline: float
    completed: bool | None
    #: Set when they are first asked for, or known.
    _stage: StageRef | None
    _inputs: Mapping[str, bytes]

    def __init__(  # noqa: PLR0913, PLR0917 - in the order of `LeasedItem`, one call for each item
        self,
        queue: LeasingQueue,
        item_id: bytes,
        data: bytes,
        token: int,
        attempt: int,
        lease_ms: int,
        asked_at: float,
        server_ms: int,
        carried: bytes | None = None,
    ) -> None:
        # No checks and no super().__init__: the item was checked when it was added.
        self._id = item_id.decode("utf-8", "surrogateescape")
        self.data = data
        self._token = token
        self._attempt = attempt
        self.completed = None
        self._queue = queue
        self._carried = carried
        # As in `_renewed`.
        self._ends = asked_at + (lease_ms - 1) / 1000
        self.deadline = (server_ms + lease_ms) / 1000

    # These cannot be set: a worker renews and ends many leases in one call, and a handler may have its lease.

    @property
    def id(self) -> str:  # type: ignore[override]  # that of an item can be set
        """The item's name within its queue."""
        return self._id

    @property
    def token(self) -> int:
        """See the class."""
        return self._token

    @property
    def attempt(self) -> int:
        """See the class."""
        return self._attempt

    @property
    def queue(self) -> LeasingQueue:
        """The queue object from which it was leased."""
        return self._queue

    @property
    def queue_name(self) -> str:
        """The name of the queue from which it was leased."""
        return self._queue.name

    @property
    def trace(self) -> str | None:
        """See the class."""
        return None if (trace := self._trace) is None else trace.rpartition(b",")[2].decode(errors="replace")

    @property
    def _trace(self) -> bytes | None:
        return None if self._carried is None else self._carried.partition(b"\n")[0] or None

    @property
    def stage(self) -> StageRef | None:
        """See the class."""
        if self._carried is None:  # as with most items
            return None
        try:
            return self._stage
        except AttributeError:
            self._stage = StageRef.decode(self._rest[0])
            return self._stage

    @property
    def _group(self) -> bytes | None:
        """What distinguishes the group of the item from others; None: it is in none."""
        return None if self._carried is None else self._rest[1]

    @property
    def _rest(self) -> tuple[bytes, bytes | None]:
        rest = (self._carried or b"").partition(b"\n")[2]
        stage, is_in_group, group = rest.rpartition(b"\0\0\0")
        return (stage, group) if is_in_group else (rest, None)

    @property
    def inputs(self) -> Mapping[str, bytes]:
        """See the class."""
        return NO_INPUTS if self._carried is None else getattr(self, "_inputs", NO_INPUTS)

    def _renewed(self, asked_at: float, lease_ms: int, ends_ms: int) -> None:
        """Record a lease of `lease_ms`, requested at `asked_at` by `time.monotonic()`, until `ends_ms`."""
        if self._ends != CANCELLED:
            self._ends = asked_at + (lease_ms - 1) / 1000  # the server counts in whole ms, rounded down
            self.deadline = ends_ms / 1000

    def _cancel(self) -> None:
        self._ends = CANCELLED

    @property
    def cancelled(self) -> bool:
        """Whether the item was cancelled, as far as is known here.

        A worker knows it at once, and sets it for each item of a batch. Other holders know it when they have
        renewed the lease: `renew` returns False.
        """
        return self._ends == CANCELLED

    def remaining(self) -> float:
        """Return the seconds until the lease expires; negative if it has expired.

        They are counted on this machine from before the request, so the lease never expires earlier, whatever
        the clocks of the machines show.
        """
        return self._ends - time.monotonic()

    def progress(self, value: Any) -> None:
        """Report how far the work on the item is: soon, without waiting, from any thread.

        Others see it in `ItemView.progress` and `queue.results.progress`. It is kept until the item ends.
        Call it as often as you like: the first report is sent at once, and of all that follow within 0.2 s
        the last.
        If the lease is lost, reports are discarded. To know that one has arrived, await `queue.progress`.

        Args:
            value: Any value that can be written as JSON of at most 1,000 bytes.

        Raises:
            InvalidArgument: If the value cannot be used.
            QueueClosed: If the queue object is closed.
        """
        self._queue._report(self, value)  # noqa: SLF001 - only its leases call it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.completed = await self._queue.complete(self)

    def __eq__(self, other: object) -> bool:
        # Two leases of one item differ by their tokens.
        return (
            isinstance(other, Lease)
            and (self.token, self.id) == (other.token, other.id)
            and super().__eq__(other)
        )

    def __hash__(self) -> int:
        return hash((self.id, self.token))

    def __repr__(self) -> str:
        return f"Lease(id={self.id!r}, {len(self.data)} bytes, token={self.token}, attempt={self.attempt})"


class Failure(NamedTuple):
    """A failed lease, for `AsyncWorkQueue.fail_many`."""

    #: The lease under which the work failed.
    lease: Lease
    #: What went wrong: a text, or an exception, of which the traceback is kept.
    error: str | BaseException
    #: Seconds before the item can be leased again; 0 is at once. None: it becomes a dead letter.
    retry_in: Duration | None = None
