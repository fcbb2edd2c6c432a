"""The lease stream as Spark calls it; `lease_sets` does the work on the server."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from leasequeue.durations import to_ms
from leasequeue.errors import InvalidArgument
from leasequeue.queue.views import read_options
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import QueuePortal, call_with_retries, check_queue, check_server, open_queue
from leasequeue.spark.read.lease_sets import FIELDS, STEP, BatchSets, LeaseSet, LeaseSets, SetId, read_set
from leasequeue.spark.schema import ITEMS, batch_of, check_columns, expires_us, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leasequeue.codecs import Payloads
    from leasequeue.queue.bulk import Bulk

#: The options of the stream, beside the common ones.
OPTIONS = (
    *("from", "maxItemsPerTrigger", "leaseTime", "partitions", "idleWait", "retryTimeout", "mayBeMissing"),
)
#: The option by which `process` names the reader, to record failures in its name; not for users.
READER = "spark.leasequeue.reader"
#: The maximum of data in one reply to an executor, except for a single larger item.
PAGE_BYTES = 4 << 20
#: How long to wait between two polls of an empty queue (s).
POLL_SECONDS = 0.25
#: How many tasks a batch has without the option `partitions`: the minimum, and items of the
#: maximum for each.
MIN_PARTS, ROWS_PER_PART = 2, 5_000

Offset = dict[str, Any]


@dataclass(frozen=True)
class SetPartition(InputPartition):
    """The positions of a lease set that one task reads."""

    set_id: SetId
    start: int
    stop: int
    queue: str


class LeasesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases a batch of items, renews it while it runs, and completes it when Spark has committed it.

    Spark runs one per query in a process on the driver, which keeps a connection open. Executors get copies,
    on which Spark calls only `read`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = FormatOptions(given, OPTIONS)
        check_columns(schema, ITEMS)
        self._schema = schema
        self.target = options.target()
        self._max_rows = options.check_int("maxItemsPerTrigger", 10_000, minimum=1, maximum=1_000_000)
        self._lease_ms = to_ms("leaseTime", options.seconds("leaseTime", 600.0))
        parts = max(MIN_PARTS, math.ceil(self._max_rows / ROWS_PER_PART))
        self._parts = options.check_int("partitions", parts, minimum=1, maximum=10_000)
        self._idle_wait = options.seconds("idleWait", 2.0)
        self.retry_timeout = options.retry_timeout()
        self._reader = options.text(READER)
        self._may_be_missing = options.flag("mayBeMissing", default=False)
        self._draining = False
        #: The name that this run has given to a new stream, and how many items its first batch may have.
        self._named: tuple[str, int] | None = None
        #: How many items a query with trigger `availableNow` may still lease; None: not counted yet.
        self._left: int | None = None
        self._close = contextlib.ExitStack()
        self._portal: QueuePortal | None = None
        self._sets: BatchSets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_portal": None, "_sets": None, "_close": None}

    def set_at(self, offset: Offset) -> SetId | None:
        """Return the set of the batch that ends at an offset, as the reader that `process` named reads it.

        None: no item has waited yet.
        """
        name, number = self._known(offset)
        return None if name is None else SetId(name, self._reader, number, self._lease_ms)

    # ------------------------------------------------------- on the driver

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position before the first batch of a new query, which has no name yet."""
        self.check_queue()
        return {"queue": self.target.queue}

    def check_queue(self) -> None:
        """Check that the server answers and, unless `mayBeMissing` is set, that the queue exists."""
        if self._may_be_missing:
            check_server(self.target)
        else:
            check_queue(self.target, "a stream that waits for it")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum number of items of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Lease only the items that wait when the first batch is planned, and none that are added later."""
        self._draining = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Complete the committed batch, then lease the next one, or find the one left by a crash.

        Spark calls this only when everything up to `start` is in its commit log. The first batch of a new
        query is only announced here, with the stream's name, and leased by `partitions`: until Spark has
        written the name into its checkpoint, no later run would find the leases.
        """
        if isinstance(limit, ReadAllAvailable):
            # Spark would not call again, so the batch would never be completed.
            raise InvalidArgument("trigger", "once", "availableNow=True, which completes all leased items")
        name, batch = self._known(start)
        if name is not None:
            self._complete(name, batch)
        until = time.monotonic() + self._idle_wait
        while True:
            named = self._announce(limit) if name is None else self._lease(name, batch + 1, limit)
            if named:
                return start | {"query": named, "batch": batch + 1}
            if self._draining or time.monotonic() + POLL_SECONDS > until:
                return start
            time.sleep(POLL_SECONDS)

    def _announce(self, limit: ReadLimit) -> str | None:
        """Return a name for a new stream if items wait, else None."""
        waiting = self._waiting(self._batch_sets(name := secrets.token_hex(8)))
        if self._draining and self._left is None:
            self._left = waiting
        if not (waiting and (count := self._count(limit))):
            return None
        self._named = name, count
        return name

    def _lease(self, name: str, batch: int, limit: ReadLimit) -> str | None:
        """Lease a batch, or find it; return the stream's name, or None if no item waits."""
        portal, stream = self._open(), self._stream(name)
        if self._draining and self._left is None:
            self._left = self._waiting(stream)
        leased = portal.call(stream.lease, batch, self._count(limit))
        self._charge(leased)
        return name if any(one.size for one in leased.values()) else None

    def _waiting(self, stream: BatchSets) -> int:
        return sum(self._open().call(stream.each, LeaseSets.waiting).values())

    def _complete(self, name: str, batch: int) -> None:
        stream = self._stream(name)
        self._open().call(stream.each, lambda one: one.complete(batch))

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return how many items are in each state after the next batch is leased.

        Spark shows this in its progress as `latestOffset` of the source; it takes no metrics from sources in
        Python. `backlogs` reads it.
        """
        portal = self._open()
        counts = portal.call(call_with_retries, portal.queue.counts, self.retry_timeout)
        if self._named:  # the batch has been announced, and will be leased next
            count = min(self._named[1], counts.waiting)
            counts = counts._replace(waiting=counts.waiting - count, leased=counts.leased + count)
        return {"queue": self.target.queue, **counts._asdict()}

    def partitions(self, start: Offset, end: Offset) -> list[SetPartition]:
        """Divide the batch into tasks. After a crash this is Spark's first call."""
        name, last = self._known(end)
        if name is None:  # no item has waited yet
            return []
        first = self._known(start)[1] if start else 0
        parts = []
        for number in range(first + 1, last + 1):
            portal, stream = self._open(), self._stream(name)
            if self._named and self._named[0] == name and number == 1:
                # Only in the run that has announced the batch: a sink may skip a batch that is repeated.
                leased = portal.call(stream.lease, number, self._named[1])
                self._named = None
                self._charge(leased)
            else:
                leased = portal.call(stream.each, lambda one, number=number: one.restore(number))
            step = max(1, math.ceil(sum(one.size for one in leased.values()) / self._parts))
            parts += [
                SetPartition(stream.sets[queue].set_id(number), at, min(at + step, one.size), queue)
                for queue, one in leased.items()
                for at in range(0, one.size, step)
            ]
        return parts

    def commit(self, end: Offset) -> None:
        """Complete the committed batch again; `latestOffset` has usually done so."""
        name, batch = self._known(end)
        if name is not None:
            self._complete(name, batch)

    def stop(self) -> None:
        """Stop renewing and close the connection. A new run can continue with the leased items."""
        self._portal = self._sets = None
        self._close.close()

    def _known(self, offset: Offset) -> tuple[str | None, int]:
        """Return the name of the stream, None before its first batch, and the number of the batch."""
        if offset.get("queue") != self.target.queue or "number" in offset:
            kind = "events" if "number" in offset else "leases" if "queue" in offset else "something else"
            raise InvalidArgument(
                "checkpointLocation",
                f"a stream of {kind} of {offset.get('queue')}",
                f"the checkpoint of a lease stream of the queue {self.target.queue!r}, or a new folder",
            )
        return offset.get("query"), offset.get("batch", 0)

    def _open(self) -> QueuePortal:
        if self._portal is None:
            self._portal = self._close.enter_context(open_queue(self.target, self.retry_timeout))
        return self._portal

    def _stream(self, name: str) -> BatchSets:
        """Take over the stream of that name, which is in the checkpoint, and renew its leases from now on."""
        if self._sets is None:
            portal, stream = self._open(), self._batch_sets(name)
            portal.call(stream.each, LeaseSets.take_over)
            self._close.callback(portal.start(stream.each, LeaseSets.keep_renewing).cancel)
            self._sets = stream
        return self._sets

    def _batch_sets(self, name: str) -> BatchSets:
        reader = self._reader or secrets.token_hex(8)
        bulks = self._open().bulks.items()
        return BatchSets({shard.name: self._lease_sets(bulk, name, reader) for shard, bulk in bulks})

    def _lease_sets(self, bulk: Bulk, name: str, reader: str) -> LeaseSets:
        lease_ms, retry_timeout = self._lease_ms, self.retry_timeout
        return LeaseSets(bulk, name, lease_ms=lease_ms, retry_timeout=retry_timeout, reader=reader)

    def _count(self, limit: ReadLimit) -> int:
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_rows
        return maximum if self._left is None else min(maximum, self._left)

    def _charge(self, leased: Mapping[str, LeaseSet]) -> None:
        """Count new sets against what a draining query may lease."""
        if self._left is not None:
            # The items of a set left by a crash did not wait when the items were counted.
            self._left -= sum(one.size for one in leased.values() if not one.found)

    # ----------------------------------------------------------- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the items at some positions of the set that are still leased for it."""
        assert isinstance(partition, SetPartition), partition  # noqa: S101 - `partitions` makes these
        set_id, stop = partition.set_id, partition.stop
        max_bytes = PAGE_BYTES if "data" in self._schema.fieldNames() else -1
        with open_queue(self.target.shard(partition.queue)) as portal:

            async def page(start: int) -> tuple[int, int, list[Any]]:
                return await read_set(
                    portal.bulk,
                    set_id,
                    start=start,
                    count=min(STEP, stop - start),
                    max_bytes=max_bytes,
                    retry_timeout=self.retry_timeout,
                )

            at, request = partition.start, portal.start(page, partition.start)
            while at < stop:
                seen, now_ms, flat = request.result()
                at = at + seen if seen else stop
                if at < stop:
                    request = portal.start(page, at)  # in flight while Spark processes this page
                if flat:
                    yield self._batch(portal.payloads, flat, now_ms, set_id.holder)

    def _batch(self, payloads: Payloads, flat: list[Any], now_ms: int, holder: str) -> pa.RecordBatch:
        ids, sizes, data, tokens, attempt, ends, leased, texts = (flat[at::FIELDS] for at in range(FIELDS))
        options = [*map(read_options, texts)]
        if None not in data:  # they were asked for
            names = [key.decode(errors="surrogateescape") for key in ids]
            data = [*map(payloads.leased, data, names)]
        columns = {
            "id": [readable(one) for one in ids],
            "state": ["leased"] * len(ids),
            "data": data,
            "size": sizes,
            "attempt": attempt,
            "token": tokens,
            "holder": [holder] * len(ids),
            "due": [one * 1000 for one in ends],
            "age": [(now_ms - one) / 1000 for one in leased],
            "error": [None] * len(ids),
            "priority": [one.priority for one in options],
            "group": [one.group for one in options],
            "expires": [expires_us(one) for one in options],
        }
        return batch_of(columns, self._schema)
