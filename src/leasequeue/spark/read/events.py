"""The kept events as rows: a table of those that are there, and a stream that resumes where it stopped."""

from __future__ import annotations

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
from leasequeue.spark.schema import EVENTS, batch_of, check_columns, readable
from leasequeue.states import DETAILS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


@dataclass(frozen=True)
class EventRange(InputPartition):
    """The events above one number, up to and including another."""

    after: int
    last: int


@dataclass(frozen=True)
class EventPages:
    """Reads ranges of events on executors."""

    target: QueueTarget
    schema: StructType
    retry_timeout: float
    fail_on_loss: bool

    def read(self, events: EventRange) -> Iterator[pa.RecordBatch]:
        """Read a range of events."""
        with open_queue(self.target) as portal:
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
                yield self._batch(page)

    def _batch(self, events: Sequence[Event]) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            name: [getattr(event, name) for event in events]
            for name in ("number", "what", "holder", "token", "attempt", "size", "front", "error")
        }
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
        with open_queue(pages.target) as portal:
            last, oldest = _ends(portal, 0, pages.retry_timeout)
        return _divide(last if oldest is None else oldest - 1, last, self._parts) or [EventRange(last, last)]

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
        #: The last event of a query with trigger `availableNow`.
        self._until: int | None = None
        self._close = contextlib.ExitStack()
        self._open: QueuePortal | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None, "_close": None}

    # ------------------------------------------------------- on the driver

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position before the oldest kept event, or after the newest."""
        if self._first is None:
            last, oldest = self._find(0)
            before = last if self._begin == "latest" or oldest is None else oldest - 1
            self._first = {"queue": self._target.queue, "number": before}
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum number of events of a batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the newest event: later ones are not read."""
        self._until = self._find(0)[0]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the next batch."""
        after = self._number(start)
        waits = self._until is None and isinstance(limit, ReadMaxRows)
        until = time.monotonic() + self._idle_wait
        last, oldest = self._find(after)
        while last == after and waits and time.monotonic() + POLL_SECONDS < until:
            time.sleep(POLL_SECONDS)
            last, oldest = self._find(after)
        if last < after and self._confirmed:
            raise _lost(after, last + 1)
        if last < after:
            raise InvalidArgument(
                "checkpointLocation",
                after,
                f"at most {last}, the number of this queue's last event: the server has lost events, or "
                "is another one. Start with a new folder",
            )
        self._confirmed = True
        if last > after and (oldest is None or oldest > after + 1) and self._pages.fail_on_loss:
            raise _lost(after, last + 1 if oldest is None else oldest)
        # Offsets never go back: a restarted query may already be past the target.
        end = max(after, last if self._until is None else min(last, self._until))
        if isinstance(limit, ReadMaxRows):
            end = min(end, max(after, (oldest or 0) - 1) + limit.max_rows)
        return start | {"number": end}

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the position of the newest event."""
        return {"queue": self._target.queue, "number": self._find(0)[0]}

    def partitions(self, start: Offset, end: Offset) -> list[EventRange]:
        """Divide the events of a batch into tasks."""
        return _divide(self._number(start), self._number(end), self._parts)

    def stop(self) -> None:
        """Close the connection."""
        self._open = None
        self._close.close()

    def _number(self, offset: Offset) -> int:
        if offset.get("queue") != self._target.queue or "number" not in offset:
            raise InvalidArgument(
                "checkpointLocation",
                offset.get("queue", offset),
                f"a checkpoint of the events of queue {self._target.queue!r}, or a new folder",
            )
        return int(offset["number"])

    def _find(self, after: int) -> tuple[int, int | None]:
        if self._open is None:
            self._open = self._close.enter_context(open_queue(self._target))
        return _ends(self._open, after, self._pages.retry_timeout)

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
    with open_queue(options.target()) as portal:
        return _ends(portal, 0, options.retry_timeout())[1] is not None


def _pages(options: FormatOptions, schema: StructType) -> EventPages:
    lossless = options.flag("failOnLoss", default=True)
    return EventPages(options.target(), schema, options.retry_timeout(), lossless)


def _partitions(options: FormatOptions) -> int:
    return options.check_int("partitions", 2, minimum=1, maximum=10_000)


def _divide(after: int, last: int, parts: int) -> list[EventRange]:
    step = max(MIN_ROWS, math.ceil((last - after) / parts))
    return [EventRange(at, min(at + step, last)) for at in range(after, last, step)]


def _ends(portal: QueuePortal, after: int, retry_timeout: float) -> tuple[int, int | None]:
    """Return the number of the last event ever emitted, and of the first kept one after `after`."""
    last, events = portal.call(_page, portal.bulk, after, 1, retry_timeout)
    return last, events[0].number if events else None


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
