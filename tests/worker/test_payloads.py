"""A payload is decoded into the type of the first parameter; one that does not parse is a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.worker.models import Mail, Order, Parcel
from tests.worker.working import dead_letter_of, work

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

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
