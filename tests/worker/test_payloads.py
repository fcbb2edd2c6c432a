"""A payload is decoded into the type of the first parameter; one that does not parse is a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasehold import Item
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.worker.models import Mail, Order, Parcel
from tests.worker.working import add, finished, new_worker, the_dead, working

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue

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
    worker = new_worker()
    worker.handler(queue)(taking(annotation, seen))
    await add(queue, data)
    async with working(worker):
        await finished(queue)
    assert seen == [value]
    assert type(seen[0]) is type(value)


async def test_a_lease_can_be_taken_beside_the_payload(queue: AsyncWorkQueue) -> None:
    seen: list[Lease] = []
    worker = new_worker()

    @worker.handler(queue)
    async def handle(payload: int, lease: Lease) -> None:
        assert payload == 5
        seen.append(lease)

    await add(queue, b"5")
    async with working(worker):
        await finished(queue)
    assert [(lease.id, lease.data, lease.attempt) for lease in seen] == [("1", b"5", 1)]


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
    worker = new_worker()
    worker.handler(queue)(taking(annotation, []))
    await add(queue, data)
    async with working(worker):
        letter = await the_dead(queue)
    assert (letter.id, letter.data, letter.attempt) == ("1", data, 1)
    assert letter.error.startswith("PayloadError: the data of item '1' is not ")
    assert reason in letter.error
    assert "Traceback" in letter.error


async def test_only_the_items_of_a_batch_that_do_not_parse_are_dead_letters(queue: AsyncWorkQueue) -> None:
    seen: list[int] = []
    worker = new_worker()

    @worker.handler(queue, batch=10)
    async def handle(numbers: list[int]) -> None:
        seen.extend(numbers)

    await add(queue, b"1", b"x", b"3")
    async with working(worker):
        await finished(queue)
    assert seen == [1, 3]
    assert (await the_dead(queue)).id == "2"


async def test_a_batch_handler_is_not_called_if_no_item_parses(queue: AsyncWorkQueue) -> None:
    runs: list[Any] = []
    worker = new_worker()

    @worker.handler(queue, batch=10)
    async def handle(numbers: list[int]) -> None:
        runs.append(numbers)

    await queue.add_item(Item(b"x"))
    async with working(worker):
        await the_dead(queue)
    assert not runs
