"""The kept events as rows: a table of those that are there, and a stream that resumes where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from leasequeue.errors import EventsLost, InvalidArgument, NoEventsKept
from leasequeue.queue.event import Event, event_of
from leasequeue.queue.events import PAGE
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import QueuePortal, call_with_retries, open_queue
from leasequeue.spark.read.lease_sets import fair_parts
from leasequeue.spark.schema import EVENTS, batch_of, check_columns, readable
from leasequeue.states import DETAILS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.options import QueueTarget

#: The options of the stream, beside the common ones.
OPTIONS = (
    *("from", "startingFrom", "maxEventsPerTrigger", "partitions", "idleWait", "retryTimeout", "failOnLoss"),
)
#: The options of the table.
TABLE_OPTIONS = ("from", "partitions", "retryTimeout", "failOnLoss")
#: The minimum of events for one more task.
MIN_ROWS = 500
#: How long to wait between two polls for new events (s).
POLL_SECONDS = 0.25

Offset = dict[str, Any]
#: For each shard the number of its last event, and of the first kept one after some number.
Ends = list[tuple[int, int | None]]


@dataclass(frozen=True)
class EventRange(InputPartition):
    """The events above one number, up to and including another, of a shard or of a queue without shards."""

    after: int
    last: int
    queue: str = ""
    shard: int | None = None


@dataclass(frozen=True)
class EventPages:
    """Reads ranges of events on executors."""

    target: QueueTarget
    schema: StructType
    retry_timeout: float
    fail_on_loss: bool

    def read(self, events: EventRange) -> Iterator[pa.RecordBatch]:
        """Read a range of events."""
        with open_queue(self.target.shard(events.queue)) as portal:
            last, after = events.last, events.after
            while after < last:
                count = min(PAGE, last - after)
                newest, page = portal.call(_page, portal.bulk, after, count, self.retry_timeout)
                if self.fail_on_loss and newest < last:
                    raise _lost(last, newest + 1)
                first = page[0].number if page else newest + 1
                if self.fail_on_loss and first > after + 1:
                    raise _lost(after, first)
                page = [event for event in page if event.number <= last]
                if not page:
                    return
                after = page[-1].number
                yield self._batch(page, events.shard)

    def _batch(self, events: Sequence[Event], shard: int | None) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            name: [getattr(event, name) for event in events]
            for name in ("number", "what", "holder", "token", "attempt", "size", "front", "error")
        }
        columns["shard"] = [shard] * len(events)
        columns["details"] = [_details(event) for event in events]
        columns["id"] = [readable(event.id.encode(errors="surrogateescape")) for event in events]
        columns["at"] = [round(event.at * 1e6) for event in events]
        columns["due"] = [None if event.due is None else round(event.due * 1e6) for event in events]
        return batch_of(columns, self.schema)


class EventsTable(DataSourceReader):
    """Reads the events that are kept when the query, or the first one of its DataFrame, is planned."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = FormatOptions(given, TABLE_OPTIONS)
        check_columns(schema, EVENTS)
        self._parts = _partitions(options)
        self._pages = _pages(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Find the oldest and the newest event, and divide them into tasks; runs on the driver."""
        pages = self._pages
        with open_queue(pages.target, pages.retry_timeout) as portal:
            ends = _ends(portal, pages.retry_timeout)
            before = [last if oldest is None else oldest - 1 for last, oldest in ends]
            return _divide(portal, before, [last for last, _ in ends], self._parts) or [EventRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range of events; runs on an executor. Lost events raise EventsLost."""
        assert isinstance(partition, EventRange), partition  # noqa: S101 - `partitions` makes these
        return self._pages.read(partition)


class EventsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the kept events by their numbers, which have no gaps: so it detects lost events."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = FormatOptions(given, OPTIONS)
        check_columns(schema, EVENTS)
        self._pages = _pages(options, schema)
        self._target = self._pages.target
        self._begin = options.text("startingFrom", "earliest").lower()
        if self._begin not in ("earliest", "latest"):
            raise InvalidArgument("startingFrom", self._begin, "earliest or latest")
        self._max_rows = options.check_int("maxEventsPerTrigger", 100_000, minimum=1, maximum=100_000_000)
        self._parts = _partitions(options)
        self._idle_wait = options.seconds("idleWait", 2.0)
        self._first: Offset | None = None
        #: Whether the server has confirmed, since this reader began, that the events read so far exist.
        self._confirmed = False
        #: The last event of each shard, of a query with trigger `availableNow`.
        self._until: list[int] | None = None
        self._close = contextlib.ExitStack()
        self._open: QueuePortal | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None, "_close": None}

    # ------------------------------------------------------- on the driver

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position before the oldest kept event, or after the newest."""
        if self._first is None:
            self._first = self._offset(
                last if self._begin == "latest" or oldest is None else oldest - 1
                for last, oldest in self._find()
            )
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum number of events of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the newest event: later ones are not read."""
        self._until = [last for last, _ in self._find()]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the next batch."""
        numbers = self._numbers(start)
        waits = self._until is None and isinstance(limit, ReadMaxRows)
        until = time.monotonic() + self._idle_wait
        found = self._find(numbers)
        while waits and [last for last, _ in found] == numbers and time.monotonic() + POLL_SECONDS < until:
            time.sleep(POLL_SECONDS)
            found = self._find(numbers)
        begins, ends = [], []
        for after, (last, oldest), until_event in zip(numbers, found, self._until or numbers, strict=True):
            self._check(after, last, oldest)
            begins.append(max(after, (oldest or 0) - 1))
            # Offsets never go back: a restarted query may already be past the target.
            ends.append(last if self._until is None else max(after, min(last, until_event)))
        self._confirmed = True
        if isinstance(limit, ReadMaxRows):
            rooms = [max(0, end - at) for at, end in zip(begins, ends, strict=True)]
            parts = fair_parts(limit.max_rows, rooms)
            ends = [min(end, at + part) for at, end, part in zip(begins, ends, parts, strict=True)]
        return start | self._offset(ends)

    def _check(self, after: int, last: int, oldest: int | None) -> None:
        """Check that the server still has the events of a shard up to `after`, and has lost none since."""
        if last < after and self._confirmed:
            raise _lost(after, last + 1)
        if last < after:
            raise InvalidArgument(
                "checkpointLocation",
                after,
                f"at most {last}, the number of this queue's last event: the server has lost events, or "
                "is another one. Start with a new folder",
            )
        if last > after and (oldest is None or oldest > after + 1) and self._pages.fail_on_loss:
            raise _lost(after, last + 1 if oldest is None else oldest)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position of the newest event."""
        return self._offset(last for last, _ in self._find())

    def partitions(self, start: Offset, end: Offset) -> list[EventRange]:
        """Divide the events of a batch into tasks."""
        return _divide(self._portal(), self._numbers(start), self._numbers(end), self._parts)

    def stop(self) -> None:
        """Close the connection."""
        self._open = None
        self._close.close()

    def _numbers(self, offset: Offset) -> list[int]:
        if offset.get("queue") != self._target.queue or "number" not in offset:
            raise InvalidArgument(
                "checkpointLocation",
                offset.get("queue", offset),
                f"a checkpoint of the events of queue {self._target.queue!r}, or a new folder",
            )
        numbers: list[int] = offset.get("numbers", [offset["number"]])
        if len(numbers) != (count := len(self._portal().bulks)):
            allowed = f"a new folder, as the queue now has {count} shards"
            raise InvalidArgument("checkpointLocation", f"that of {len(numbers)} shards", allowed)
        return numbers

    def _offset(self, numbers: Iterable[int]) -> Offset:
        """Return an offset: the number of the last event, with shards their sum beside that of each."""
        each = [*numbers]
        offset = {"queue": self._target.queue, "number": sum(each)}
        return offset if len(each) == 1 else offset | {"numbers": each}

    def _find(self, after: Sequence[int] = ()) -> Ends:
        return _ends(self._portal(), self._pages.retry_timeout, after)

    def _portal(self) -> QueuePortal:
        if self._open is None:
            self._open = self._close.enter_context(open_queue(self._target, self._pages.retry_timeout))
        return self._open

    # ----------------------------------------------------------- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range of events; runs on an executor. Lost events raise EventsLost."""
        assert isinstance(partition, EventRange), partition  # noqa: S101 - `partitions` makes these
        return self._pages.read(partition)


def _details(event: Event) -> str | None:
    """Return the fields that few events have, as JSON; None if there are none."""
    given = {name: getattr(event, name) for name in DETAILS if getattr(event, name) is not None}
    return json.dumps(given) if given else None


def has_events(given: Mapping[str, str]) -> bool:
    """Return whether a queue has events."""
    options = FormatOptions(given, OPTIONS)
    retry_timeout = options.retry_timeout()
    with open_queue(options.target(), retry_timeout) as portal:
        return any(oldest for _, oldest in _ends(portal, retry_timeout))


def _pages(options: FormatOptions, schema: StructType) -> EventPages:
    lossless = options.flag("failOnLoss", default=True)
    return EventPages(options.target(), schema, options.retry_timeout(), lossless)


def _partitions(options: FormatOptions) -> int:
    return options.check_int("partitions", 2, minimum=1, maximum=10_000)


def _divide(portal: QueuePortal, after: Sequence[int], last: Sequence[int], parts: int) -> list[EventRange]:
    step = max(MIN_ROWS, math.ceil((sum(last) - sum(after)) / parts))
    spans = enumerate(zip(portal.queue.shards, after, last, strict=True))
    return [
        EventRange(at, min(at + step, end), shard.name, None if shard is portal.queue else place)
        for place, (shard, begin, end) in spans
        for at in range(begin, end, step)
    ]


def _ends(portal: QueuePortal, retry_timeout: float, after: Sequence[int] = ()) -> Ends:
    async def find() -> list[tuple[int, list[Event]]]:
        shards = zip(portal.bulks.values(), after or [0] * len(portal.bulks), strict=True)
        return await asyncio.gather(*(_page(bulk, number, 1, retry_timeout) for bulk, number in shards))

    return [(last, events[0].number if events else None) for last, events in portal.call(find)]


async def _page(bulk: Bulk, after: int, count: int, retry_timeout: float) -> tuple[int, list[Event]]:
    call = partial(bulk.run, "events_read", after=b"%d" % after, count=count)
    last, kept, _, *flat = await call_with_retries(call, retry_timeout)
    if not kept:
        raise NoEventsKept
    return int(last), [event_of(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]


def _lost(after: int, first_kept: int) -> EventsLost:
    if first_kept > after:
        advice = (
            "to continue without them, set the option failOnLoss to false; keep more events, or read sooner"
        )
    else:
        # Offsets do not go back, and other events now have these numbers.
        advice = "start with a new checkpointLocation and a new output folder"
    return EventsLost(after, first_kept, advice)
