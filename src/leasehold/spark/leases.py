"""A stream that leases: what Spark asks of it, answered by the sets of `lease_sets`."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from leasehold.durations import to_ms
from leasehold.errors import InvalidArgument
from leasehold.spark.lease_sets import FIELDS, STEP, LeaseSets, SetId, read_set
from leasehold.spark.options import Options
from leasehold.spark.portal import QueuePortal, check_queue, check_server, open_queue
from leasehold.spark.schema import ITEMS, batch_of, check_columns, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: What the stream understands, beside the options of all.
OPTIONS = ("from", "maxRows", "leaseTime", "partitions", "idleWait", "retryTimeout", "mayBeMissing")
#: How much data comes in one trip to an executor, but for a single item.
PAGE_BYTES = 4 << 20
#: How long to wait between two looks at an empty queue (s).
LOOK_SECONDS = 0.25
#: How many tasks a batch has if nobody says: at least so many, and one for so many of the most items.
MIN_PARTS, ROWS_PER_PART = 2, 5_000

Offset = dict[str, Any]


@dataclass(frozen=True)
class Part(InputPartition):
    """Some places of a set: what one task reads."""

    name: SetId
    start: int
    stop: int


class LeasesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases a batch of items, has it renewed while it runs, completes it when Spark has committed it.

    Spark keeps one of these per query in a process beside the driver, where it keeps a connection. Copies of
    it go to the executors, where only `read` is called.

    Args:
        given: The options.
        schema: The columns that are wanted.

    Raises:
        InvalidArgument: If one of them is not as said.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, OPTIONS)
        check_columns(schema, ITEMS)
        self._schema = schema
        self._target = options.target()
        self._max_rows = options.check_int("maxRows", 10_000, minimum=1, maximum=1_000_000)
        self._lease_ms = to_ms("leaseTime", options.seconds("leaseTime", 600.0))
        parts = max(MIN_PARTS, math.ceil(self._max_rows / ROWS_PER_PART))
        self._parts = options.check_int("partitions", parts, minimum=1, maximum=10_000)
        self._idle_wait = options.seconds("idleWait", 2.0)
        self._retry_timeout = options.seconds("retryTimeout", 60.0)
        self._may_be_missing = options.flag("mayBeMissing", default=False)
        self._first: Offset | None = None
        self._draining = False
        #: How many items a query that drains what is there may still lease; None: not counted yet.
        self._left: int | None = None
        self._close = contextlib.ExitStack()
        self._open: tuple[QueuePortal, LeaseSets] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None, "_close": None}

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._target.queue

    # ------------------------------------------------------- beside the driver

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query begins: before its first batch, under a name that nobody has.

        Raises:
            InvalidArgument: If there is no such queue.
            ServerError: If the server does not answer: a query that has begun would wait for it.
        """
        if self._first is None:
            self.check_queue()
            # Spark asks twice and wants one answer.
            self._first = {"queue": self._target.queue, "query": secrets.token_hex(8), "batch": 0}
        return self._first

    def check_queue(self) -> None:
        """See to it that the server answers, and that there is such a queue, as a new query wants.

        Raises:
            InvalidArgument: If there is no trace of it, and nobody has said that it may be missing.
            ServerError: If the server does not answer.
        """
        if self._may_be_missing:
            check_server(self._target)
        else:
            check_queue(self._target, "a stream that waits for it")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How many items a batch has at most."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Lease what is there when the first batch is made, and nothing that comes later."""
        self._draining = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Complete what is committed, then lease the next batch, or find the one that a crash has left.

        Spark asks only when everything up to `start` is in its commit log.
        """
        if isinstance(limit, ReadAllAvailable):
            # It asks once: what that batch leases would never be completed.
            raise InvalidArgument("trigger", "once", "availableNow=True, which completes what it has leased")
        stream_name, batch = self._known(start)
        portal, stream = self._stream(stream_name)
        portal.call(stream.complete, batch)
        until = time.monotonic() + self._idle_wait
        while True:
            leased = portal.call(stream.lease, batch + 1, self._count(limit, portal, stream))
            if leased.places:
                break
            if self._draining or time.monotonic() + LOOK_SECONDS > until:
                return start
            time.sleep(LOOK_SECONDS)
        if self._left is not None and not leased.found:
            # What a crash has left was not among those that waited when they were counted.
            self._left -= leased.places
        return start | {"batch": batch + 1}

    def partitions(self, start: Offset, end: Offset) -> list[Part]:
        """Cut the batch into tasks. After a crash Spark asks for it before anything else."""
        stream_name, last = self._known(end)
        first = self._known(start)[1] if start else 0
        parts = []
        for number in range(first + 1, last + 1):
            portal, stream = self._stream(stream_name)
            places = portal.call(stream.again, number).places
            step = max(1, math.ceil(places / self._parts))
            name = stream.place(number)
            parts += [Part(name, at, min(at + step, places)) for at in range(0, places, step)]
        return parts

    def commit(self, end: Offset) -> None:
        """Complete what is committed, once more: `latestOffset` has done it, as a rule."""
        stream_name, batch = self._known(end)
        portal, stream = self._stream(stream_name)
        portal.call(stream.complete, batch)

    def stop(self) -> None:
        """Renew nothing any more, and hang up. What is leased can be taken up again by a new run."""
        self._open = None
        self._close.close()

    def _known(self, offset: Offset) -> tuple[str, int]:
        """The name of the stream, and the number of the batch."""
        if offset.get("queue") != self._target.queue or "query" not in offset:
            kind = "leases" if "query" in offset else "events" if "number" in offset else "something else"
            raise InvalidArgument(
                "checkpointLocation",
                f"a stream of {kind} of {offset.get('queue')}",
                f"the checkpoint of a stream of leases of the queue {self._target.queue!r}, or a new folder",
            )
        return offset["query"], offset["batch"]

    def _stream(self, name: str) -> tuple[QueuePortal, LeaseSets]:
        if self._open is None:
            portal = self._close.enter_context(open_queue(self._target))
            stream = LeaseSets(portal.bulk, name, lease_ms=self._lease_ms, retry_timeout=self._retry_timeout)
            portal.call(stream.take_over)
            keeping = portal.start(stream.keep)
            self._close.callback(keeping.cancel)
            self._open = portal, stream
        return self._open

    def _count(self, limit: ReadLimit, portal: QueuePortal, stream: LeaseSets) -> int:
        """How many items the next batch may have."""
        if self._draining and self._left is None:
            self._left = portal.call(stream.waiting)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_rows
        return most if self._left is None else min(most, self._left)

    # ----------------------------------------------------------- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the data of some places of the set: what is still leased for it."""
        assert isinstance(partition, Part), partition  # noqa: S101 - what `partitions` has made
        name, stop = partition.name, partition.stop
        max_bytes = PAGE_BYTES if "data" in self._schema.fieldNames() else -1
        with open_queue(self._target) as portal:

            async def page(start: int) -> tuple[int, int, list[Any]]:
                return await read_set(
                    portal.bulk,
                    name,
                    start=start,
                    count=min(STEP, stop - start),
                    max_bytes=max_bytes,
                    retry_timeout=self._retry_timeout,
                )

            at, coming = partition.start, portal.start(page, partition.start)
            while at < stop:
                seen, now_ms, flat = coming.result()
                at = at + seen if seen else stop
                if at < stop:
                    coming = portal.start(page, at)  # on its way while Spark takes this one
                if flat:
                    yield self._batch(flat, now_ms, name.holder)

    def _batch(self, flat: list[Any], now_ms: int, holder: str) -> pa.RecordBatch:
        ids, sizes, data, tokens, attempt, ends, leased = (flat[at::FIELDS] for at in range(FIELDS))
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
        }
        return batch_of(columns, self._schema)
