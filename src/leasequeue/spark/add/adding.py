"""`add` and `add_task`: add the rows of a table to a queue, as items or as calls of a task."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegralType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasequeue.durations import to_ms
from leasequeue.errors import InvalidArgument, InvalidCall, ServerError
from leasequeue.errors.describing import text_of
from leasequeue.item import codec
from leasequeue.queue.shards.opening import layout_of
from leasequeue.spark.add.columns import LEVEL_ALLOWED, Columns, Table, same_options
from leasequeue.spark.add.row_checks import check_rows, quoted
from leasequeue.spark.add.task_types import Fields, Unfit, fit
from leasequeue.spark.add.writers import WRITE_OPTIONS, Report, job_name
from leasequeue.spark.options import LOCATION, FormatOptions, server_options
from leasequeue.spark.portal import call_with_retries, check_server, codec_of, open_queue
from leasequeue.spark.sessions import active, is_connect
from leasequeue.spark.source import register
from leasequeue.tasks.task import options_of
from leasequeue.tasks.wire import content_id_of, data_of
from leasequeue.wire.urls import holds_login
from leasequeue.worker.stage_context import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame

    from leasequeue.queue.encoding import AddOptions
    from leasequeue.tasks.task import CallOptions, Task


def add(df: DataFrame, queue: str, *, check: bool = True, **options: Any) -> Report:
    """Add the rows of a table to a queue and return a report.

        report = leasequeue.spark.add(df, "emails", url="redis://localhost", idColumn="address")
        print(report.added, report.already_there)

    Does the same as `df.write.format("leasequeue").options(…).mode("append").save()`, from any thread, and
    checks all rows first: if one row cannot be an item, nothing is added. The report is kept for a day as the
    result of the job's name: `await queue.results.get(job)`.

    Args:
        df: The rows. They are read twice, see `check`: persist them if reading is expensive, or if it does
            not return the same rows each time.
        queue: The queue's name.
        check: Whether to check all rows before adding the first. With False, rows are added until one cannot
            be an item.
        **options: Options of the format, such as `url`, `idColumn`, `dataColumn`, `delayColumn`.

    Raises:
        InvalidArgument: If an option or a column cannot be used, or a row cannot be an item. Nothing was
            added.
        ServerError: If the server does not answer, or the report cannot be read after the rows were added.
        pyspark.errors.PySparkException: If the job fails.
    """
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    parsed = FormatOptions({**texts, "queue": queue}, WRITE_OPTIONS)
    target = parsed.target()
    job = job_name(parsed) or f"job:{uuid.uuid4().hex}"
    target, _ = check_server(target)
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    columns = Columns.chosen(parsed, df.schema, exact=exact)
    kept = {name: text for name, text in texts.items() if name.lower() not in ("job", "queue")}
    if is_connect(df) and holds_login(target.url):  # the Connect server reads its own variable or file
        location: AbstractContextManager[dict[str, str]] = nullcontext({})
    else:  # the workers have the environment that Spark was started with: pass on the URL of this one
        kept = {name: text for name, text in kept.items() if name.lower() not in LOCATION}
        location = server_options(target.url, cluster=target.cluster)
    with active(df.sparkSession), location as server:
        register(df.sparkSession)
        if check:
            check_rows(df, columns)
        writer = df.write.format("leasequeue").options(**kept, **server, queue=queue, job=job)
        writer.mode("append").save()
    with open_queue(target) as portal:
        get = partial(portal.queue.results.get, job)
        result = portal.call(call_with_retries, get, parsed.retry_timeout())
    if result is None:
        raise ServerError(f"the report of the job {job!r} has been removed from the server")
    return Report.read(job, result)


#: The columns between the check of a table and the writer.
_ID, _DATA, _ARGUMENTS, _DELAY, _AT = "id", "data", "arguments", "delay", "at"
_PRIORITY, _GROUP, _EXPIRES = "priority", "group", "expires"
#: The options that choose columns of a task's rows: each with the types of its column, what it has to be, and
#: the column between the check and the writer with its type.
_CHOSEN: dict[str, tuple[tuple[type[DataType], ...], str, str, DataType]] = {
    "idColumn": ((StringType, IntegralType), "a string or a whole number", _ID, StringType()),
    "delayColumn": ((NumericType,), "a number of seconds", _DELAY, DoubleType()),
    "atColumn": ((TimestampType,), "a timestamp", _AT, TimestampType()),
    "priorityColumn": ((IntegralType,), LEVEL_ALLOWED, _PRIORITY, LongType()),
    "groupColumn": ((StringType,), "a string", _GROUP, StringType()),
    "expiresColumn": ((NumericType,), "a number of seconds", _EXPIRES, DoubleType()),
}


def add_task(df: DataFrame, task: Task[..., Any], *, check: bool = True, **options: Any) -> Report:
    """Add a call of a task for each row of a table, and return a report.

        report = leasequeue.spark.add_task(df, send_mail, url="redis://localhost", idColumn="mail")

    The columns are the arguments, by name. Each item is what `task.call(…).item()` makes of the row, with the
    options of the task (`task.options(delay=60)`), and the columns are checked against the types of the
    function before anything is read. Executors need no module of the task.

    Args:
        df: The rows. They are read twice, see `check`: persist them if reading is expensive, or if it does
            not return the same rows each time.
        task: The task.
        check: Whether to check the values of all rows before adding the first. With False, rows are added
            until one does not fit.
        **options: Options of the format, such as `url`, `delayColumn`, `atColumn`, `job`, and `idColumn`: a
            column that is one of these is an argument, too, if the function has one of its name. Without
            `idColumn`, equal rows are one task: the id is that of `task.options(content_id=True)`.

    Raises:
        InvalidCall: If a column is missing, is no argument, or does not fit the type of its argument, or a
            row does not fit. Nothing was added.
        InvalidArgument: If an option cannot be used. Nothing was added.
        ServerError: As in `add`.
        pyspark.errors.PySparkException: If the job fails.
    """
    queue = task.definition.queue.name
    options = codec_of(task.definition.queue, options) | options
    if (layout := layout_of(task.definition.queue)) is not None:
        options = {"shards": layout.shards, "shardBy": layout.shard_by} | options
    parsed = FormatOptions(
        {name: str(value) for name, value in {**options, "queue": queue}.items()}, WRITE_OPTIONS
    )
    for name in ("dataColumn", "idFrom"):
        if parsed.text(name):
            allowed = "no such option: the columns are the arguments of the task"
            raise InvalidArgument(name, parsed.text(name), allowed)
    parsed.target()
    chosen = {name: column for name in _CHOSEN if (column := parsed.text(name))}
    same = same_options(parsed)
    done = {*map(str.lower, _CHOSEN), *("priority", "group", "expiresin")}
    options = {name: value for name, value in options.items() if name.lower() not in done}
    with active(df.sparkSession):
        register(df.sparkSession)
        rows, plan = planned(df, task, chosen, same)
        if check:
            _check_values(rows, plan)
        items = rows.mapInArrow(partial(_write_rows, plan), plan.schema)
        return add(items, queue, check=False, **options, **plan.options())


@dataclass(frozen=True)
class AddPlan:
    """How rows become items of a task. It is sent to the executors.

    Attributes:
        now_ms: When the rows are added, by the clock of the task, in ms since 1970.
        content_id: Whether the id is a hash of the arguments.
    """

    task: str
    arguments: Fields
    correlation: str | None
    now_ms: int
    columns: Columns
    content_id: bool
    schema: StructType

    def options(self) -> dict[str, str]:
        """Return the options of the writer for these columns."""
        found = {"idColumn": _ID, "dataColumn": _DATA}
        for option, (*_, column, _) in _CHOSEN.items():
            if column in self.schema.fieldNames():
                found[option] = column
        same: dict[str, Any] = {**self.columns.same}
        if (expires_in := same.pop("expires_in", None)) is not None:
            same["expiresIn"] = to_ms("expires_in", expires_in) / 1000
        return found | {name: str(value) for name, value in same.items()}

    def write(
        self, batch: pa.RecordBatch, decode: Callable[[bytes], Any], where: Callable[[int], str]
    ) -> pa.RecordBatch:
        """Write the rows of a batch as items."""
        arguments = []
        for at, row in enumerate(
            batch.column(_ARGUMENTS).to_pylist() if self.arguments.fields else [{}] * batch.num_rows
        ):
            try:
                written = codec.encode(self.arguments.value(row))
                decode(written)
            except Exception as error:
                raise InvalidCall(self.task, f"{where(at)}: {text_of(error)}") from error
            arguments.append(written)
        data = [
            data_of(self.task, one, self._due_ms(delay), correlation=self.correlation)
            for one, delay in zip(arguments, self.columns.delays(batch, where), strict=True)
        ]
        made = {
            _ID: pa.array([content_id_of(self.task, one) for one in arguments], pa.string())
            if self.content_id
            else batch.column(_ID),
            _DATA: pa.array(data, pa.binary()),
        }
        others = {name: batch.column(name) for name in self.schema.fieldNames() if name not in made}
        return pa.RecordBatch.from_pydict({**made, **others})

    def _due_ms(self, delay: bytes) -> int:
        return max(self.now_ms, int(delay[1:])) if delay.startswith(b"@") else self.now_ms + int(delay)


def planned(
    df: DataFrame, task: Task[..., Any], chosen: Mapping[str, str], same: AddOptions
) -> tuple[DataFrame, AddPlan]:
    """Check the columns of a table against a task, and plan how its rows become items.

    Args:
        df: The table.
        task: The task.
        chosen: The names of columns, by the options of `_CHOSEN`.
        same: The options that all items have, beside those of the task.

    Returns:
        The table with the columns that the plan reads, and the plan.
    """
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    table = Table(df.schema, exact=exact)
    options, due_ms = options_of(task)
    if problem := task.definition.only_stage:
        raise InvalidCall(task.name, problem)
    same = _checked_options(task, options, chosen, same)
    id_column = chosen.get("idColumn")
    selected: dict[str, tuple[DataType, Column]] = {}
    used = set()
    for option, name in chosen.items():
        kinds, wanted, column, kind = _CHOSEN[option]
        found = table.name(name)
        table.check(option, found, kinds, wanted)
        used.add(found)
        selected[column] = kind, quoted(found).cast(kind)
    node, arguments = _arguments(table, task, used)
    if id_column is None:  # as the caller's are for a content id
        node = Fields(tuple(sorted(node.fields, key=itemgetter(0))))
    if not arguments and id_column is None:
        raise InvalidArgument("idColumn", None, "a column of ids, as the task takes no arguments")
    delay_ms = to_ms("delay", options.delay or 0, zero=True)
    if delay_ms:
        selected[_DELAY] = DoubleType(), sql.lit(delay_ms / 1000)
    if options.at is not None:
        selected[_AT] = TimestampType(), sql.lit(options.at)
    others = [name for name in (_DELAY, _AT, _PRIORITY, _GROUP, _EXPIRES) if name in selected]
    fields = [StructField(_ID, StringType()), StructField(_DATA, BinaryType())]
    fields += [StructField(name, selected[name][0]) for name in others]
    plan = AddPlan(
        task=task.name,
        arguments=node,
        correlation=options.correlation or correlation_id.get(),
        now_ms=due_ms - delay_ms,
        columns=Columns((), id=_ID, id_from=(), data=_DATA, **_named(others), same=same),
        content_id=id_column is None,
        schema=StructType(fields),
    )
    columns = [column.alias(name) for name, (_, column) in selected.items()]
    if arguments:
        columns.append(sql.struct(*arguments).alias(_ARGUMENTS))
    return df.select(*columns), plan


def _named(columns: Sequence[str]) -> dict[str, str | None]:
    return {name: name if name in columns else None for name in (_DELAY, _AT, _PRIORITY, _GROUP, _EXPIRES)}


def _checked_options(
    task: Task[..., Any], options: CallOptions, chosen: Mapping[str, str], same: AddOptions
) -> AddOptions:
    """Check the options of a task against those of the format; return those that all its items have."""
    if options.id is not None:
        raise InvalidArgument("id", options.id, "no id for all rows: name a column of ids, as idColumn")
    for name in ("dedupe_for", "replace", "unique_until_start"):
        if (value := getattr(options, name)) is not None:
            raise InvalidArgument(name, value, f"a task without {name}: Spark adds items without it")
    if options.content_id and "idColumn" in chosen:
        raise InvalidArgument("idColumn", chosen["idColumn"], "no column of ids with content_id=True")
    delay, at = chosen.get("delayColumn"), chosen.get("atColumn")
    if (options.delay or options.at is not None) and (delay or at):
        allowed = "no such column when the options of the task have a delay or a time"
        raise InvalidArgument("delayColumn" if delay else "atColumn", delay or at, allowed)
    if delay and at:
        raise InvalidArgument("atColumn", at, "a delay or a time, not both")
    of_task = options.of_item
    if task.definition.limit is not None:  # limits are those of its group
        of_task = {**of_task, "group": task.definition.limit.group}
    for name, column in (
        (_PRIORITY, "priorityColumn"),
        (_GROUP, "groupColumn"),
        ("expires_in", "expiresColumn"),
    ):
        given = [text for text in (name in of_task and "the task", name in same and "an option") if text]
        given += [column] if column in chosen else []
        if len(given) > 1:
            raise InvalidArgument(name, " and ".join(given), f"one {name} of each item")
    return {**of_task, **same}


def _arguments(table: Table, task: Task[..., Any], used: set[str]) -> tuple[Fields, list[Column]]:
    """Check the columns of the arguments; one that an option uses is one only if the function has it."""
    arguments = task.definition.arguments
    found = {name: column for name in arguments.types if (column := table.find(name)) is not None}
    problems = [
        f"there is no column for the argument {name!r}" for name in arguments.required if name not in found
    ]
    takes = ", ".join(arguments.types) or "none"
    for column in table.types:
        if column in arguments.provided:
            problems.append(f"column {column!r}: the worker fills this in")
        elif column not in {*found.values(), *used}:
            problems.append(f"column {column!r} is no argument (it has {takes})")
    fields = []
    for name, column in found.items():
        try:
            kind = msgspec.inspect.type_info(arguments.types[name])
            fields.append((name, fit(kind, table.types[column], column)))
        except Unfit as error:
            problems.append(str(error))
    if problems:
        raise InvalidCall(task.name, "; ".join(problems))
    return Fields(tuple(fields)), [quoted(column).alias(name) for name, column in found.items()]


def _check_values(rows: DataFrame, plan: AddPlan) -> None:
    """Check in one pass that each row can be a call."""
    for found in rows.mapInArrow(partial(_find_problem, plan), "problem string").head(1):
        raise InvalidCall(plan.task, found.problem)


def _find_problem(plan: AddPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return a row with the first problem of a partition, if it has one; runs in the executor."""
    try:
        for batch, where in _numbered(plan, batches):
            plan.columns.rows(batch, where)
    except InvalidCall as error:
        yield pa.RecordBatch.from_pydict({"problem": [error.problem]})
    except InvalidArgument as error:
        yield pa.RecordBatch.from_pydict({"problem": [str(error)]})


def _write_rows(plan: AddPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch, _ in _numbered(plan, batches):
        yield batch


def _numbered(
    plan: AddPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    decode = codec.decoder(plan.arguments.type())
    before = 0
    for batch in batches:

        def where(at: int, before: int = before) -> str:
            return f"row {before + at + 1:,} of partition {partition}"

        yield plan.write(batch, decode, where), where
        before += batch.num_rows
