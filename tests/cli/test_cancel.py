"""`leasehold cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold import Item, ItemCancelled, ItemUnknown
from tests.cli.program import usage_error
from tests.queue.asking import take

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue
    from tests.cli.program import Leasehold


async def test_items_are_cancelled_by_their_ids(leasehold: Leasehold, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b"), Item(b"x", id="c")])
    lease = await take(queue)
    outcome = await leasehold("cancel", queue.name, "a", "b", "--keep", "0s")
    assert (outcome.code, outcome.out, outcome.err) == (0, "2 cancelled\n", "")
    assert not await queue.complete(lease)
    with pytest.raises(ItemUnknown):
        await queue.results.wait("a")
    outcome = await leasehold("cancel", queue.name, "c", "none", "--json")
    assert outcome.code == 1
    assert outcome.documents == [{"queue": queue.name, "cancelled": 1, "missed": ["none"]}]
    assert "has no unfinished item with the id 'none'" in outcome.err
    with pytest.raises(ItemCancelled):
        await queue.results.wait("c")


async def test_items_are_cancelled_by_their_data(leasehold: Leasehold, queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"same", id=f"{n}") for n in range(5))
    await queue.add_item(Item(b"other"))
    outcome = await leasehold("cancel", queue.name, "--data", "same", "--limit", "2")
    assert (outcome.code, outcome.out) == (0, "2 cancelled\n")
    outcome = await leasehold("cancel", queue.name, "--data", "-", stdin=b"same")
    assert (outcome.code, outcome.out) == (0, "3 cancelled\n")
    assert await queue.queue_len() == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "give either ids or --data"),
        (["a", "--data", "x"], "give either ids or --data"),
        (["a", "--limit", "3"], "goes with --data"),
    ],
)
async def test_what_does_not_fit_together_is_refused(
    leasehold: Leasehold, arguments: list[str], expected: str
) -> None:
    outcome = await leasehold("cancel", "q", *arguments)
    assert expected in usage_error(outcome)
