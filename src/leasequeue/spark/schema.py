"""The schemas of items and events, and Arrow batches of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.queue.views import ItemOptions

#: The columns of an item, in a snapshot and in the lease stream, where every item is leased.
ITEMS = StructType(
    [
        StructField("id", StringType(), nullable=False),
        #: waiting, leased, scheduled or dead
        StructField("state", StringType(), nullable=False),
        StructField("data", BinaryType()),
        StructField("size", LongType(), nullable=False),
        #: how often it has been leased; interrupted runs are not counted
        StructField("attempt", IntegerType(), nullable=False),
        #: the token of its last lease
        StructField("token", LongType()),
        StructField("holder", StringType()),
        #: when the lease expires, or the item falls due
        StructField("due", TimestampType()),
        #: seconds since it was last leased or, of a dead letter, since it died
        StructField("age", DoubleType()),
        #: the error of the last attempt, of a dead letter or an item that is retried
        StructField("error", StringType()),
        #: items of a higher one are leased first
        StructField("priority", IntegerType(), nullable=False),
        StructField("group", StringType()),
        #: when it is discarded if no worker has begun with it
        StructField("expires", TimestampType()),
    ]
)

#: The kept events: see `leasequeue.Event`.
EVENTS = StructType(
    [
        StructField("number", LongType(), nullable=False),
        StructField("what", StringType(), nullable=False),
        StructField("id", StringType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("holder", StringType()),
        StructField("token", LongType()),
        StructField("attempt", IntegerType()),
        StructField("size", LongType()),
        StructField("due", TimestampType()),
        StructField("front", BooleanType(), nullable=False),
        StructField("error", StringType()),
        #: the fields that few events have, as a JSON object
        StructField("details", StringType()),
        #: of a queue with shards, which of them: each has its own numbers
        StructField("shard", IntegerType()),
    ]
)


def check_columns(schema: StructType, offered: StructType) -> None:
    """Check a schema given by the user: any of the columns, in any order; `data` may also be a string."""
    types = {field.name: field.dataType for field in offered}
    for field in schema:
        known = types.get(field.name)
        if known is None:
            raise InvalidArgument("schema", field.name, f"columns among {', '.join(types)}")
        if field.dataType != known and not (field.name == "data" and isinstance(field.dataType, StringType)):
            given = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidArgument("schema", given, known.simpleString())


def batch_of(columns: Mapping[str, Sequence[Any]], schema: StructType) -> pa.RecordBatch:
    """Build an Arrow batch with the columns of the schema.

    Args:
        columns: By name. Times are microseconds since 1970; data is bytes.
        schema: What Spark expects, exactly.
    """
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = []
    for name, kind in zip(arrow.names, arrow.types, strict=True):
        values = columns[name]
        if name == "data" and pa.types.is_string(kind):
            # Spark does not check strings: bytes that are not UTF-8 would corrupt them.
            values = [None if one is None else one.decode(errors="replace") for one in values]
        arrays.append(pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def expires_us(options: ItemOptions) -> int | None:
    """Return when an item expires, in microseconds since 1970; None: never."""
    return None if options.expires is None else round(options.expires * 1000) * 1000


def readable(item_id: bytes) -> str:
    r"""Decode an id. Foreign clients may use ids that are not UTF-8: their odd bytes become \xNN."""
    return item_id.decode(errors="backslashreplace")
