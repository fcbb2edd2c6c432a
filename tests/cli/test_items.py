"""Commands about single items: `leasequeue add`, `show` and `cancel`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, JobCancelled, JobUnknown
from leasequeue.tasks.wire import content_id_of
from tests.cli.program import use
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue, Outcome
    from tests.queue.fixtures import MakeQueue


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


async def test_a_key_and_a_weight_are_given_to_an_item(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    options = ("--unique-until-start", "k", "--weight", "3")
    assert (await leasequeue("add", queue.name, "first", "--id", "x", *options)).code == 0
    assert json.loads(await redis.hget(f"{queue.name}:options", "x") or "") == {"unstarted": "k", "weight": 3}
    outcome = await leasequeue("add", queue.name, "second", "--id", "y", *options)
    assert (outcome.code, outcome.out) == (1, "")
    assert "the item 'x' of" in outcome.error
    outcome = await leasequeue("add", queue.name, "second", *options, "--json")
    assert (outcome.code, outcome.document) == (1, {"queue": queue.name, "id": "x", "added": False})


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
        "tags": [],
        "expires": None,
        "progress": None,
        "flow_run": None,
        "flow_home": None,
    }
    assert (second["data"], second["data_encoding"]) == ("grün", "utf-8")


async def test_a_queue_or_a_state_without_items(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await use(queue)
    assert await leasequeue("show", queue.name, "--json") == (0, "", "")
    outcome = await leasequeue("show", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no unfinished items")
    await queue.add_item(Item(b"x"))
    outcome = await leasequeue("show", queue.name, "--state", "leased")
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no leased items")


async def test_it_says_that_items_wait_because_of_a_pause(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"x", id="one"))
    await queue.add_item(Item(b"x", id="other"), group="shop")
    assert "paused" not in (await leasequeue("show", queue.name)).err
    await queue.pause(group="shop")
    assert f"the group shop of {queue.name} is paused: " in (await leasequeue("show", queue.name)).err
    assert "paused" not in (await leasequeue("show", queue.name, "one")).err
    await queue.pause(reason="no mail server")
    outcome = await leasequeue("show", queue.name, "one")
    assert f"{queue.name} is paused (no mail server): " in outcome.err


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


async def test_the_logs_of_each_attempt_are_printed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="x"))
    for attempt in (1, 2):
        lease = await take(queue)
        record = f'[1700000000123,"INFO","shop","try {attempt}\\nforged","Trace\\nback"]'
        await queue._write_logs([(lease, f"{attempt} 1\n{record}".encode(), 4096, 60)])
        await queue.fail(lease, "why", retry_in=0 if attempt == 1 else None)
    outcome = await leasequeue("show", queue.name, "x")
    for attempt in (1, 2):
        line = f"2023-11-14T22:13:20.123Z INFO shop: try {attempt}\\nforged"
        assert f"\nlogs of attempt {attempt}\n  {line}\n    Trace\n    back\n" in outcome.out
    [first, _] = (await leasequeue("show", queue.name, "x", "--json")).document["logs"]
    assert (first["at"], first["message"]) == ("2023-11-14T22:13:20.123Z", "try 1\nforged")
    assert (first["attempt"], first["number"], first["traceback"]) == (1, 1, "Trace\nback")


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


# ------------------------------------------------------------------------------------------------------ tasks

#: A program with tasks.
PROGRAM = """
import os
from datetime import date
from leasequeue import FanOut, TaskQueue

tasks = TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], os.environ["QUEUE"])

@tasks.task(concurrency=3)
async def send_mail(to: str, on: date = date(2030, 1, 31)) -> str: ...

@tasks.task
async def send_all(guild: int) -> FanOut[str]: ...

def make(): return tasks
number = 7
"""
MAIL = '{"to": "ann@example.org"}'


@pytest.fixture
def program(tmp_path: Path, queue: AsyncWorkQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a target with tasks of the queue, each time in another module."""
    path = tmp_path / f"mail_{secrets.token_hex(4)}.py"
    path.write_text(PROGRAM)
    monkeypatch.setenv("LEASEQUEUE_URL", redis_url)
    monkeypatch.setenv("QUEUE", queue.name)
    monkeypatch.setattr("sys.path", [*sys.path])
    return f"{path}:tasks"


async def test_a_task_is_added_by_its_name(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("add", queue.name, "--task", "send_mail", "--args", MAIL, "--priority", "2")
    assert (outcome.code, outcome.err) == (0, "")
    [view] = await queue.inspect()
    assert (f"{view.id}\n", view.priority) == (outcome.out, 2)
    assert json.loads(view.data or b"") == {
        "task": "send_mail",
        "args": {"to": "ann@example.org"},
        "meta": {},
    }


async def test_the_arguments_of_a_task_are_added_as_they_are_written(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    given = '{"number": 1234567890123456789.12, "to": "Zo\u00eb  K"}'
    await leasequeue("add", queue.name, "--task", "send_mail", "--args", given)
    [view] = await queue.inspect()
    written = '{"number":1234567890123456789.12,"to":"Zo\u00eb  K"}'
    assert view.data == f'{{"task":"send_mail","args":{written},"meta":{{}}}}'.encode()


async def test_with_its_program_a_task_is_added_as_that_would_do_it(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, program: str
) -> None:
    async def add(*options: str, name: str = "tasks") -> Outcome:
        sys.modules.pop(Path(program.removesuffix(":tasks")).stem, None)  # a command imports it anew
        given = ("--task", "send_mail", "--args", MAIL, "--app", program.replace(":tasks", f":{name}"))
        return await leasequeue("add", queue.name, *given, *options)

    outcome = await add("--content-id", "--json")
    [view] = await queue.inspect()
    assert outcome.document == {"queue": queue.name, "id": view.id, "added": True}
    assert view.id == content_id_of("send_mail", b'{"to":"ann@example.org"}')
    assert view.group, "that of its limit"
    assert (await add("--content-id")).error.startswith("not added: ")
    assert (await add("--id", "m1", "--delay", "5m")).out == "m1\n"
    assert (await queue.counts()).scheduled == 1
    assert (await add("--id", "m2", name="make")).out == "m2\n"


async def test_a_task_that_fans_out_is_started_as_a_flow_run(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, program: str
) -> None:
    add = ("add", queue.name, "--task", "send_all", "--args", '{"guild": 7}', "--app", program)
    outcome = await leasequeue(*add)
    [run] = await queue.flow_runs.list()
    assert (outcome.code, outcome.out) == (0, f"{run.id if run else None}\n")


@pytest.mark.parametrize(
    ("task", "arguments", "name", "says"),
    [
        ("send_mial", MAIL, "tasks", "has no task 'send_mial'; it has send_mail, send_all"),
        ("send_mail", '{"too": "ann"}', "tasks", "send_mail: it has no argument 'too' (it has to, on)"),
        ("send_mail", "{}", "tasks", "send_mail: the argument 'to' is missing"),
        ("send_mail", '{"to": 7}', "tasks", "send_mail: Expected `str`, got `int`"),
        ("send_mail", '{"to": "ann", "on": "soon"}', "tasks", "Invalid RFC3339"),
        ("send_mail", MAIL, "number", "is 7 (int), not a TaskQueue"),
        ("send_mail", MAIL, "nothing", "has no 'nothing'; it has tasks"),
    ],
)
async def test_with_its_program_a_task_is_checked_before_it_is_added(
    leasequeue: Leasequeue,
    queue: AsyncWorkQueue,
    program: str,
    task: str,
    arguments: str,
    name: str,
    says: str,
) -> None:
    target = program.replace(":tasks", f":{name}")
    outcome = await leasequeue("add", queue.name, "--task", task, "--args", arguments, "--app", target)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert await queue.counts() == (0, 0, 0, 0)


async def test_a_task_of_another_queue_is_refused(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, program: str
) -> None:
    add = ("add", "another", "--task", "send_mail", "--args", MAIL, "--app", program)
    outcome = await leasequeue(*add)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error == f"the queue of the task 'send_mail' is {queue.name!r}, not 'another'"


async def test_tags_are_listed_and_act_on_what_has_one(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    for item_id in ("a", "b", "c"):
        outcome = await leasequeue(
            *("add", queue.name, "data", "--id", item_id, "--tag", "red", "--tag", f"only {item_id}")
        )
        assert outcome.code == 0
    await queue.fail(await take(queue), "why")
    outcome = await leasequeue("tags", queue.name, "--count", "2", "--json")
    assert outcome.documents == [{"tag": "only a", "items": 1}, {"tag": "only b", "items": 1}]
    outcome = await leasequeue("tags", queue.name, "red", "--json")
    found = [(one["id"], one["state"], one["data"]) for one in outcome.documents]
    assert found == [("a", "dead", "data"), ("b", "waiting", "data"), ("c", "waiting", "data")]
    outcome = await leasequeue("tags", queue.name, "red", "--count", "2")
    assert [line.split() for line in outcome.out.splitlines()[1:]] == [["a", "dead"], ["b", "waiting"]]
    assert "3 have the tag" in outcome.err
    outcome = await leasequeue("tags", queue.name, "red", "--cancel")
    assert (outcome.code, outcome.out) == (0, "2 cancelled\n")
    outcome = await leasequeue("tags", queue.name, "red", "--requeue")
    assert (outcome.code, outcome.out) == (0, "1 requeued\n")
    assert await queue.tags.list() == {"only a": 1, "red": 1}
    assert (await leasequeue("tags", queue.name, "blue")).code == 1
    for act in ("--cancel", "--requeue"):
        outcome = await leasequeue("tags", queue.name, "blue", act)
        assert (outcome.code, outcome.out.partition(" ")[0]) == (1, "0")
        assert outcome.error == f"'{queue.name}' has no item and no dead letter with the tag 'blue'"
    for wrong in (("--cancel",), ("red", "--cancel", "--requeue")):
        assert (await leasequeue("tags", queue.name, *wrong)).code == 2


async def test_groups_are_listed_and_act_on_what_one_has(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    for item_id in ("a", "b", "c"):
        assert (await leasequeue("add", queue.name, "data", "--id", item_id, "--group", "red")).code == 0
    await queue.add_item(Item(b"data", id="later"), group="only later", delay=60)
    await take(queue)
    outcome = await leasequeue("groups", queue.name, "--json")
    assert outcome.documents == [{"group": "red", "waiting": 2, "leased": 1, "scheduled": None}]
    outcome = await leasequeue("groups", queue.name, "--everywhere")
    assert [line.split()[-3:] for line in outcome.out.splitlines()[1:]] == [["0", "0", "1"], ["2", "1", "0"]]
    outcome = await leasequeue("groups", queue.name, "red", "--json")
    found = [(one["id"], one["state"], one["data"]) for one in outcome.documents]
    assert found == [("a", "leased", "data"), ("b", "waiting", "data"), ("c", "waiting", "data")]
    await other.add_item(Item(b"", id="b"))
    outcome = await leasequeue("groups", queue.name, "red", "--to", other.name)
    assert (outcome.code, outcome.out) == (0, "1 moved\n")
    assert (await leasequeue("groups", queue.name, "red", "--purge")).out == "1 purged\n"
    assert (await leasequeue("groups", queue.name, "red", "--cancel")).out == "1 cancelled\n"
    assert (await leasequeue("groups", queue.name, "red")).code == 1
    for act in (("--purge",), ("--cancel",), ("--to", other.name)):
        outcome = await leasequeue("groups", queue.name, "red", *act)
        assert (outcome.code, outcome.out.partition(" ")[0]) == (1, "0")
        assert outcome.error == f"'{queue.name}' has no unfinished item of the group 'red'"
    assert (await leasequeue("groups", queue.name, "only later", "--purge")).code == 0, "it is scheduled"
    outcome = await leasequeue("groups", queue.name, "only later", "--to", f"{other.name}s")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error.endswith("and --create makes a new one")
    outcome = await leasequeue("groups", queue.name, "only later", "--to", f"{other.name}s", "--create")
    assert outcome.out == "1 moved\n"
    for wrong in (("--cancel",), ("red", "--cancel", "--purge"), ("--to", "x"), ("red", "--create")):
        assert (await leasequeue("groups", queue.name, *wrong)).code == 2


async def test_items_are_promoted_and_change_their_priority(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    for item_id, delay in (("a", "0s"), ("b", "0s"), ("c", "1h"), ("d", "1h")):
        await leasequeue("add", queue.name, "data", "--id", item_id, "--delay", delay)
    assert (await leasequeue("promote", queue.name, "c", "d")).out == "2 promoted\n"
    assert [one.id for one in await queue.peek(9)] == ["c", "d", "a", "b"]
    outcome = await leasequeue("promote", queue.name, "a")
    assert (outcome.code, outcome.error) == (1, f"{queue.name!r} has no delayed item with the id 'a'")
    assert (await leasequeue("priority", queue.name, "b", "--level", "9")).out == "1 changed\n"
    assert (await take(queue)).id == "b"
    assert (await leasequeue("priority", queue.name, "b", "--level", "1")).code == 1
    assert (await leasequeue("priority", queue.name, "a", "--level", "10")).code == 2


async def test_encoded_payloads_are_shown_with_the_codec_or_named_without(
    leasequeue: Leasequeue, make_queue: MakeQueue, name: str
) -> None:
    codec = "tests.queue.test_codecs:BOTH"
    outcome = await leasequeue("add", name, "a secret", "--id", "a", LEASEQUEUE_CODEC=codec)
    assert (outcome.code, outcome.err) == (0, "")
    queue = make_queue(codec=codec)
    lease = await take(queue)
    assert lease.data == b"a secret"
    await queue.complete(lease, result=b"a result")
    await queue.add_item(Item(b"a secret", id="a"))
    for given, shown, absent in ((codec, "a ", "encoded"), ("", "encoded by aes.new", "a secret")):
        for command in (("show", name, "a"), ("show", name), ("peek", name)):
            outcome = await leasequeue(*command, LEASEQUEUE_CODEC=given)
            assert (outcome.code, outcome.err) == (0, "")
            assert shown in outcome.out, command
            assert absent not in outcome.out, command
    outcome = await leasequeue("show", name, "a", "--json")
    assert outcome.document["item"]["data_encoding"] == outcome.document["result_encoding"] == "base64"
    outcome = await leasequeue("show", name, LEASEQUEUE_CODEC="nowhere:codec")
    assert outcome.code == 2
    assert "where to import them from" in outcome.error
