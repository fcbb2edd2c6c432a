"""The assertions pass and fail as documented, and a failure lists the contents of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.testing import (
    Clock,
    assert_added,
    assert_completed,
    assert_dead,
    assert_empty,
    assert_not_added,
)
from leasequeue.testing.assertions import PAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


@pytest.fixture
def queue(make_queue: MakeQueue, clock: Clock) -> AsyncWorkQueue:
    return make_queue(clock=clock)


async def message_of(assertion: Awaitable[Any]) -> str:
    """Return the message of an assertion that fails."""
    with pytest.raises(AssertionError) as caught:
        await assertion
    return str(caught.value)


async def test_an_item_is_found_in_each_state(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item("one", id="leased"), Item("two", id="waiting")])
    await queue.add_item(Item("three", id="scheduled"), delay=60)
    await queue.lease(30)
    for state in ("leased", "waiting", "scheduled"):
        view = await assert_added(queue, state)
        assert (view.id, view.state) == (state, state)
        assert await assert_added(queue, state=view.state) == view
        assert state in await message_of(assert_not_added(queue, state))
    await assert_not_added(queue, "other")
    await assert_not_added(queue, "leased", state="waiting")


@pytest.mark.parametrize(
    ("data", "equal", "other"),
    [
        (b"\x00\xff", b"\x00\xff", b"\x00"),
        ("blåbær", "blåbær", "bær"),
        ("hello", b"hello", {"to": "ada"}),
        (b'{"to": "ada", "n": [1]}', {"n": [1], "to": "ada"}, {"to": "ada"}),
        (b'"hello"', "hello", b"hello"),
        (b"null", None, 0),
    ],
)
async def test_data_is_compared_as_bytes_or_as_json(
    queue: AsyncWorkQueue, data: bytes | str, equal: Any, other: Any
) -> None:
    await queue.add_item(Item(data, id="one"))
    assert (await assert_added(queue, data=equal)).id == "one"
    await assert_not_added(queue, data=other)
    assert f"'one' has other data: {Item(data).data!r}" in await message_of(
        assert_added(queue, "one", data=other)
    )


async def test_a_failure_lists_the_contents_of_the_queue(queue: AsyncWorkQueue, clock: Clock) -> None:
    for number in range(4):
        await queue.add_item(Item(f"data of {number}", id=f"item-{number}"))
    clock.advance(1)
    await queue.add_item(Item("later", id="late"), delay=90)
    await queue.fail(await queue.lease(30), "an error\nof two lines")
    await queue.fail(await queue.lease(30), "again", retry_in=5)
    await queue.lease(30)
    assert await message_of(assert_added(queue, "other")) == (
        f"no item 'other' in queue {queue.name!r}, which holds 1 waiting, 1 leased, 2 scheduled, 1 dead:\n"
        "  waiting    'item-3'  b'data of 3'\n"
        "  leased     'item-2'  b'data of 2', the lease expires in 30.0 s, attempt 1\n"
        "  scheduled  'item-1'  b'data of 1', due in 5.0 s, tried once\n"
        "  scheduled  'late'  b'later', due in 90.0 s\n"
        "  dead       'item-0'  b'data of 0', tried once, an error"
    )


async def test_a_failure_describes_items_that_match_in_part(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item("hello", id="one"))
    message = await message_of(assert_added(queue, "one", data="bye", state="leased"))
    assert message.startswith("no item 'one' with the data 'bye' that is leased in queue")
    assert message.endswith("\n'one' has other data: b'hello'\n'one' is waiting")
    assert (await message_of(assert_dead(queue, "one"))).endswith("\n'one' is waiting, not dead: not tried")
    assert (await message_of(assert_completed(queue, "one"))) == (
        "item 'one' is not completed but waiting: b'hello'"
    )
    await queue.fail(await queue.lease(30), ValueError("no such address"))
    dead = "'one' is a dead letter: b'hello', tried once, ValueError: no such address"
    assert (await message_of(assert_added(queue, "one"))).endswith(f"\n{dead}")
    assert await message_of(assert_completed(queue, "one")) == f"item {dead}"


async def test_a_dead_letter_is_found_by_its_error(queue: AsyncWorkQueue) -> None:
    for item_id, error in (("one", "no such address"), ("two", "mailbox full")):
        await queue.add_item(Item(item_id, id=item_id))
        await queue.fail(await queue.lease(30), error)
    assert (await assert_dead(queue)).id == "two"
    assert (await assert_dead(queue, error="address")).id == "one"
    assert (await assert_dead(queue, "one", data="one", error="no such")).attempt == 1
    message = await message_of(assert_dead(queue, "two", error="address"))
    assert message.startswith(
        "dead letter 'two' has no 'address' in its error, which is:\n    mailbox full\n"
    )
    assert "no dead letter for item 'three' in queue" in await message_of(assert_dead(queue, "three"))


async def test_a_completed_item_may_have_a_result(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item("hello", id="one"))
    await queue.complete(await queue.lease(30), result=b'{"sent": 1}')
    await assert_completed(queue, "one")
    await assert_completed(queue, "one", result={"sent": 1})
    assert await message_of(assert_completed(queue, "one", result={"sent": 2})) == (
        "item 'one' has the result b'{\"sent\": 1}', expected {'sent': 2}"
    )
    assert await message_of(assert_completed(queue, "two", result="done")) == (
        "item 'two' has no result, expected 'done'"
    )


async def test_an_empty_queue_has_no_dead_letters(queue: AsyncWorkQueue) -> None:
    await assert_empty(queue)
    await queue.add_item(Item("hello", id="one"))
    assert (await message_of(assert_empty(queue))).startswith(f"not empty: queue {queue.name!r}, which holds")
    await queue.fail(await queue.lease(30), "no")
    assert "1 dead" in await message_of(assert_empty(queue))
    await assert_empty(queue, dead_letters=True)
    await queue.dead_letters.drop("one")
    await assert_empty(queue)
    assert "which is empty" in await message_of(assert_added(queue))


async def test_all_items_are_compared_and_few_are_listed(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item("x" * 500, id=f"item-{number}") for number in range(PAGE + 2)])
    await assert_added(queue, f"item-{PAGE + 1}")
    message = await message_of(assert_added(queue, "other"))
    assert message.endswith(f"\n  waiting    ... and {PAGE - 8} more")
    assert len(message) < 3000


async def test_invalid_arguments_are_refused(queue: AsyncWorkQueue) -> None:
    invalid: Any
    for assertion, argument, invalid in (
        (assert_added, "item_id", b"one"),
        (assert_not_added, "state", "dead"),
        (assert_dead, "error", ValueError("no")),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await assertion(queue, **{argument: invalid})
        assert caught.value.argument == argument
