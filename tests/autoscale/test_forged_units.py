"""Programs that would have the autoscaler signal what is none of its units: forged registrations and states.

A producer may write both kinds of keys. A process that was not signalled ends as its script says.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from leasequeue.autoscale import Autoscaler
from leasequeue.autoscale.backends import open_backend, processes
from leasequeue.autoscale.backends.processes import MARK, mark_of
from leasequeue.autoscale.config import ProcessSettings
from leasequeue.autoscale.leader import PASS_ID
from tests.autoscale.backend_bench import SLEEP, bench, config_of, refusal
from tests.queue.fixtures import make_queue, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.autoscale.backends import Backend
    from leasequeue.autoscale.config import Config
    from tests.autoscale.backend_bench import ProcessBench

__all__ = ["bench", "make_queue", "queue"]
pytestmark = pytest.mark.slow

#: The user of no file.
NOBODY = 65534
UNHARMED = 7


class Case(NamedTuple):
    """How a process differs from a unit. As root, also those of another user."""

    mark: str = "{own}/{name}"
    argument: str = "{name}"
    #: Whether it leads its session; else what leads it has no name of a unit.
    session: bool = True
    #: Its real, effective and saved user ids; None: those of the autoscaler.
    users: tuple[int, int, int] | None = None


CASES = {
    "no mark": Case(mark=""),
    "the mark of another tier": Case(mark="{other}/{name}"),
    "the mark of another unit": Case(mark="{own}/{name}2"),
    "no name among its arguments": Case(argument=""),
    "another leader of its session": Case(session=False),
}
if os.geteuid() == 0:
    CASES |= {
        "another user without a mark": Case(mark="", users=(NOBODY,) * 3),
        "another user with the right mark": Case(users=(NOBODY,) * 3),
        "a program that another user has started with our rights": Case(users=(NOBODY, 0, 0)),
    }


@asynccontextmanager
async def victim(url: str, prefix: str, case: Case) -> AsyncIterator[int]:
    """Run a process that ends with `UNHARMED` if it was not signalled, which is checked at the end."""
    words = {"own": mark_of(url, prefix), "other": mark_of(url, f"{prefix}x"), "name": f"{prefix}1"}
    users = case.users
    environment = {"PATH": os.environ["PATH"], "ARGUMENT": case.argument.format_map(words)}
    if case.mark:
        environment[MARK] = case.mark.format_map(words)
    script = f"echo $$; read line; exit {UNHARMED}"
    leader = ["sh", "-p", "-c", f"sh -p -c '{script}' sh $ARGUMENT; exit $?"]
    process = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
        ["sh", "-p", "-c", script, "sh", environment["ARGUMENT"]] if case.session else leader,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=None if users is None else lambda: os.setresuid(*users),  # noqa: PLW1509 - no threads need it
    )
    with process:
        assert process.stdin
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        except BaseException:
            process.kill()
            raise
        process.stdin.write(b"end\n")
        process.stdin.close()
        assert process.wait() == UNHARMED


async def forge(redis: Redis, queue: str, name: str, pid: object, **fields: object) -> None:
    """Register a worker that does not exist, by the two commands for which a producer has the rights."""
    about = {"name": name, "worker": "forged", "host": socket.gethostname(), "pid": pid, "running": []}
    seconds, _ = await redis.time()
    await redis.hset(f"{queue}:workers", "forged", json.dumps({**about, **fields}))
    await redis.zadd(f"{queue}:heartbeats", {"forged": (seconds + 60) * 1000})


async def attack(redis: Redis, backend: Backend, queue: str, name: str, pid: object) -> None:
    """Have a process adopted, and then stopped and killed, as far as the back end does that."""
    await forge(redis, queue, name, pid)
    assert (await backend.ready(), await backend.requested()) == (0, 0)
    assert await refusal(backend, 0) == ""
    await forge(redis, queue, name, pid, order="stop", quiet=True)
    assert await refusal(backend, 0) == ""
    await redis.delete(f"{queue}:workers", f"{queue}:heartbeats")
    for _ in range(3):
        assert await refusal(backend, 0) == ""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_forged_registration_has_no_process_signalled_that_is_not_proved_to_be_a_unit(
    bench: ProcessBench, redis: Redis, name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RECEIVED_SECONDS", 0.0)
    backend = bench.open(SLEEP, stop_within=0.0, kill_after=0.0)
    async with victim(bench.url, bench.prefix, case) as pid:
        await attack(redis, backend, name, f"{bench.prefix}1", pid)


async def test_the_unproved_registration_is_logged_once(
    bench: ProcessBench, redis: Redis, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = bench.open(SLEEP)
    async with victim(bench.url, bench.prefix, CASES["no mark"]) as pid:
        for number in (1, 2):
            await forge(redis, name, f"{bench.prefix}{number}", pid)
            assert await backend.ready() == 0
        said = (
            f"process {pid} is registered as {bench.prefix}1, and not proved to be a unit: it is left alone"
        )
        assert [one for one in caplog.messages if "not proved" in one] == [f"work/t1: {said}"]


async def test_a_forged_process_id_that_is_none_stops_no_pass(
    bench: ProcessBench, redis: Redis, name: str
) -> None:
    backend = bench.open(SLEEP)
    for pid in (0, 1, -1, 2**31, 2**70, 1.5, "7", None, os.getpid()):
        await attack(redis, backend, name, f"{bench.prefix}1", pid)


async def test_a_process_that_has_got_the_id_of_a_unit_is_not_adopted(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = bench.open(SLEEP, stop_within=0.0, kill_after=0.0)
    async with victim(bench.url, bench.prefix, CASES["no mark"]) as pid:
        monkeypatch.setattr(processes, "find_units", lambda _: [(pid, f"{bench.prefix}1")])
        assert await backend.requested() == 0
        assert await refusal(backend, 0) == ""


async def test_a_session_that_was_begun_outside_a_container_proves_no_unit(
    bench: ProcessBench, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getsid", lambda _: 0)
    monkeypatch.setattr(processes, "RECEIVED_SECONDS", 0.0)
    async with victim(bench.url, bench.prefix, Case()) as pid:
        backend = bench.open(SLEEP, stop_within=0.0, kill_after=0.0)
        await attack(redis, backend, name, f"{bench.prefix}1", pid)


async def test_on_a_system_that_proves_nothing_only_its_own_children_are_units(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bench.open(), bench.open()
    await bench.settled(first, 1)
    [pid] = bench.pids()
    monkeypatch.setattr(processes, "leader_of", lambda *_: None)
    assert (await first.ready(), await first.requested()) == (1, 1)
    assert (await second.ready(), await second.requested()) == (0, 0)
    assert await refusal(second, 0) == ""
    assert bench.pids() == [pid]


STATES = {
    "settings in the memory of a tier": lambda settings: {
        "plan": {"tiers": {"work": {"old": {"asked": 1, "at": 1.0, "settings": settings}}}}
    },
    "settings beside the memory": lambda settings: {"removed": {"work": {"old": settings}}},
    "a tier with a configuration": lambda settings: {
        "plan": {"tiers": {"work": {"old": {"asked": 1, "ready": 1}}}},
        "settings": json.dumps(settings),
        "report": {"tiers": [{"deployment": "work", "tier": "old", "settings": settings}]},
    },
}
SETTINGS = [
    {
        "backend": "processes",
        "command": ["sh", "-c", "touch {folder}/ran"],
        "kill_after": 0,
        "stop_within": 0,
    },
    {"backend": "kubernetes", "name": "victim", "kubeconfig": "{folder}/ran", "context": "theirs"},
    {"backend": "command", "request": ["touch", "{folder}/ran", "{{units}}"]},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one["backend"])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_a_forged_state_opens_no_back_end(
    bench: ProcessBench, redis: Redis, name: str, state: Any, settings: dict[str, Any]
) -> None:
    forged = json.loads(json.dumps(settings).replace("{folder}", str(bench.folder)))
    given = ProcessSettings(command=SLEEP, on_exit="leave")
    config = config_of(bench.url, name, given)
    await redis.set(f"{config.name}:item:{PASS_ID}", json.dumps({"version": 1, "number": 3, **state(forged)}))
    await redis.lpush(f"{config.name}:queue", PASS_ID)
    opened: list[tuple[str, str, object]] = []

    def record(config: Config, deployment: str, tier: str) -> Backend:
        opened.append((deployment, tier, config.deployments[deployment].tiers[tier].settings))
        return open_backend(config, deployment, tier)

    prefix = f"{config.name}.work.old-"
    async with (
        victim(bench.url, prefix, Case()) as pid,
        Autoscaler(config, open_backend=record) as autoscaler,
    ):
        await forge(redis, name, f"{prefix}1", pid)
        reports = [await autoscaler.once() for _ in range(3)]
        assert opened == [("work", "t1", given)]
        assert not (bench.folder / "ran").exists()
        assert {(one.deployment, one.tier) for report in reports for one in report.tiers} == {("work", "t1")}
