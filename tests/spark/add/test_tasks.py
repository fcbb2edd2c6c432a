"""Tasks through Spark: bulk adds from columns that are arguments, and results as a table."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pyspark.sql.functions as F  # noqa: N812 - its usual name
import pytest
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructType

from leasequeue import InvalidArgument, Item, Provided, Reject, Retry, TaskQueue, Worker, correlation_id
from leasequeue.errors import InvalidCall
from leasequeue.item import codec
from leasequeue.spark import add_task, task_results
from leasequeue.spark.add.adding import _find_problem, planned
from leasequeue.spark.add.task_types import fit
from leasequeue.spark.read.task_results import column_of, decoder_of
from leasequeue.tasks.wire import correlation_of
from tests.queue.asking import take
from tests.spark.tables import waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pyspark.sql import DataFrame, SparkSession

    from leasequeue import AsyncWorkQueue, Task

NOW = 1_000_000.25
AT = dt.datetime(2100, 1, 2, 3, 4, 5, 678_901, dt.UTC)


@dataclass
class Point:
    x: int
    y: float = 0.0


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Mail(msgspec.Struct, rename="camel", tag=True):
    sent_to: str
    copies: Annotated[int, msgspec.Meta(ge=1)] = 1


class Model(BaseModel):
    name: str
    age: int = 0


class Options(TypedDict, total=False):
    dpi: int


@pytest.fixture
async def tasks(queue: AsyncWorkQueue) -> AsyncIterator[TaskQueue]:
    """Return a task queue whose clock stands still."""
    assert queue.url is not None
    async with TaskQueue.from_url(queue.url, queue.name, clock=lambda: NOW) as tasks:
        yield tasks


def everything(tasks: TaskQueue) -> Task[..., Any]:
    """Register a task with an argument of each kind."""

    @tasks.task
    async def draw(  # noqa: PLR0913, PLR0917 - one of each
        text: str,
        count: int,
        ratio: float,
        flag: bool,  # noqa: FBT001 - as above
        raw: bytes,
        at: dt.datetime,
        day: dt.date,
        wait: dt.timedelta,
        ident: UUID,
        price: Decimal,
        colour: Colour,
        size: Literal["s", "m"],
        point: Point,
        path: list[Point],
        mail: Mail | None,
        model: Model,
        labels: dict[str, int],
        options: Options,
        anything: Any,
        note: str | None = None,
    ) -> None: ...

    return draw


TYPES = """
    note string, text string, count int, ratio float, flag boolean, raw binary, at timestamp, day date,
    wait interval day to second, ident string, price decimal(10,2), colour string, size string,
    point struct<y: int, x: int>, path array<struct<x: bigint, y: double>>,
    mail struct<type: string, copies: int, sentTo: string>, model struct<name: string>,
    labels map<string, int>, options struct<dpi: int>,
    anything struct<b: array<timestamp>, a: map<string, decimal(3,1)>>
"""
ROW: dict[str, Any] = {
    "text": 'Zoë "quoted" \u2028',
    "count": 3,
    "ratio": 0.25,
    "flag": True,
    "raw": b"\x00\xff",
    "at": AT,
    "day": dt.date(2024, 2, 29),
    "wait": dt.timedelta(hours=1, microseconds=5),
    "ident": UUID(int=7),
    "price": Decimal("1.50"),
    "colour": Colour.BLUE,
    "size": "m",
    "point": Point(1, 2),
    "path": [Point(1, 2.5), Point(3)],
    "mail": Mail("ann", 2),
    "model": {"name": "Ann"},
    "labels": {"a": 1, "b": 2},
    "options": {"dpi": 300},
    "anything": {"b": [AT], "a": {"k": Decimal("1.5")}},
    "note": None,
}


def table(spark: SparkSession) -> DataFrame:
    """Make a table of a row and of another that differs in its text only, in columns of another order."""
    values = ROW | {
        "ident": str(ROW["ident"]),
        "colour": "blue",
        "point": {"x": 1, "y": 2},
        "path": [{"x": 1, "y": 2.5}, {"x": 3, "y": 0.0}],
        "mail": {"type": "Mail", "sentTo": "ann", "copies": 2},
        "labels": {"b": 2, "a": 1},
    }
    schema = StructType.fromDDL(TYPES)
    assert isinstance(schema, StructType)
    rows = [[(values | {"text": text})[name] for name in schema.fieldNames()] for text in (ROW["text"], "b")]
    return spark.createDataFrame(rows, schema)


async def test_each_row_is_the_item_of_a_call(
    spark: SparkSession, tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    draw = everything(tasks)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        report = add_task(table(spark), draw, url=queue.url)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (report.rows, report.added) == (2, 2)
    calls = [
        draw.options(content_id=True).call(**(ROW | {"text": text})).item() for text in (ROW["text"], "b")
    ]
    assert await waiting(queue) == {item.id: item.data for item in calls}


async def test_ids_and_times_of_rows(spark: SparkSession, tasks: TaskQueue, queue: AsyncWorkQueue) -> None:
    @tasks.task
    async def send(to: str, order: int = 0) -> None: ...

    @tasks.task
    async def sweep() -> None: ...

    rows = spark.createDataFrame(
        [("a", 7, 60.5, AT), ("b", 8, None, None)], "to string, ORDER int, wait double, due timestamp"
    )
    report = add_task(rows.drop("due"), send, url=queue.url, idColumn="order", delayColumn="wait", job="one")
    assert (report.job, report.added) == ("one", 2)
    later = rows.select("to", F.concat("to", F.lit("-at")).alias("name"), "due")
    add_task(later, send, url=queue.url, idColumn="name", atColumn="due", check=False)
    one = rows.limit(1).select("to")
    add_task(one, send.options(delay=5), url=queue.url, check=False)
    add_task(one, sweep.options(at=AT), url=queue.url, idColumn="to", check=False)
    items = [
        send.options(delay=60.5, id="7").call("a", 7).item(),
        send.options(id="8").call("b", 8).item(),
        send.options(at=AT, id="a-at").call("a").item(),
        send.options(id="b-at").call("b").item(),
        send.options(delay=5, content_id=True).call("a").item(),
        sweep.options(at=AT, id="a").call().item(),
    ]
    views = [await queue.find(one.id) for one in items]
    assert [(view.data, view.state) for view in views if view] == [
        (one.data, "waiting" if one.id in ("8", "b-at") else "scheduled") for one in items
    ]


async def test_rows_carry_the_correlation_id_of_the_task_or_of_the_code_that_adds_them(
    spark: SparkSession, queue: AsyncWorkQueue, tasks: TaskQueue
) -> None:
    @tasks.task
    async def send(to: str) -> None: ...

    rows = spark.createDataFrame([("a",)], "to string")
    items = []
    before = correlation_id.set("request 8")
    try:
        for name, task in (("given", send.options(correlation="import 7")), ("current", send)):
            named = rows.selectExpr("to", f"'{name}' as name")
            add_task(named, task, url=queue.url, idColumn="name")
            items.append(task.options(id=name).call("a").item())
    finally:
        correlation_id.reset(before)
    same = send.options(correlation="import 7", content_id=True)
    add_task(rows, same, url=queue.url)
    items.append(same.call("a").item())
    assert [correlation_of(one.data) for one in items] == ["import 7", "request 8", "import 7"]
    views = [await queue.find(one.id) for one in items]
    assert [view and view.data for view in views] == [one.data for one in items]


async def test_options_of_the_items_of_a_task(
    spark: SparkSession, tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    @tasks.task
    async def send(to: str) -> None: ...

    @tasks.task(concurrency=3)
    async def draw(to: str) -> None: ...

    rows = spark.createDataFrame(
        [("a", 3, "ann", 60), ("b", None, None, None)], "to string, level int, tenant string, ttl int"
    )
    columns: dict[str, Any] = {"priorityColumn": "level", "groupColumn": "tenant", "expiresColumn": "ttl"}
    add_task(rows, send, url=queue.url, idColumn="to", **columns)
    one = rows.select("to").limit(1)
    add_task(one.selectExpr("'c' as to"), send.options(priority=5), url=queue.url, group="bob", idColumn="to")
    add_task(
        one.selectExpr("'d' as to"), draw.options(expires_in=9), url=queue.url, priority=-2, idColumn="to"
    )
    minute = send.options(expires_in=dt.timedelta(minutes=1))
    add_task(one.selectExpr("'e' as to"), minute, url=queue.url, idColumn="to")
    views = {view.id: view for view in await queue.inspect("waiting")}
    found = {id_: (view.priority, view.group, view.expires is None) for id_, view in views.items()}
    group = draw.call("d").options["group"]
    assert found == {
        "a": (3, "ann", False),
        "b": (0, None, True),
        "c": (5, "bob", True),
        "d": (-2, group, False),
        "e": (0, None, False),
    }


@pytest.mark.parametrize(
    ("argument", "element", "column", "value"),
    [
        (set[int], LongType(), [3, 1, 3, 2], {1, 2, 3}),
        (frozenset[str], StringType(), ["b", "a", "b"], {"a", "b"}),
        (set[Decimal], StringType(), ["10", "9"], {Decimal(10), Decimal(9)}),
        (set[bytes], BinaryType(), [b"\xff", b"a"], {b"\xff", b"a"}),
        (set[tuple[int, ...]], ArrayType(LongType()), [[2], [1, 2], [2]], {(1, 2), (2,)}),
        (list[int], LongType(), [3, 1, 3], [3, 1, 3]),
    ],
)
def test_an_array_for_a_set_is_written_as_a_content_id_has_it(
    argument: Any, element: DataType, column: list[Any], value: Any
) -> None:
    node = fit(msgspec.inspect.type_info(argument), ArrayType(element), "numbers")
    assert codec.encode(node.value(column)) == codec.encode(value, ordered=True)


def test_an_array_for_a_set_that_has_no_order_is_written_in_the_same_order_each_time() -> None:
    node = fit(msgspec.inspect.type_info(set[int | None]), ArrayType(LongType()), "numbers")
    assert node.value([2, None, 1]) == node.value([1, 2, None, 1])
    assert node.value(None) is None


def test_columns_that_do_not_fit_are_named(spark: SparkSession, tasks: TaskQueue) -> None:
    @tasks.task
    async def draw(  # noqa: PLR0913, PLR0917 - one of each
        to: str,
        count: int,
        point: Point,
        path: list[Point],
        labels: dict[str, int],
        mail: Mail,
        model: Model,
        ident: UUID | int,
        smtp: str = Provided(),
    ) -> None: ...

    rows = spark.createDataFrame(
        [],
        "smtp string, too string, count double, point struct<y: double, z: int>, "
        "path array<struct<x: string>>, "
        "labels map<string, string>, mail struct<sentTo: string>, model struct<age: int>, ident double",
    )
    with pytest.raises(InvalidCall) as raised:
        add_task(rows, draw, url="redis://localhost:1")
    assert raised.value.problem.split("; ") == [
        "there is no column for the argument 'to'",
        "column 'smtp': the worker fills this in",
        "column 'too' is no argument (it has to, count, point, path, labels, mail, model, ident)",
        "column 'count' is double, and the argument takes a whole number",
        "column 'point' has no field x",
        "column 'path[].x' is string, and the argument takes a whole number",
        "column 'labels[…]' is string, and the argument takes a whole number",
        "column 'mail' has no field type",
        "column 'model' has no field name",
        "column 'ident' is double, and the argument takes string",
        "or column 'ident' is double, and the argument takes a whole number",
    ]

    @tasks.task
    async def move(point: Point) -> None: ...

    rows = spark.createDataFrame([], "point struct<x: int, z: int>")
    with pytest.raises(InvalidCall, match="column 'point' has a field that the argument has not: z"):
        add_task(rows, move, url="redis://localhost:1")


async def test_nothing_is_added_if_the_values_of_a_row_do_not_fit(
    spark: SparkSession, tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    @tasks.task
    async def draw(
        to: str, copies: Annotated[int, msgspec.Meta(ge=1)], ident: UUID, ratio: float
    ) -> None: ...

    good = {"to": "a", "copies": 1, "ident": str(UUID(int=1)), "ratio": 1.0}
    types = "to string, copies int, ident string, ratio double, id string"
    rows = spark.createDataFrame([(*good.values(), "x"), (None, *[*good.values()][1:], "y")], types).coalesce(
        1
    )
    with pytest.raises(
        InvalidCall, match=r"^draw: row 2 of partition 0: Expected `str`, got `null` - at `\$.to`"
    ):
        add_task(rows, draw, url=queue.url, idColumn="id")
    assert not any(await queue.counts())
    with pytest.raises(PySparkException, match="draw: row 2 of partition 0: Expected"):
        add_task(rows, draw, url=queue.url, idColumn="id", check=False)
    _, plan = planned(rows, draw, {"idColumn": "id"}, {})
    for bad, problem in (
        ({"copies": 0}, "row 2 of partition 0: Expected `int` >= 1 - at `$.copies`"),
        ({"ident": "7"}, "row 2 of partition 0: Invalid UUID - at `$.ident`"),
        ({"ratio": math.nan}, "row 2 of partition 0: nan cannot be written as JSON"),
        ({}, "column 'id', row 2 of partition 0: got None, expected a string of 1 to 512 bytes"),
    ):
        given = [{"id": "x", "arguments": good}, {"id": "y" if bad else None, "arguments": good | bad}]
        [found] = _find_problem(plan, iter([pa.RecordBatch.from_pylist(given)]))
        assert problem in found.to_pylist()[0]["problem"]


def test_options_that_cannot_be_used_with_tasks(spark: SparkSession, tasks: TaskQueue) -> None:
    @tasks.task(keep_result=None)
    async def send(to: str) -> None: ...

    @tasks.task
    async def sweep() -> None: ...

    @tasks.task(rate="1/s")
    async def limited(to: str) -> None: ...

    rows = spark.createDataFrame([], "to string, wait int, due timestamp")
    url = "redis://localhost:1"
    cases: tuple[tuple[Task[..., Any], dict[str, Any], str], ...] = (
        (send, {"dataColumn": "to"}, "dataColumn"),
        (send, {"idFrom": "to"}, "idFrom"),
        (send, {"idColum": "to"}, "did you mean 'idColumn'"),
        (send, {"idColumn": "two"}, "did you mean 'to'"),
        (send.options(id="x"), {}, "name a column of ids"),
        (send.options(content_id=True), {"idColumn": "to"}, "no column of ids"),
        (send.options(delay=1), {"delayColumn": "wait"}, "a delay or a time"),
        (send, {"delayColumn": "wait", "atColumn": "due"}, "a delay or a time, not both"),
        (send.options(replace=True), {}, "a task without replace"),
        (send.options(priority=5), {"priorityColumn": "wait"}, "got 'the task and priorityColumn'"),
        (send.options(priority=5), {"priority": 3}, "got 'the task and an option', expected one priority"),
        (send, {"group": "a", "groupColumn": "to"}, "got 'an option and groupColumn'"),
        (send.options(expires_in=5), {"expiresIn": 3}, "one expires_in"),
        (limited, {"group": "a"}, "got 'the task and an option', expected one group"),
        (send, {"priorityColumn": "to"}, "priorityColumn: got 'to string'"),
        (sweep, {}, "idColumn"),
    )
    for task, options, expected in cases:
        with pytest.raises(InvalidArgument, match=expected):
            add_task(rows if task is not sweep else rows.select(), task, url=url, **options)
    with pytest.raises(InvalidArgument, match="keep_result=None"):
        task_results(rows, send, url=url, idColumn="to")


def test_executors_need_no_module_of_the_task(spark: SparkSession, tasks: TaskQueue) -> None:

    _, plan = planned(table(spark), everything(tasks), {}, {})
    assert b"test_tasks" not in pickle.dumps(plan)


class Receipt(msgspec.Struct):
    number: int
    points: dict[str, Point]
    at: dt.datetime
    colour: Colour = Colour.RED
    parts: list[Receipt] = []


async def test_results_are_a_table(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    assert queue.url is not None
    async with TaskQueue.from_url(queue.url, queue.name) as tasks:

        @tasks.task
        async def buy(number: int) -> Receipt | None:
            if number == 1:
                raise Reject("sold out")
            if number == 2:
                raise Retry("no answer", delay=600)
            return Receipt(number, {"a": Point(1)}, AT) if number else None

        for number in (0, 1, 2, 3):
            await buy.options(id=str(number)).add(number)
        await Worker(tasks).drain()
        for name, result in (
            ("5", b"7"),
            ("6", b'{"result": 7}'),
            ("7", b'{"error": {"type": "E", "message": "m"}}'),
        ):
            await queue.add_item(Item("{}", name), delay=0)
            await queue.complete(await take(queue), result=result, keep_result=60)
        await buy.options(id="4").add(4)
        ids = spark.range(9).selectExpr("if(id < 8, id, null) as Job", "'x' as other")
        found = task_results(ids, buy, url=queue.url, idColumn="job")
        rows = {row.id: tuple(row)[1:] for row in found.collect()}
    receipt = (
        "struct<number:bigint,points:map<string,struct<x:bigint,y:double>>,at:timestamp,colour:string,"
        "parts:array<string>>"
    )
    assert [kind for _, kind in found.dtypes] == ["string", "string", receipt, "string"]
    naive = AT.astimezone().replace(tzinfo=None)
    assert rows == {
        "0": ("completed", None, None),
        "1": ("dead", None, "Reject: sold out"),
        "2": ("scheduled", None, "Retry: no answer"),
        "3": ("completed", (3, {"a": (1, 0.0)}, naive, "red", []), None),
        "4": ("waiting", None, None),
        "5": ("completed", None, "its result cannot be read: Expected `object`, got `int`"),
        "6": ("completed", None, "its result cannot be read: Expected `object | null`, got `int`"),
        "7": ("completed", None, "E: m"),
        None: ("unknown", None, None),
    }


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (int, "bigint"),
        (int | None, "bigint"),
        (int | str, "string"),
        (None, "string"),
        (Any, "string"),
        (Model, "string"),
        (tuple[int, str], "string"),
        (set[bytes], "array<binary>"),
        (dict[str, float | None], "map<string,double>"),
        (dict[int, int], "string"),
        (Literal[1, 2], "bigint"),
        (Literal["a", 1], "string"),
        (Decimal, "string"),
        (dt.date, "date"),
        (Mail, "struct<sentTo:string,copies:bigint>"),
        (Options, "struct<dpi:bigint>"),
    ],
)
def test_the_column_of_results_has_the_type_that_the_function_returns(kind: Any, column: str) -> None:
    assert column_of(msgspec.inspect.type_info(kind))[1].simpleString() == column


@pytest.mark.parametrize(
    ("kind", "value", "row"),
    [
        (int | str, "a", '"a"'),
        (None, None, None),
        (Decimal, Decimal("1.50"), "1.50"),
        (dt.datetime, AT.replace(tzinfo=None), AT),
        (Options, {}, {"dpi": None}),
        (dict[str, list[int | None]], {"a": [1, None]}, [("a", [1, None])]),
        (Mail, Mail("ann"), {"sentTo": "ann", "copies": 1}),
    ],
)
def test_results_are_read_as_rows(kind: Any, value: Any, row: Any) -> None:
    node, _ = column_of(msgspec.inspect.type_info(kind))
    assert node.row(decoder_of(node)(codec.encode(value))) == row
