"""Handlers of `process` without Spark: their columns are checked by name, and outcomes belong to items."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasequeue import InvalidArgument, Reject, Retry, RetryPolicy, Snooze
from leasequeue.spark.process.handlers import MARKER, HandlerTask
from leasequeue.spark.process.output_columns import OutputColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Row

TEXT, LONG, TIME = StringType(), LongType(), TimestampType()


def columns_of(**kinds: DataType) -> StructType:
    """Return a schema."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


SCHEMA = columns_of(id=TEXT, length=LONG)
#: Three items, of which the last has been tried four times.
ITEMS: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "data": [b"1", b"22", b"333"],
    "attempt": [1, 1, 5],
    "size": [1, 2, 3],
    "group": pa.nulls(3, pa.string()),
}


def task(handler: Any, *, kind: str = "arrow", schema: StructType = SCHEMA, **more: Any) -> HandlerTask:
    """Return a task of a session in Berlin."""
    given: dict[str, Any] = {"retry": RetryPolicy(attempts=5, first=8, jitter=False), "refuse": False} | more
    columns = OutputColumns.of(schema, "Europe/Berlin")
    return HandlerTask(handler, kind, ("id", "data", "attempt"), columns, **given)


def run(handler: Any, **more: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[int, int]]:
    """Run a handler; return the rows of the output, the failures, and the counts."""
    items = pa.record_batch(ITEMS)
    found = [row for batch in task(handler, **more).run(iter([items])) for row in batch.to_pylist()]
    markers = [row.pop(MARKER) for row in found]
    rows = [row for row, marker in zip(found, markers, strict=True) if marker is None]
    *failures, counts = [marker for marker in markers if marker is not None]
    kept = ("id", "delay_ms", "size", "error")
    return (
        rows,
        [{name: one[name] for name in kept} for one in failures],
        (counts["items"], counts["without"]),
    )


def yielding(kind: str, columns: Any) -> Callable[..., Any]:
    """Return a handler that yields certain columns, for three items."""

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch(columns)

    def pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in frames:
            yield pd.DataFrame(columns)

    def item(row: Row) -> dict[str, Any]:
        return {name: values[ITEMS["id"].index(row.id)] for name, values in columns.items()}

    return {"arrow": arrow, "pandas": pandas, "item": item}[kind]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "item"])
def test_columns_are_assigned_by_name(kind: str) -> None:
    rows, failures, counts = run(yielding(kind, {"length": [1, 2, 3], "id": ["a", "b", "c"]}), kind=kind)
    assert rows == [{"id": "a", "length": 1}, {"id": "b", "length": 2}, {"id": "c", "length": 3}]
    assert (failures, counts) == ([], (3, 0))


WRONG: dict[str, tuple[dict[str, list[Any]], str]] = {
    "missing": ({"id": ["a", "b", "c"]}, "'length' is missing"),
    "extra": ({"id": ["a", "b", "c"], "length": [1, 2, 3], "more": [1, 2, 3]}, "'more' is not in the schema"),
    "renamed": (
        {"id": ["a", "b", "c"], "size": [1, 2, 3]},
        "'length' is missing, 'size' is not in the schema",
    ),
    "a text": ({"id": ["a", "b", "c"], "length": ["1", "2", "3"]}, "column 'length' .* bigint"),
    "a fraction": ({"id": ["a", "b", "c"], "length": [1.5, 2.0, 3.0]}, "column 'length' .* bigint"),
    "an id as a number": ({"id": [1, 2, 3], "length": [1, 2, 3]}, "column 'id' .* string"),
    "swapped": ({"length": ["a", "b", "c"], "id": [1, 2, 3]}, "column '(id|length)' .* (string|bigint)"),
}


@pytest.mark.parametrize("kind", ["arrow", "pandas", "item"])
@pytest.mark.parametrize("wrong", WRONG)
def test_other_columns_than_those_of_the_schema_are_errors_that_name_them(kind: str, wrong: str) -> None:
    columns, expected = WRONG[wrong]
    with pytest.raises(InvalidArgument, match=expected):
        run(yielding(kind, columns), kind=kind)


def test_a_column_that_is_there_twice_is_an_error() -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [batch["id"], batch["attempt"], batch["attempt"]]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "length", "length"])

    with pytest.raises(InvalidArgument, match="'length' is there twice"):
        run(twice)


@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        ("arrow", lambda batches: [batch.to_pandas() for batch in batches]),
        ("pandas", lambda frames: [frame.to_dict() for frame in frames]),
        ("item", lambda item: item.id),
        ("item", lambda _: 5),
        ("item", lambda item: [{"id": item.id, "length": 1}, 5]),
    ],
)
def test_a_handler_that_yields_something_else_is_an_error(kind: str, handler: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"what the handler (yields|returns)"):
        run(handler, kind=kind)


def test_types_that_differ_only_in_width_or_encoding_are_converted() -> None:
    def narrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch(
                {
                    "parts": pa.array([[1], None, [2, 3]], pa.large_list(pa.int32())),
                    "id": batch["id"].dictionary_encode(),
                    "pairs": pa.array([[("x", 1)], [], None], pa.map_(pa.large_string(), pa.int16())),
                    "length": pa.array([1, 2, None], pa.int8()),
                    "nothing": pa.nulls(3),
                }
            )

    schema = columns_of(
        id=TEXT, length=LONG, nothing=DoubleType(), parts=ArrayType(LONG), pairs=MapType(TEXT, LONG)
    )
    rows, _, _ = run(narrow, schema=schema)
    assert rows[0] == {"id": "a", "length": 1, "nothing": None, "parts": [1], "pairs": [("x", 1)]}
    large = {"id": ["a", "b", "c"], "length": [1, 2, 1 << 40]}
    with pytest.raises(InvalidArgument, match=r"column 'length' .* int"):
        run(yielding("arrow", large), schema=columns_of(id=TEXT, length=IntegerType()))
    holes = {"id": ["a", "b", "c"], "length": [1, None, 3]}
    with pytest.raises(InvalidArgument, match=r"'length' .* got None, expected a bigint in each row"):
        run(
            yielding("arrow", holes),
            schema=StructType([SCHEMA["id"], StructField("length", LONG, nullable=False)]),
        )


@pytest.mark.parametrize("kind", ["pandas", "item"])
def test_nested_values_and_times(kind: str) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    columns: dict[str, list[Any]] = {
        "id": ["a", "b", "c"],
        "pair": [{"x": 1, "y": "one"}, None, {"x": 3, "y": None}],
        "pairs": [{"k": 1}, {}, None],
        "at": [noon, noon, None],
    }
    schema = columns_of(id=TEXT, pair=columns_of(x=LONG, y=TEXT), pairs=MapType(TEXT, LONG), at=TIME)
    rows, _, _ = run(yielding(kind, columns), kind=kind, schema=schema)
    assert rows[0] == {"id": "a", "pair": {"x": 1, "y": "one"}, "pairs": [("k", 1)], "at": noon}
    assert rows[2] == {"id": "c", "pair": {"x": 3, "y": None}, "pairs": None, "at": None}


@pytest.mark.parametrize("kind", ["pandas", "item"])
def test_fractions_are_not_cut_off_inside_a_value_or_a_column_of_objects(kind: str) -> None:
    parts, pair = ArrayType(LONG), columns_of(x=LONG)
    for kinds, values in ((parts, [[1], [2.5], None]), (pair, [{"x": 1}, {"x": 1.5}, None])):
        columns = {"id": ["a", "b", "c"], "n": values}
        with pytest.raises(InvalidArgument, match=r"column 'n' .*\.5 is not an integer"):
            run(yielding(kind, columns), kind=kind, schema=columns_of(id=TEXT, n=kinds))
    mixed = {"id": ["a", "b", "c"], "length": pd.Series([1, 1.5, None], dtype=object)}
    with pytest.raises(InvalidArgument, match=r"column 'length' .*1\.5 is not an integer"):
        run(yielding(kind, mixed), kind=kind)
    missing = {"id": ["a", "b", "c"], "length": pd.Series([1, float("nan"), None], dtype=object)}
    rows, _, _ = run(yielding("pandas", missing), kind="pandas")
    assert [row["length"] for row in rows] == [1, None, None]


def test_an_outcome_that_a_handler_of_single_items_returns_is_an_error() -> None:
    """Otherwise it would be dropped, and the item completed."""
    columns = {"id": ["a", "b", "c"], "length": [1, 2, 3], "_outcome": ["reject"] * 3}
    with pytest.raises(InvalidArgument, match=r"'_outcome' .* got 'reject', .* raises Retry or Reject"):
        run(yielding("item", columns), kind="item")


def test_times_without_a_zone_are_those_of_the_session_in_pandas_and_refused_of_items() -> None:
    at = [datetime(2026, 1, 1, 13)] * 3  # noqa: DTZ001 - the point of the test
    columns = {"id": ["a", "b", "c"], "at": at}
    rows, _, _ = run(yielding("pandas", columns), kind="pandas", schema=columns_of(id=TEXT, at=TIME))
    assert rows[0]["at"] == datetime(2026, 1, 1, 12, tzinfo=UTC)
    with pytest.raises(InvalidArgument, match=r"column 'at' .* a time with a time zone"):
        run(yielding("item", columns), kind="item", schema=columns_of(id=TEXT, at=TIME))


def test_a_time_that_clocks_show_twice_is_the_second_one_and_one_that_they_skip_is_refused() -> None:
    schema, naive = columns_of(id=TEXT, at=TIME), datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - as above
    columns: dict[str, Any] = {"id": ["a", "b"]}
    found: list[datetime | None] = []
    for dtype in ("datetime64[ns]", pd.ArrowDtype(pa.timestamp("us"))):
        columns["at"] = pd.Series([naive, None], dtype=dtype)
        rows, _, _ = run(yielding("pandas", columns), kind="pandas", schema=schema)
        found = [row["at"] and row["at"].astimezone(UTC) for row in rows]
        assert found == [datetime(2026, 10, 25, 1, 30, tzinfo=UTC), None]
    columns["at"] = pd.Series(found, dtype=pd.ArrowDtype(pa.timestamp("us", "UTC")))
    rows, _, _ = run(yielding("pandas", columns), kind="pandas", schema=schema)
    assert [row["at"] and row["at"].astimezone(UTC) for row in rows] == found
    columns["at"] = [datetime(2026, 3, 29, 2, 30), None]  # noqa: DTZ001 - as above
    with pytest.raises(InvalidArgument, match=r"column 'at' .* got .*02:30.*clocks of Europe/Berlin"):
        run(yielding("pandas", columns), kind="pandas", schema=schema)


@pytest.mark.parametrize("kind", ["pandas", "item"])
def test_times_without_a_zone_are_refused_inside_a_value_or_a_column_of_objects(kind: str) -> None:
    naive = datetime(2026, 1, 1, 13)  # noqa: DTZ001 - as above
    inside: list[tuple[DataType, Any]] = [
        (ArrayType(TIME), [naive]),
        (columns_of(at=TIME), {"at": naive}),
        (MapType(TEXT, TIME), {"k": naive}),
    ]
    for kind_of_column, value in inside:
        columns = {"id": ["a", "b", "c"], "at": [value] * 3}
        with pytest.raises(InvalidArgument, match=r"column 'at' .*13:00:00 is not a time with a time zone"):
            run(yielding(kind, columns), kind=kind, schema=columns_of(id=TEXT, at=kind_of_column))
    objects = {"id": ["a", "b", "c"], "at": pd.Series([naive] * 3, dtype=object)}
    with pytest.raises(InvalidArgument, match=r"column 'at' .*13:00:00 is not a time with a time zone"):
        run(yielding(kind, objects), kind=kind, schema=columns_of(id=TEXT, at=TIME))
    aware = {"id": ["a", "b", "c"], "at": [[naive.replace(tzinfo=UTC) + timedelta(hours=1)]] * 3}
    rows, _, _ = run(yielding(kind, aware), kind=kind, schema=columns_of(id=TEXT, at=ArrayType(TIME)))
    assert rows[0]["at"] == [datetime(2026, 1, 1, 14, tzinfo=UTC)]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "item"])
def test_numbers_too_large_for_a_column_of_floats_are_refused_and_infinities_kept(kind: str) -> None:
    infinite = float("inf")
    single = FloatType()
    shapes: list[tuple[DataType, Callable[[float], Any]]] = [
        (single, lambda one: one),
        (ArrayType(single), lambda one: [0.5, one]),
        (columns_of(x=ArrayType(single)), lambda one: {"x": [one]}),
        (MapType(TEXT, single), lambda one: [("k", one)]),
    ]
    for schema, shape in shapes:
        for largest in (infinite, 1e300):
            values: Any = [*map(shape, (0.5, infinite, -largest))]
            if kind == "arrow" and isinstance(schema, MapType):
                values = pa.array([[("k", infinite)], *values], pa.map_(pa.string(), pa.float64()))[1:]
            given, columns = {"id": ["a", "b", "c"], "x": values}, columns_of(id=TEXT, x=schema)
            if largest == infinite:
                rows, _, _ = run(yielding(kind, given), kind=kind, schema=columns)
                assert [row["x"] for row in rows] == [*map(shape, (0.5, infinite, -infinite))]
                continue
            with pytest.raises(InvalidArgument, match=r"column 'x' .*too large"):
                run(yielding(kind, given), kind=kind, schema=columns)


def test_a_column_of_arrow_in_pandas_may_have_chunks() -> None:
    parts = [pd.Series(some, dtype=pd.ArrowDtype(pa.float64())) for some in ([0.5], [1.5, 2.5])]
    handle = yielding("pandas", {"id": ["a", "b", "c"], "x": pd.concat(parts, ignore_index=True)})
    for number in (FloatType(), DoubleType()):
        rows, _, _ = run(handle, kind="pandas", schema=columns_of(id=TEXT, x=number))
        assert [row["x"] for row in rows] == [0.5, 1.5, 2.5]


def test_a_handler_of_batches_names_outcomes_in_columns() -> None:
    columns: dict[str, list[Any]] = {
        "id": ["a", "b", "c"],
        "length": [1, None, None],
        "_outcome": ["complete", "retry", "reject"],
        "_error": [None, "busy", "no text"],
        "_delay": [None, 2.5, None],
    }
    failures = [
        {"id": "b", "delay_ms": 2500, "size": 2, "error": "Retry: busy"},
        {"id": "c", "delay_ms": -1, "size": 3, "error": "Reject: no text"},
    ]
    for kind in ("arrow", "pandas"):
        found = run(yielding(kind, columns), kind=kind)
        assert found == ([{"id": "a", "length": 1}], failures, (3, 0))
    del columns["_delay"], columns["_error"]
    columns["_outcome"] = [None, "retry", "retry"]
    _, failures, _ = run(yielding("arrow", columns))
    assert [(one["delay_ms"], one["error"]) for one in failures] == [
        (8000, "Retry: the handler asked for a retry"),
        (-1, "Retry: the handler asked for a retry"),
    ], "as the policy says; the fifth attempt was the last"


def test_an_item_may_be_named_beside_an_output_without_its_id() -> None:
    columns = {"total": [6, None], "_id": ["a", "c"], "_outcome": [None, "reject"]}
    rows, failures, counts = run(yielding("arrow", columns), schema=columns_of(total=LONG))
    assert (rows, [one["id"] for one in failures], counts) == ([{"total": 6}], ["c"], (3, 1))
    _, _, counts = run(yielding("arrow", {"total": [6]}), schema=columns_of(total=LONG))
    assert counts == (3, -1), "not known"


@pytest.mark.parametrize(
    ("columns", "schema", "expected"),
    [
        ({"id": ["x"], "length": [1], "_outcome": ["retry"]}, SCHEMA, "the id of an item of this task"),
        ({"id": ["a"], "length": [1], "_outcome": ["fail"]}, SCHEMA, "null, 'complete', 'retry' or 'reject'"),
        ({"id": ["a"], "length": [1], "_outcome": [3]}, SCHEMA, "column '_outcome' .* string"),
        ({"id": ["a"], "length": [1], "_outcome": ["retry"], "_delay": [-1.0]}, SCHEMA, "delay"),
        ({"length": [1], "_outcome": ["retry"]}, columns_of(length=LONG), "a column of ids beside it"),
        (
            {"id": ["a", "a"], "length": [1, 2], "_outcome": [None, "retry"]},
            SCHEMA,
            "got 'a', expected either rows in the output or a failure",
        ),
    ],
)
def test_outcomes_that_cannot_be_used_are_errors(columns: Any, schema: StructType, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        run(yielding("arrow", columns), schema=schema)


def test_an_exception_concerns_one_item() -> None:
    def handle(item: Row) -> Iterator[dict[str, Any]]:
        assert not hasattr(item, "size"), "only the columns of the stream"
        yield {"id": item.id, "length": len(item.data)}
        if item.id == "b":
            raise Retry("busy", delay=3)
        yield {"id": item.id, "length": 0}
        if item.id == "c":
            raise LookupError("no customer")

    rows, failures, counts = run(handle, kind="item")
    assert rows == [{"id": "a", "length": 1}, {"id": "a", "length": 0}]
    assert (failures[0], counts) == ({"id": "b", "delay_ms": 3000, "size": 2, "error": "Retry: busy"}, (3, 0))
    assert (failures[1]["id"], failures[1]["delay_ms"]) == ("c", -1), "its last attempt"
    assert failures[1]["error"].startswith("Traceback")
    assert "LookupError: no customer" in failures[1]["error"]

    def reject(item: Row) -> None:
        raise Reject(f"not {item.id}")

    _, failures, _ = run(reject, kind="item")
    assert [one["error"] for one in failures] == ["Reject: not a", "Reject: not b", "Reject: not c"]
    assert {one["delay_ms"] for one in failures} == {-1}

    def snooze(_: Row) -> None:
        raise Snooze(3)

    with pytest.raises(InvalidArgument, match="Retry, Reject, or an error"):
        run(snooze, kind="item")


@pytest.mark.parametrize("kind", ["arrow", "item"])
def test_items_without_output_are_counted_or_refused(kind: str) -> None:
    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"id": ["a", "b"], "length": [1, None], "_outcome": [None, "reject"]})

    def one(item: Row) -> dict[str, Any] | None:
        if item.id == "b":
            raise Reject("bad")
        return {"id": item.id, "length": 1} if item.id == "a" else None

    handler: Any = {"arrow": first, "item": one}[kind]
    rows, failures, counts = run(handler, kind=kind)
    assert (rows, len(failures), counts) == ([{"id": "a", "length": 1}], 1, (3, 1))
    with pytest.raises(InvalidArgument, match="without_output: got \"1 of 3 items of a task, such as 'c'\""):
        run(handler, kind=kind, refuse=True)


@pytest.mark.parametrize(
    "schema",
    [
        columns_of(id=TEXT, _outcome=TEXT),
        columns_of(_leasequeue=LONG),
        columns_of(id=TEXT, ID=LONG),
        columns_of(id=TEXT, Batch=LONG),
        columns_of(),
        5,
    ],
)
def test_a_schema_with_reserved_or_double_names_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        OutputColumns.of(schema, "UTC")


def test_many_long_errors_do_not_fill_the_memory_of_the_driver() -> None:
    count = 1_000
    items = pa.record_batch(
        {
            "id": [f"{number}" for number in range(count)],
            "data": [b"x"] * count,
            "attempt": [5] * count,
            "size": [1] * count,
            "group": [None] * count,
        }
    )

    def handler(_: Row) -> None:
        raise ValueError("long " * 3_000 + "end")

    batches = task(handler, kind="item").run(iter([items]))
    failures = [
        row[MARKER] for batch in batches for row in batch.to_pylist() if row[MARKER] and row[MARKER]["id"]
    ]
    assert len(failures) == count
    assert all(one["error"].endswith("end\n") for one in failures)
    assert len(failures[0]["error"]) > 15_000
    assert sum(len(one["error"]) for one in failures) < 3 << 20
