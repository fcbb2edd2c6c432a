"""The back end of commands, with real programs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from msgspec import structs

from leasequeue.autoscale.backends import command, open_backend
from leasequeue.autoscale.config import CommandSettings, HttpSettings
from leasequeue.errors import BackendError
from tests.autoscale.backend_bench import config_of, refusal
from tests.autoscale.scaling import register
from tests.eventually import eventually
from tests.processes import lives
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from leasequeue.autoscale.backends import Backend

NOTE = ["sh", "-c", 'echo "$0 $*" >> note', "{deployment}/{tier}", "{units}"]


class Open(Protocol):
    """Open a back end in the folder of the test."""

    def __call__(
        self, request: list[str], ready: list[str] | None = None, *, tiers: int = 1, **settings: Any
    ) -> Backend: ...


@pytest.fixture
async def opened(tmp_path: Path, redis_url: str, name: str) -> AsyncIterator[Open]:
    """Give a function that opens back ends of the deployment `work`."""
    found = []

    def make(
        request: list[str], ready: list[str] | None = None, *, tiers: int = 1, **settings: Any
    ) -> Backend:
        given: dict[str, Any] = {"request": request, "ready": ready, "directory": str(tmp_path), **settings}
        config = config_of(redis_url, name, CommandSettings(**given), tiers=tiers, workers_per_unit=4)
        found.append(open_backend(config, "work", "t1"))
        return found[-1]

    yield make
    for one in found:
        await one.close()


@pytest.mark.seed("RWQ-O24")
async def test_the_program_is_given_the_number_and_only_runs_when_it_changes(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(NOTE, ["sh", "-c", 'echo "$FOUND"'], env={"FOUND": " 7 "})
    assert (await backend.ready(), await backend.requested()) == (7, 7)
    for units in (3, 3, 5):
        await backend.request(units)
    assert (tmp_path / "note").read_text() == "work/t1 3\nwork/t1 5\n"
    assert (await backend.ready(), await backend.requested()) == (7, 5)

    monkeypatch.setattr(command, "REPEAT_SECONDS", 0.0)
    await backend.request(5)
    assert (tmp_path / "note").read_text().endswith("work/t1 5\nwork/t1 5\n"), (
        "another client may have changed it"
    )


async def test_a_number_that_was_not_accepted_is_requested_again(opened: Open, tmp_path: Path) -> None:
    backend = opened(["sh", "-c", "echo run >> note; echo too many >&2; exit 3", "{units}"])
    for _ in range(2):
        assert await refusal(backend, 9) == "`sh` ended with exit code 3: too many"
    assert (tmp_path / "note").read_text() == "run\nrun\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo many", "`sh` printed 'many\\n', not a number"),
        ("echo -1", "`sh` printed '-1\\n', not a number"),
        ("true", "`sh` printed '', not a number"),
        ("echo 1 2", "`sh` printed '1 2\\n', not a number"),
        ("kill -9 $$", "`sh` ended with signal 9"),
        ("echo 3; exit 1", "`sh` ended with exit code 1: 3"),
    ],
)
async def test_a_program_that_prints_no_number_is_an_error(opened: Open, script: str, problem: str) -> None:
    backend = opened(NOTE, ["sh", "-c", script])
    with pytest.raises(BackendError) as caught:
        await backend.ready()
    assert caught.value.problem == problem


async def test_a_program_that_takes_too_long_is_killed_with_what_it_has_started(
    opened: Open, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    for limit in (0.2, 2, 20):  # a busy machine may need longer to start the program
        backend = opened(["sh", "-c", "sleep 60 & echo $! > child; wait", "{units}"], timeout=limit)
        assert await refusal(backend, 1) == f"`sh` took longer than {limit} s"
        if child.exists() and child.read_text():
            break
    pid = int(child.read_text())
    await eventually("its child has ended", lambda: not lives(pid))


async def test_a_program_ends_when_its_call_is_cancelled(opened: Open, tmp_path: Path) -> None:
    backend = opened(["sh", "-c", "echo $$ > child; exec sleep 60", "{units}"])
    call = asyncio.create_task(backend.request(1))
    await eventually(
        "it runs", lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() != ""
    )
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not lives(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("start", ["sleep 5 &", "setsid sleep 5 &"])
async def test_a_program_that_leaves_a_child_with_its_output_has_ended(
    opened: Open, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The pipe never ends; a child that has left the group is not killed."""
    monkeypatch.setattr(command, "READ_SECONDS", 0.1)
    backend = opened(NOTE, ["sh", "-c", f"{start} echo 4"], timeout=30)
    assert await backend.ready() == 4


async def test_much_output_is_read_and_cut(opened: Open) -> None:
    script = "import sys; sys.stderr.write('x' * 5_000_000 + 'the end'); sys.exit(1)"
    text = await refusal(opened([sys.executable, "-S", "-c", script, "{units}"]), 1)
    assert len(text) < 700
    assert text.endswith("xthe end")


async def test_a_program_that_is_missing_is_an_error_with_its_name(opened: Open) -> None:
    text = await refusal(opened(["./no-such-program", "{units}"]), 1)
    assert text.startswith("`./no-such-program` cannot be started: [Errno 2]")


@pytest.mark.parametrize("settings", [CommandSettings(request=["true", "{units}"]), HttpSettings()])
async def test_without_a_program_registered_workers_are_counted_in_units(
    redis_url: str, name: str, settings: CommandSettings | HttpSettings
) -> None:
    """The units of these tiers have 4 workers each."""

    def make(tiers: int, **changes: str) -> Backend:
        given = structs.replace(settings, **changes)
        config = config_of(redis_url, name, given, tiers=tiers, workers_per_unit=4)
        return open_backend(config, "work", "t1")

    alone, named, one_of_two = make(1), make(2, workers="spot-*"), make(2)
    async with (
        register(redis_url, name, "spot-1", 8),
        register(redis_url, name, "steady-1", 3),
        register(redis_url, name, "spot-2", 5),
    ):

        async def are_registered() -> bool:
            return await alone.ready() == 4

        await until("all three are registered", are_registered)
        assert await alone.requested() == 4
        assert (await named.ready(), await named.requested()) == (3, 3)
        assert await one_of_two.ready() == 4
        for one in (alone, named, one_of_two):
            await one.request(9)
            assert await one.requested() == 9
        assert (await alone.ready(), await named.ready()) == (4, 3)
        assert await one_of_two.ready() == 9, "nothing says which tier a worker is of"
    for one in (alone, named, one_of_two):
        await one.close()


async def test_registrations_that_cannot_be_read_are_an_error(name: str) -> None:
    backend = open_backend(config_of("redis://127.0.0.1:1", name, HttpSettings()), "work", "t1")
    with pytest.raises(BackendError, match=r"^http, work/t1: the registered workers cannot be read: "):
        await backend.ready()
    await backend.request(3)
    assert await backend.requested() == 3
    await backend.close()
