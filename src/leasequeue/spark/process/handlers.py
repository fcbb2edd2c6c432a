"""Runs handlers on executors: passes them items, checks what they yield, and collects what has failed.

What Spark calls is `HandlerTask.run`, for each task of a batch. Its rows are those of the output, with one
more column, MARKER. Where that is not null, the row is no row of the output but a failure, or the task's
counts.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from leasequeue.errors import InvalidArgument
from leasequeue.errors.describing import text_of
from leasequeue.queue.encoding import failing
from leasequeue.spark.errors import HandlerFailed
from leasequeue.spark.process.output_columns import ITEM, OUTCOME, OutputColumns
from leasequeue.worker.outcomes import Fail, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd

    from leasequeue.worker.retry import RetryPolicy

#: What a handler takes and yields.
Kind: TypeAlias = Literal["arrow", "pandas", "item"]
KINDS: tuple[str, ...] = get_args(Kind)
#: The column of failures and counts.
MARKER = "_leasequeue"
#: How many bytes of errors a task reports in full, since all pass through the memory of the driver at once;
#: and how many bytes of the end of each later one.
FULL_ERRORS, SHORT_ERROR = 2 << 20, 500
#: The maximum of characters of the text of an error that ends a run.
MAX_REASON = 500
MARKER_TYPE = StructType(
    [
        # a failure
        StructField("id", StringType()),
        StructField("delay_ms", LongType()),
        StructField("size", LongType()),
        StructField("error", StringType()),
        StructField("group", StringType()),
        # the counts of a task: items, and those that were completed without a row; -1: not known
        StructField("items", LongType()),
        StructField("without", LongType()),
    ]
)
#: The columns that the task needs, whether or not the handler gets them.
NEEDED = ("id", "attempt", "size", "group")
_NAMED = f"rows name their items in the column 'id' or {ITEM!r}"


@dataclass(frozen=True)
class HandlerTask:
    """A handler, and what an executor needs to run it.

    Attributes:
        refuse: Whether an item that is completed without a row in the output is an error.
    """

    handler: Callable[..., Any]
    kind: str
    given: tuple[str, ...]
    columns: OutputColumns
    retry: RetryPolicy
    refuse: bool

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows that `run` yields."""
        fields = [StructField(one.name, one.dataType) for one in self.columns.schema]
        return StructType([*fields, StructField(MARKER, MARKER_TYPE)])

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the items of one task."""
        tally = Tally(self)
        runs = {"arrow": self._run_arrow, "pandas": self._run_pandas, "item": self._run_items}
        for batch in tally.explained(runs[self.kind](tally.read(batches), tally)):
            if rows := tally.take(batch):
                yield from self._marked(rows)
        if unread := sum(map(len, batches)):
            allowed = (
                f"one that reads all its batches: {unread} items left unread would be completed unprocessed"
            )
            raise InvalidArgument("handler", self.handler, allowed)
        yield self._marks(tally.end())

    def _run_arrow(self, batches: Iterator[pa.RecordBatch], _: Tally) -> Iterator[pa.RecordBatch]:
        for batch in self.handler(batches):
            if not isinstance(batch, pa.RecordBatch):
                raise InvalidArgument("what the handler yields", batch, "a pyarrow.RecordBatch")
            yield batch

    def _run_pandas(self, batches: Iterator[pa.RecordBatch], _: Tally) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        for frame in self.handler(map(_frame_of, batches)):
            if not isinstance(frame, pd.DataFrame):
                raise InvalidArgument("what the handler yields", frame, "a pandas.DataFrame")
            yield self.columns.batch_of_frame(frame)

    def _run_items(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for values, item_id in zip(batch.to_pylist(), tally.last, strict=True):
                try:
                    made = _rows_of(self.handler(Row(**values)))
                except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this item
                    tally.fail(item_id, error)
                    continue
                rows += [(one | {ITEM: item_id} if isinstance(one, dict) else one) for one in made]
            if rows:
                yield self.columns.batch_of_rows(rows)

    def _marked(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows of the output with an empty marker."""
        if rows.num_rows:
            empty = pa.nulls(rows.num_rows, self._arrow_schema.types[-1])
            yield pa.RecordBatch.from_arrays([*rows.columns, empty], schema=self._arrow_schema)

    def _marks(self, marks: list[dict[str, Any]]) -> pa.RecordBatch:
        *kinds, of_marker = self._arrow_schema.types
        columns = [*(pa.nulls(len(marks), kind) for kind in kinds), pa.array(marks, of_marker)]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    @property
    def _arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone=self.columns.timezone)


class _Item(NamedTuple):
    """What a failure needs to know of an item."""

    attempt: int
    size: int
    group: str | None


@dataclass
class Tally:
    """The outcomes of the items of one task."""

    task: HandlerTask
    #: The ids of the last batch that was passed to the handler.
    last: list[str] = field(default_factory=list)
    _items: dict[str, _Item] = field(default_factory=dict)
    _failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The ids that rows of the output name, and whether all rows name one.
    _written: set[str] = field(default_factory=set)
    _named: bool = True
    _error_bytes: int = 0
    #: The error of Spark's that the handler got when it asked for its items.
    _of_input: Exception | None = None

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches with the columns that the handler gets, and note their items."""
        for batch in self._received(batches):
            self.last, *facts = (batch.column(name).to_pylist() for name in NEEDED)
            self._items.update(zip(self.last, map(_Item, *facts), strict=True))
            yield batch.select(list(self.task.given))

    def _received(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self._of_input = error
            raise

    def explained(self, made: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what a handler yields; say of its error where it was raised, and which items it had."""
        try:
            yield from made
        except Exception as error:
            if error is self._of_input or isinstance(error, InvalidArgument):
                raise
            *_, frame = traceback.extract_tb(error.__traceback__)
            some = f"{self.last[0]!r} to {self.last[-1]!r}" if self.last else "none yet"
            text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
            place = f"line {frame.lineno} of {frame.filename}, in {frame.name}"
            raise HandlerFailed(f"{text[:MAX_REASON]} ({place}; items {some})") from error

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check a batch of the handler, note its failures, and return the rows of the output."""
        columns = self.task.columns
        columns.check_names(batch.schema.names)
        ids = columns.ids(batch)
        keep = [True] * batch.num_rows
        if OUTCOME in batch.schema.names:
            if ids is None:
                raise InvalidArgument(
                    "what the handler yields", OUTCOME, f"a column of ids beside it: {_NAMED}"
                )
            for at, (signal, item_id) in enumerate(zip(columns.signals(batch), ids, strict=True)):
                if signal is not None:
                    keep[at] = False
                    self.fail(item_id, signal)
        if ids is None:
            self._named = False
        else:
            self._written.update(item_id for item_id, kept in zip(ids, keep, strict=True) if kept)
        return columns.fitted(batch if all(keep) else batch.filter(pa.array(keep)))

    def fail(self, item_id: str, error: BaseException) -> None:
        """Note that an item has failed; of several errors the first counts."""
        if (item := self._items.get(item_id)) is None:
            raise InvalidArgument(
                f"the id of a row with {OUTCOME!r}", item_id, "the id of an item of this task"
            )
        outcome = outcome_of(error, item.attempt, self.task.retry)
        if not isinstance(outcome, Fail):
            raise InvalidArgument("what the handler raises", error, "Retry, Reject, or an error")
        delay, text = failing(outcome.error, outcome.retry_in)
        self._error_bytes += len(text)
        if self._error_bytes > FULL_ERRORS:
            text = text[-SHORT_ERROR:]
        self._failed.setdefault(
            item_id,
            {
                "id": item_id,
                "delay_ms": int(delay),
                "size": item.size,
                "error": text.decode(errors="replace"),
                "group": item.group,
            },
        )

    def end(self) -> list[dict[str, Any]]:
        """Return the markers: the failures, and the counts.

        Raises:
            InvalidArgument: If an item has both failed and a row in the output, or has no row and
                that is refused.
        """
        if both := self._failed.keys() & self._written:
            allowed = "either rows in the output or a failure, as its rows would be written again"
            raise InvalidArgument("the outcome of an item", min(both), allowed)
        missing = self._items.keys() - self._written - self._failed.keys()
        if self.task.refuse and missing:
            some = f"{len(missing)} of {len(self._items)} items of a task, such as {min(missing)!r}"
            raise InvalidArgument("without_output", some, f"none, as it is 'refuse'; {_NAMED}")
        without = len(missing) if self._named else -1
        return [*self._failed.values(), {"items": len(self._items), "without": without}]


def _rows_of(found: Any) -> list[Any]:
    """Return the rows that a handler of single items has returned; run it if it is a generator."""
    if found is None:
        return []
    if isinstance(found, (Mapping, Row)) or not isinstance(found, Iterable):
        found = [found]
    rows = (one.asDict() if isinstance(one, Row) else one for one in found)
    return [dict(one) if isinstance(one, Mapping) else one for one in rows]


def _frame_of(batch: pa.RecordBatch) -> pd.DataFrame:
    """Convert a batch as Spark does for `mapInPandas`: times have no zone, and are those of the session."""
    frame = batch.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            frame[name] = frame[name].dt.tz_localize(None)
    return frame
