"""Commands about single items: `leasequeue add`, `show` and `cancel`."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, JobCancelled, JobUnknown
from tests.queue.asking import take

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue


async def data_in(queue: AsyncWorkQueue) -> list[bytes | None]:
    return [view.data for view in await queue.inspect()]


async def test_adds_an_item_and_prints_its_id(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("add", queue.name, "hello")
    assert (outcome.code, outcome.err) == (0, "")
    [view] = await queue.inspect()
    assert (view.data, f"{view.id}\n") == (b"hello", outcome.out)
    assert re.fullmatch(r"[0-9a-f]{32}", view.id)
    outcome = await leasequeue("add", queue.name, "hello", "--id", "gruß", "--json")
    assert (outcome.code, outcome.document) == (0, {"queue": queue.name, "id": "gruß", "added": True})


async def test_an_id_that_is_in_the_queue_is_refused(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"first", id="x"))
    outcome = await leasequeue("add", queue.name, "second", "--id", "x")
    assert (outcome.code, outcome.out) == (1, "")
    assert "has an unfinished item with the id 'x'" in outcome.error
    outcome = await leasequeue("add", queue.name, "second", "--id", "x", "--json")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.document["added"] is False
    assert await data_in(queue) == [b"first"]


@pytest.mark.parametrize(
    ("argument", "stdin"),
    [(b"-", b""), (b"-", b"one\ntwo\n"), (b"-", bytes(range(256)))]
    + [(data, b"") for data in (b"", b"\xff\xfe", "gruß".encode())],
)
async def test_data_from_standard_input_or_the_command_line_is_not_changed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, argument: bytes, stdin: bytes
) -> None:
    assert (await leasequeue("add", queue.name, argument, stdin=stdin)).code == 0
    assert await data_in(queue) == [stdin if argument == b"-" else argument]


async def test_an_item_can_be_delayed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    now = datetime.now(UTC)
    tomorrow = (now + timedelta(days=1)).replace(microsecond=0)
    assert (await leasequeue("add", queue.name, "x", "--id", "later", "--delay", "1h30m")).code == 0
    assert (await leasequeue("add", queue.name, "x", "--id", "at", "--at", tomorrow.isoformat())).code == 0
    later, at = await queue.inspect("scheduled")
    assert (later.id, at.id) == ("later", "at")
    assert later.due == pytest.approx(now.timestamp() + 5_400, abs=50)
    assert at.due == tomorrow.timestamp()


async def test_each_line_of_a_file_is_an_item(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\ntwo\r\n\xff three")
    outcome = await leasequeue("add", queue.name, "--file", str(file))
    assert outcome == (0, "3 added\n", "")
    outcome = await leasequeue("add", queue.name, "--file", "-", "--json", stdin=b"four\n")
    assert (outcome.code, outcome.document) == (0, {"queue": queue.name, "added": 1, "already_there": 0})
    assert await data_in(queue) == [b"one", b"two", b"\xff three", b"four"]


async def test_a_large_file_is_added_in_several_calls(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    lines = b"".join(b"%d\n" % n for n in range(5_000))
    assert (await leasequeue("add", queue.name, "--file", "-", stdin=lines)).out == "5,000 added\n"
    assert await queue.queue_len() == 5_000
    assert [view.data for view in await queue.inspect(start=-1)] == [b"4999"]


@pytest.mark.seed("RWQ-O7")
async def test_equal_content_is_added_once(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    lines = b"one\ntwo\none\n"
    outcome = await leasequeue("add", queue.name, "--file", "-", "--content-id", stdin=lines)
    assert outcome == (0, "2 added, 1 already there\n", "")
    outcome = await leasequeue("add", queue.name, "one", "--content-id")
    assert outcome.code == 1
    assert hashlib.sha256(b"one").hexdigest() in outcome.error


async def test_an_item_can_have_options(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    options = ("--priority", "-3", "--group", "tenant-7", "--expires-in", "2h", "--dedupe-for", "1d")
    assert (await leasequeue("add", queue.name, "first", "--id", "x", *options)).code == 0
    assert (await leasequeue("add", queue.name, "second", "--id", "x", "--priority", "2")).code == 1
    [view] = await queue.inspect()
    assert (view.data, view.priority, view.group) == (b"first", -3, "tenant-7")
    shown = await leasequeue("show", queue.name, "x")
    assert re.search(r"^priority +-3 *\ngroup +tenant-7 *\nexpires +20", shown.out, re.MULTILINE)
    assert (await leasequeue("add", queue.name, "second", "--id", "x", "--replace")).code == 0
    [view] = await queue.inspect()
    assert (view.data, view.priority, view.expires) == (b"second", 0, None)


# ------------------------------------------------------------------------------------------------------- show


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


async def test_one_item_is_printed_in_full(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"two\nlines", id="x"))
    lease = await take(queue, 100)
    outcome = await leasequeue("show", queue.name, "x")
    assert (outcome.code, outcome.err) == (0, "")
    for fact in ("state leased", "attempt 1", f"holder {queue.session}", f"token {lease.token}"):
        assert fact.split() in [row[: len(fact.split())] for row in outcome.table]
    assert outcome.out.endswith("\ndata\n  two\n  lines\n")

    document = (await leasequeue("show", queue.name, "x", "--json")).document
    assert document["item"]["data"] == "two\nlines"
    assert document["item"]["token"] == lease.token
    assert (document["dead_letter"], document["result"]) == (None, None)


async def test_the_last_error_of_an_item_is_printed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="x"))
    await queue.fail(await take(queue), "Traceback\nValueError: bad", retry_in=3600)
    outcome = await leasequeue("show", queue.name, "x")
    assert outcome.out.endswith("\nlast error\n  Traceback\n  ValueError: bad\n\ndata\n  data\n")
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
    assert "\nerror\n  given up\n\ndata\n  second\n\nresult\n  \\xff\\x00\n" in out


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


# ----------------------------------------------------------------------------------------------------- cancel


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
