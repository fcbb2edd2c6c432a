"""`task_results`: the states and results of tasks, as a table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from leasequeue.errors import InvalidArgument, JobFailed, ResultError, UnreadablePayload
from leasequeue.item import MAX_ID_BYTES, codec
from leasequeue.queue.shards.opening import layout_of
from leasequeue.spark.add.columns import Table
from leasequeue.spark.add.row_checks import quoted
from leasequeue.spark.add.task_types import ARRAYS, RECORDS, Array, Entries, Fields, Leaf, Nullable
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import call_with_retries, check_server, codec_of, open_queue
from leasequeue.spark.read.snapshot import ERROR, ID, STATE, ItemFilter, look_up
from leasequeue.spark.sessions import active, is_connect
from leasequeue.spark.source import register
from leasequeue.tasks.wire import read_result
from leasequeue.wire.urls import holds_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.add.task_types import Node
    from leasequeue.spark.options import QueueTarget
    from leasequeue.spark.portal import QueuePortal
    from leasequeue.tasks.task import Task

#: How many ids are looked up at once: the results of one request have no limit of size.
PAGE = 100
_LONG = (("ge", -(2**63)), ("le", 2**63 - 1))
#: The columns of results: of the type of their Python type, or text as it is in JSON.
_SCALARS: dict[type[inspect.Type], tuple[Leaf, spark.DataType]] = {
    inspect.BoolType: (Leaf(bool), spark.BooleanType()),
    inspect.IntType: (Leaf(int, _LONG), spark.LongType()),
    inspect.FloatType: (Leaf(float), spark.DoubleType()),
    inspect.BytesType: (Leaf(bytes), spark.BinaryType()),
    inspect.DateTimeType: (Leaf(datetime), spark.TimestampType()),
    inspect.DateType: (Leaf(date), spark.DateType()),
    **dict.fromkeys(
        (inspect.StrType, inspect.UUIDType, inspect.DecimalType, inspect.TimeType, inspect.TimeDeltaType),
        (Leaf(str), spark.StringType()),
    ),
}
#: What has no type in a table: the JSON, as text.
_JSON = Leaf(msgspec.Raw), spark.StringType()


def task_results(ids: DataFrame, task: Task[..., Any], **options: Any) -> DataFrame:
    """Return the states and results of tasks: a table with a row for each id.

        found = leasequeue.spark.read.task_results(ids, send_mail, url="redis://localhost", idColumn="mail")
        found.where("state = 'completed'").select("id", "result.*")

    The columns are `id`; `state`, as in `JobStatus`: `waiting`, `leased`, `scheduled`, `dead`, `completed`
    or `unknown`; `result`, what the function returned, in the type that it says; and `error`, that of the
    last attempt that failed, or why the result cannot be read. `result` is null unless the state is
    `completed`. Nothing is waited for. The server is asked each time that Spark reads the table, so persist
    it to use it twice.

    A result of a type that a column cannot have, such as a union or a pydantic model, is text, as in JSON.

    Args:
        ids: A table with a column of ids.
        task: The task.
        **options: `idColumn`, by default `id`, `retryTimeout`, and the common options, such as `url`.

    Raises:
        InvalidArgument: If an option or the column cannot be used, the task keeps no results
            (`keep_result=None`), or a session of Spark Connect is to use a URL with a password.
        ServerError: If the server does not answer.
    """
    queue = task.definition.queue
    texts = {name: str(value) for name, value in (codec_of(queue, options) | options).items()}
    parsed = FormatOptions({**texts, "queue": queue.name}, ("idColumn", "retryTimeout"))
    if task.definition.settings.keep_result is None:
        raise InvalidArgument("task", task.name, "one that keeps results: this has keep_result=None")
    target = replace(parsed.target(), layout=layout_of(queue))
    if is_connect(ids) and holds_login(target.url):
        raise InvalidArgument(
            "url", "one with a password", "with Spark Connect, one without: it is sent there"
        )
    exact = ids.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    table = Table(ids.schema, exact=exact)
    name = table.name(parsed.text("idColumn", "id"))
    table.check("idColumn", name, (spark.StringType, spark.IntegralType), "a string or a whole number")
    target, _ = check_server(target)
    node, kind = column_of(inspect.type_info(task.definition.result_type))
    schema = spark.StructType(
        [
            spark.StructField("id", spark.StringType()),
            spark.StructField("state", spark.StringType()),
            spark.StructField("result", kind),
            spark.StructField("error", spark.StringType()),
        ]
    )
    with active(ids.sparkSession):
        register(ids.sparkSession)
        chosen = ids.select(quoted(name).cast("string").alias("id"))
        return chosen.mapInArrow(partial(_read, target, parsed.retry_timeout(), node, schema), schema)


def column_of(kind: Any, within: tuple[Any, ...] = ()) -> tuple[Node, spark.DataType]:
    """Return how results of a type are read, and the type of their column."""
    if isinstance(kind, inspect.UnionType):
        return _union(kind, within)
    if isinstance(kind, (inspect.EnumType, inspect.LiteralType)):
        return _one_of(kind)
    if isinstance(kind, ARRAYS):
        node, column = column_of(kind.item_type, within)  # type: ignore[attr-defined] # each of them has it
        return Array(node), spark.ArrayType(column)
    if isinstance(kind, inspect.DictType) and isinstance(kind.key_type, inspect.StrType):
        node, column = column_of(kind.value_type, within)
        return Entries(Leaf(str), node), spark.MapType(spark.StringType(), column)
    if isinstance(kind, RECORDS):
        return _record(kind, within)
    return _SCALARS.get(type(kind), _JSON)


def decoder_of(node: Node) -> Callable[[bytes], Any]:
    """Return a function that reads a result, which may be null whatever its type."""
    kind = node.type()
    return codec.decoder(kind if kind in (None, msgspec.Raw) else kind | None)


def _union(kind: inspect.UnionType, within: tuple[Any, ...]) -> tuple[Node, spark.DataType]:
    others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    if len(others) != 1 or len(others) == len(kind.types):
        return _JSON
    node, column = column_of(others[0], within)
    return (node if (node, column) == _JSON else Nullable(node)), column


def _one_of(kind: inspect.EnumType | inspect.LiteralType) -> tuple[Node, spark.DataType]:
    values = [one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else [*kind.values]
    if all(isinstance(one, str) for one in values):
        return _SCALARS[inspect.StrType]
    return _SCALARS[inspect.IntType] if all(isinstance(one, int) for one in values) else _JSON


def _record(
    kind: inspect.DataclassType | inspect.StructType | inspect.TypedDictType, within: tuple[Any, ...]
) -> tuple[Node, spark.DataType]:
    names = {one.encode_name.lower() for one in kind.fields}
    if kind.cls in within or not names or len(names) < len(kind.fields) or getattr(kind, "array_like", False):
        return _JSON
    fields = [(one.encode_name, *column_of(one.type, (*within, kind.cls))) for one in kind.fields]
    columns = [spark.StructField(name, column) for name, _, column in fields]
    return Fields(tuple((name, node) for name, node, _ in fields)), spark.StructType(columns)


def _read(
    target: QueueTarget,
    retry_timeout: float,
    node: Node,
    schema: spark.StructType,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Look up the ids of a partition; runs in the executor."""
    decode, arrow = decoder_of(node), to_arrow_schema(schema, timezone="UTC")
    with open_queue(target) as portal:

        def read(item_id: str, value: bytes) -> Any:
            return node.row(read_result(item_id, portal.payloads.decode(value, item_id), decode))

        for batch in batches:
            ids = batch.column("id").to_pylist()
            for at in range(0, len(ids), PAGE):
                some = ids[at : at + PAGE]
                look = partial(_look_up_all, portal, some)
                found = portal.call(call_with_retries, look, retry_timeout)
                rows = [(one, *_outcome(one, found.get(one), read)) for one in some]
                columns = zip(*rows, strict=True)
                arrays = [pa.array(one, kind) for one, kind in zip(columns, arrow.types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


async def _look_up_all(portal: QueuePortal, ids: Sequence[str | None]) -> dict[str, tuple[str, Any]]:
    """Look up ids in the shards that may know them."""
    keys = [key for one in ids if one and len(key := one.encode()) <= MAX_ID_BYTES]
    of_shards = portal.with_ids(dict.fromkeys(keys)).items()
    found = await asyncio.gather(*(_look_up(portal.bulks[shard], some) for shard, some in of_shards))
    return {item_id: known for one in found for item_id, known in one.items()}


async def _look_up(bulk: Bulk, ids: Sequence[bytes]) -> dict[str, tuple[str, Any]]:
    """Return the state of each id that is known, with the result of one that is completed, else the error."""
    found: dict[str, tuple[str, Any]] = {}
    for _ in range(2):  # between two requests, a dead letter may be requeued and its item completed
        keys = [one for one in ids if one.decode() not in found]
        if not keys:
            break
        dead: dict[str, tuple[str, Any]] = {}
        for row in await look_up(bulk, keys, ItemFilter(), data=False):
            (dead if row[STATE] == "dead" else found)[row[ID].decode()] = row[STATE], row[ERROR]
        gone = [one for one in keys if one.decode() not in found]
        results = await bulk.run("result", gone) if gone else []
        for key, result in zip(gone, results, strict=True):
            if result is not None:  # an item that dies drops earlier results: this one is newer
                found[key.decode()] = "completed", result
        found = {**dead, **found}
    return found


def _outcome(
    item_id: str | None, found: tuple[str, Any] | None, read: Callable[[str, bytes], Any]
) -> tuple[str, Any, str | None]:
    state, value = found or ("unknown", None)
    if item_id is None or value is None or state != "completed":
        return state, None, value
    try:
        return state, read(item_id, value), None
    except JobFailed as error:
        return state, None, error.error
    except (ResultError, UnreadablePayload) as error:
        return state, None, error.problem
