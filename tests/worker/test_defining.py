"""A handler that cannot work is rejected when it is defined, or at the latest when the worker starts."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.worker.models import (
    Mail,
    Opaque,
    Order,
    Parcel,
)
from tests.worker.working import add, dead_letter_of, new_worker, work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from decimal import Decimal

    from leasequeue import AsyncWorkQueue
    from leasequeue.worker import Run


async def no_parameter() -> None: ...
async def only_by_name(*, payload: bytes) -> None: ...
async def variadic(*payloads: bytes) -> None: ...
async def more_without_name(payload: bytes, *others: bytes) -> None: ...
async def opaque(payload: Opaque) -> None: ...
async def opaque_list(payload: list[Opaque]) -> None: ...
async def unknown_name(payload: Decimal) -> None: ...
async def yields(_: bytes) -> AsyncIterator[int]:
    yield 1


def yields_plainly(_: bytes) -> Iterator[int]:
    yield 1


async def is_async(_: bytes) -> None: ...
def plain(_: bytes) -> None: ...
def takes_lease(_: Lease) -> None: ...
def takes_leases(_: list[Lease]) -> None: ...
def also_takes_lease(_: bytes, lease: Lease) -> None: ...
def not_a_list(_: bytes) -> None: ...


@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((function, {}) for function in (no_parameter, only_by_name, variadic, more_without_name)),
        *((function, {}) for function in (opaque, opaque_list, unknown_name, yields, yields_plainly)),
        *((function, {}) for function in (dict, "no function")),
        *((is_async, {"run_in": place}) for place in ("thread", "process")),
        *((plain, {"run_in": place}) for place in ("loop", "moon")),
        *((function, {"run_in": "process"}) for function in (takes_lease, also_takes_lease)),
        (takes_leases, {"run_in": "process", "batch": 2}),
        *((function, {"batch": 2}) for function in (also_takes_lease, not_a_list)),
        *((is_async, {name: 0}) for name in ("batch", "weight", "retry", "timeout")),
        *((is_async, option) for option in ({"retry": 3}, {"lease_time": -1}, {"keep_result": "long"})),
    ],
)
async def test_an_invalid_handler_is_rejected(
    queue: AsyncWorkQueue, function: Any, options: dict[str, Any]
) -> None:
    worker = new_worker()
    with pytest.raises(InvalidArgument):
        worker.handler(queue, **options)(function)
    assert not worker.handlers


async def test_a_queue_has_one_handler(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    worker.handler(queue)(is_async)
    with pytest.raises(InvalidArgument, match="no handler of this worker yet"):
        worker.handler(queue)
    with pytest.raises(InvalidArgument, match="an AsyncWorkQueue"):
        worker.handler("emails")(is_async)  # type: ignore[arg-type] # a mistake of a user
    with pytest.raises(InvalidArgument, match=r"an AsyncWorkQueue: write @worker\.handler\(queue\)"):

        @worker.handler  # type: ignore[arg-type] # as above
        async def without_queue(_: bytes) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        *({"concurrency": 0}, {"order": "random"}, {"grace": -1}, {"retry": None}, {"clean_every": 0}),
        *({"lifespan": 5}, {"middleware": 5}, {"middleware": [5]}, {"middleware": "layer"}),
    ],
)
def test_an_invalid_argument_of_a_worker_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        new_worker(**options)


async def test_a_worker_without_a_handler_does_not_run() -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        await new_worker().run()


async def test_a_partial_of_an_async_function_is_run_in_the_loop(queue: AsyncWorkQueue) -> None:
    seen: list[tuple[str, bytes]] = []

    async def handle(who: str, payload: bytes) -> None:
        seen.append((who, payload))

    worker = new_worker()
    await work(queue, functools.partial(handle, "ann"), b"x", worker=worker)
    assert worker.handlers[0].run_in == "loop"
    assert seen == [("ann", b"x")]


async def test_a_function_that_cannot_be_sent_to_a_process_is_rejected_at_the_start(
    queue: AsyncWorkQueue,
) -> None:
    worker = new_worker()

    @worker.handler(queue, run_in="process")
    def local(_: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match="a function of a module"):
        await worker.run()


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, Any]]:
    yield {"db": "a database", "spare": "unused"}


async def test_resources_are_passed_by_name(queue: AsyncWorkQueue) -> None:
    seen: list[Any] = []

    async def handle(_: bytes, lease: Lease, *, db: str, cache: str = "the default") -> None:
        seen.append((lease.id, db, cache))

    await work(queue, handle, b"x", worker=new_worker(lifespan=lifespan))
    assert seen == [("1", "a database", "the default")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lifespan": lifespan}, r"handle'.*does not provide mailer \(it provides db, spare\)"),
        ({}, r"provide db, mailer \(it provides nothing: write .*lifespan=lifespan"),
    ],
)
async def test_a_missing_resource_is_named_in_the_error(
    queue: AsyncWorkQueue, options: dict[str, Any], says: str
) -> None:
    worker = new_worker(**options)

    @worker.handler(queue)
    async def handle(_: bytes, db: str, mailer: str) -> None: ...

    for _ in range(2):  # and then not WorkerBusy: the first call has ended
        with pytest.raises(InvalidArgument, match=says):
            await worker.run()


async def test_the_lifespan_ends_after_the_last_run(queue: AsyncWorkQueue) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def recording() -> AsyncIterator[None]:
        events.append("begin")
        yield
        events.append("end")

    async def handle(_: bytes) -> None:
        worker.stop()
        await asyncio.sleep(0)
        events.append("run")

    worker = new_worker(lifespan=recording)
    worker.handler(queue)(handle)
    await add(queue, b"x")
    await worker.run()
    assert events == ["begin", "run", "end"]
    assert not (await queue.counts()).total


async def test_middleware_wraps_each_run_with_the_first_outermost(queue: AsyncWorkQueue) -> None:
    events: list[str] = []

    def layer(name: str) -> Callable[..., Any]:
        async def around(run: Run, call_next: Callable[[Run], Any]) -> Any:
            events.append(f"{name} {run.lease.id} {run.attempt}")
            value = await call_next(run)
            events.append(name)
            return value + b"!"

        return around

    async def handle(_: bytes) -> bytes:
        events.append("run")
        return b"done"

    worker = new_worker(middleware=[layer("outer"), layer("inner")])
    await work(queue, handle, b"x", worker=worker, keep_result=60)
    assert events == ["outer 1 1", "inner 1 1", "run", "inner", "outer"]
    assert await queue.results.get("1") == b"done!!"


# --------------------------------------------------------------------------------------------------- payloads


PAYLOADS: list[tuple[Any, bytes, Any]] = [
    (bytes, b"\xff\x00", b"\xff\x00"),
    (None, b"\xff\x00", b"\xff\x00"),
    (str, "Zoë".encode(), "Zoë"),
    (int, b"7", 7),
    (list[int], b"[1,2]", [1, 2]),
    (dict[str, Any], b'{"a":[null]}', {"a": [None]}),
    (Order, b'{"number":1,"lines":["x"]}', Order(1, ["x"])),
    (Mail, b'{"to":"ann","copies":2}', Mail(to="ann", copies=2)),
    (Parcel, b'{"weight":3}', Parcel(3)),
    (list[Parcel], b'[{"weight":3}]', [Parcel(3)]),
    (Mail | None, b"null", None),
]


def taking(annotation: Any, seen: list[Any]) -> Any:
    async def handle(payload: Any) -> None:
        seen.append(payload)

    if annotation is None:
        del handle.__annotations__["payload"]
    else:
        handle.__annotations__["payload"] = annotation
    return handle


@pytest.mark.parametrize(("annotation", "data", "value"), PAYLOADS)
async def test_the_payload_has_the_type_of_the_annotation(
    queue: AsyncWorkQueue, annotation: Any, data: bytes, value: Any
) -> None:
    seen: list[Any] = []
    await work(queue, taking(annotation, seen), data)
    assert seen == [value]
    assert type(seen[0]) is type(value)


async def test_a_lease_can_be_taken_beside_the_payload(queue: AsyncWorkQueue) -> None:
    seen: list[tuple[int, str, bytes, int]] = []

    async def handle(payload: int, lease: Lease) -> None:
        seen.append((payload, lease.id, lease.data, lease.attempt))

    await work(queue, handle, b"5")
    assert seen == [(5, "1", b"5", 1)]


@pytest.mark.parametrize(
    ("annotation", "data", "reason"),
    [
        (str, b"\xff", "a str: 'utf-8' codec"),
        (int, b"seven", "a int: "),
        (Mail, b'{"copies":2}', "a Mail: 1 validation error"),
        (Parcel, b'{"weight":"3"}', "a Parcel: Expected `int`"),
    ],
)
async def test_data_that_does_not_parse_is_a_dead_letter_at_once(
    queue: AsyncWorkQueue, annotation: Any, data: bytes, reason: str
) -> None:
    letter = await dead_letter_of(queue, taking(annotation, []), data)
    assert (letter.id, letter.data, letter.attempt) == ("1", data, 1)
    assert letter.error.startswith("PayloadError: the data of item '1' is not ")
    assert reason in letter.error
    assert "Traceback" in letter.error


@pytest.mark.parametrize(("payloads", "runs"), [((b"1", b"x", b"3"), [[1, 3]]), ((b"x",), [])])
async def test_only_the_items_of_a_batch_that_do_not_parse_are_dead_letters(
    queue: AsyncWorkQueue, payloads: tuple[bytes, ...], runs: list[list[int]]
) -> None:
    """If no item parses, the handler is not called."""
    seen: list[list[int]] = []

    async def handle(numbers: list[int]) -> None:
        seen.append(numbers)

    assert (await dead_letter_of(queue, handle, *payloads, batch=10)).data == b"x"
    assert seen == runs
