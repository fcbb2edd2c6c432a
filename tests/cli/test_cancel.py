"""`leasequeue cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, JobCancelled, JobUnknown
from tests.cli.program import usage_error
from tests.queue.asking import take

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue


async def test_items_are_cancelled_by_their_ids(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b"), Item(b"x", id="c")])
    lease = await take(queue)
    outcome = await leasequeue("cancel", queue.name, "a", "b", "--keep", "0s")
    assert (outcome.code, outcome.out, outcome.err) == (0, "2 cancelled\n", "")
    assert not await queue.complete(lease)
    with pytest.raises(JobUnknown):
        await queue.results.wait("a")
    outcome = await leasequeue("cancel", queue.name, "c", "none", "--json")
    assert outcome.code == 1
    assert outcome.documents == [{"queue": queue.name, "cancelled": 1, "missed": ["none"]}]
    assert "has no unfinished item with the id 'none'" in outcome.err
    with pytest.raises(JobCancelled):
        await queue.results.wait("c")


async def test_items_are_cancelled_by_their_data(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"same", id=f"{n}") for n in range(5))
    await queue.add_item(Item(b"other"))
    outcome = await leasequeue("cancel", queue.name, "--data", "same", "--limit", "2")
    assert (outcome.code, outcome.out) == (0, "2 cancelled\n")
    outcome = await leasequeue("cancel", queue.name, "--data", "-", stdin=b"same")
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
    leasequeue: Leasequeue, arguments: list[str], expected: str
) -> None:
    outcome = await leasequeue("cancel", "q", *arguments)
    assert expected in usage_error(outcome)
