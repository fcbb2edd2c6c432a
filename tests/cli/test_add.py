"""`leasequeue add`."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.cli.program import usage_error

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either the data, - for standard input, or --file"),
        (("x", "--file", "-"), "give either the data, - for standard input, or --file"),
        (("--file", "-", "--id", "x"), "cannot be combined with --content-id or --file"),
        (("x", "--content-id", "--id", "x"), "cannot be combined with --content-id or --file"),
        (("x", "--delay", "soon"), "'soon' is not a duration; write 500ms, 30s, 5m, 1h30m, 2d or 1w"),
        (("x", "--delay", "40d"), "'40d' is longer than 30d"),
        (("x", "--at", "2030-01-31T09:00"), "is not a time with a zone; write 2030-01-31T09:00Z"),
        (("x", "--at", "tomorrow"), "is not a time with a zone"),
        (("x", "--at", "2030-01-31T09:00Z", "--delay", "5m"), "a delay or a time, not both"),
        (("--file", "/nowhere"), "/nowhere: No such file or directory; 0 items were added"),
        (("x", "--id", ""), "id: got '', expected a string of 1 to 512 bytes"),
    ],
)
async def test_wrong_usage_adds_no_item(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, arguments: tuple[str, ...], message: str
) -> None:
    assert message in usage_error(await leasequeue("add", queue.name, *arguments, stdin=b"x\n"))
    assert (await queue.counts()).total == 0


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
    assert "from -9 to 9" in usage_error(await leasequeue("add", queue.name, "x", "--priority", "10"))
    assert "group" in usage_error(await leasequeue("add", queue.name, "x", "--group", ""))
