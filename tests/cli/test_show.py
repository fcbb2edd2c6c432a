"""`leasequeue show`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.queue.asking import take

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue

BINARY = b"\xff\x00"


async def test_the_items_of_each_state_are_listed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"1", id="held"))
    lease = await take(queue, 100)
    await queue.add_item(Item(b"12", id="first"))
    await queue.add_item(Item(BINARY, id="second"))
    await queue.add_item(Item(b"123", id="later"), delay=100)
    outcome = await leasequeue("show", queue.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, *rows = outcome.table
    assert titles == ["id", "state", "bytes", "attempt", "until", "holder", "data"]
    assert [row[:4] for row in rows] == [
        ["first", "waiting", "2", "0"],
        ["second", "waiting", "2", "0"],
        ["held", "leased", "1", "1"],
        ["later", "scheduled", "3", "0"],
    ]
    assert [row[6] for row in rows] == ["12", r"\xff\x00", "1", "123"]
    assert rows[2][5] == queue.session
    assert rows[2][4].endswith("Z")
    assert lease.id == "held"


async def test_the_number_of_items_is_limited(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"i{n}") for n in range(5)])
    await queue.fail(await take(queue), "given up")
    outcome = await leasequeue("show", queue.name, "--count", "2", "--state", "waiting")
    assert [row[0] for row in outcome.table[1:]] == ["i1", "i2"]
    assert outcome.err.splitlines() == [
        "leasequeue: 2 more: see --count",
        f"leasequeue: 1 dead letter: leasequeue dead ls {queue.name}",
    ]


async def test_items_are_printed_as_json(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(BINARY, id="x"))
    await queue.add_item(Item("grün", id="y"))
    outcome = await leasequeue("show", queue.name, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    first, second = outcome.documents
    assert first == {
        "queue": queue.name,
        "id": "x",
        "state": "waiting",
        "size": 2,
        "data": base64.b64encode(BINARY).decode(),
        "data_encoding": "base64",
        "holder": None,
        "token": None,
        "attempt": 0,
        "due": None,
        "leased_seconds_ago": None,
        "error": None,
        "priority": 0,
        "group": None,
        "expires": None,
        "progress": None,
    }
    assert (second["data"], second["data_encoding"]) == ("grün", "utf-8")


async def test_a_queue_or_a_state_without_items(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    assert await leasequeue("show", queue.name, "--json") == (0, "", "")
    outcome = await leasequeue("show", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no unfinished items")
    await queue.add_item(Item(b"x"))
    outcome = await leasequeue("show", queue.name, "--state", "leased")
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no leased items")


async def test_the_result_of_a_completed_item_is_printed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    await queue.complete(await take(queue), result=b"done")
    outcome = await leasequeue("show", queue.name, "x")
    assert outcome.table[:2] == [["id", "x"], ["state", "completed"]]
    assert outcome.out.endswith("\nresult\ndone\n")


async def test_one_item_is_printed_in_full(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"two\nlines", id="x"))
    lease = await take(queue, 100)
    outcome = await leasequeue("show", queue.name, "x")
    assert (outcome.code, outcome.err) == (0, "")
    for fact in ("state leased", "attempt 1", f"holder {queue.session}", f"token {lease.token}"):
        assert fact.split() in [row[: len(fact.split())] for row in outcome.table]
    assert outcome.out.endswith("\ndata\ntwo\nlines\n")

    document = (await leasequeue("show", queue.name, "x", "--json")).document
    assert document["item"]["data"] == "two\nlines"
    assert document["item"]["token"] == lease.token
    assert (document["dead_letter"], document["result"]) == (None, None)


async def test_the_last_error_of_an_item_is_printed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="x"))
    await queue.fail(await take(queue), "Traceback\nValueError: bad", retry_in=3600)
    outcome = await leasequeue("show", queue.name, "x")
    assert outcome.out.endswith("\nlast error\nTraceback\nValueError: bad\n\ndata\ndata\n")
    assert (await leasequeue("show", queue.name, "--json")).document["error"] == "Traceback\nValueError: bad"


async def test_a_dead_letter_and_a_result_with_one_id_are_both_printed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"second", id="x"))
    await queue.fail(await take(queue), "given up")
    await queue.add_item(Item(b"first", id="x"))
    await queue.complete(await take(queue), result=BINARY)
    document = (await leasequeue("show", queue.name, "x", "--json")).document
    assert document["item"] is None
    assert (document["dead_letter"]["data"], document["dead_letter"]["error"]) == ("second", "given up")
    assert (document["result"], document["result_encoding"]) == ("/wA=", "base64")
    out = (await leasequeue("show", queue.name, "x")).out
    assert "\nerror\ngiven up\n\ndata\nsecond\n\nresult\n\\xff\\x00\n" in out


@pytest.mark.parametrize("arguments", [(), ("--json",)])
async def test_an_unknown_id_is_reported(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, arguments: tuple[str, ...]
) -> None:
    await queue.add_item(Item(b"x"))
    outcome = await leasequeue("show", queue.name, "unknown", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert "has no item, dead letter or result with the id 'unknown'" in outcome.error


async def test_control_characters_are_escaped(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    evil = "\x1b[2Jred\r\x07[bold]"
    await queue.add_item(Item(evil, id=evil))
    for arguments in (["show", queue.name], ["show", queue.name, evil]):
        out = (await leasequeue(*arguments)).out
        assert r"\x1b[2Jred" in out
        assert "[bold]" in out
        assert not {*out} & {"\x1b", "\r", "\x07"}
