"""`leasequeue autoscale`: what it prints and refuses, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from leasequeue import Item
from tests.cli.program import started
from tests.cli.test_command_line import complete
from tests.eventually import eventually
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue

FILE = """
name = "{name}-scaler"
url = "{url}"
every = "100ms"

[jobs.{name}]
age_target = "10s"
service_time = "1s"

[deployments.media]
jobs = ["{name}"]
backend = "command"

[deployments.media.command]
request = ["sh", "-c", "echo {{units}} >> {folder}/asked"]
ready = ["echo", "0"]
"""
ESTIMATE = ("autoscale", "estimate", "--rate", "50/s", "--service-time", "2s")


@pytest.fixture
def file(tmp_path: Path, name: str, redis_url: str) -> Path:
    """Return a file for one queue, whose units a command notes in `asked`."""
    path = tmp_path / "autoscale.toml"
    path.write_text(FILE.format(name=name, url=redis_url, folder=tmp_path))
    return path


def asked(file: Path) -> list[int]:
    """Return the numbers of units that were asked for."""
    path = file.parent / "asked"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def change(file: Path, old: str, new: str) -> None:
    """Replace a text in a file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# ------------------------------------------------------------------------------------------------ the queue


async def test_the_queue_of_an_autoscaler_is_not_listed_among_others(
    leasequeue: Leasequeue, file: Path, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"x", id="pass"))
    assert (await leasequeue("autoscale", str(file), "--once")).code == 0
    for command in ("ls", "stats"):
        some = [line["queue"] for line in (await leasequeue(command, "--json")).documents]
        every = [line["queue"] for line in (await leasequeue(command, "--all", "--json")).documents]
        assert queue.name in some, "its only item has the id of that of an autoscaler"
        assert f"{queue.name}-scaler" not in some
        assert f"{queue.name}-scaler" in every
    assert (await leasequeue("ls", f"{queue.name}-scaler")).table[1][1] == "1"


# ------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("command", [("autoscale",), ("autoscale", "run"), ("autoscale", "--json")])
async def test_a_file_is_checked_with_or_without_the_name_of_the_command(
    leasequeue: Leasequeue, file: Path, command: tuple[str, ...], name: str
) -> None:
    outcome = await leasequeue(*command, str(file), "--check")
    assert (outcome.code, outcome.err) == (0, "")
    if "--json" in command:
        assert outcome.document == {
            "deployment": "media",
            "tier": "default",
            "backend": "command",
            "units": "0 to 10",
            "workers": 1,
            "jobs": name,
        }
    else:
        assert outcome.table[1] == ["media", "default", "command", "0", "to", "10", "1", name]


async def test_a_mistake_in_a_file_is_a_line(leasequeue: Leasequeue, tmp_path: Path) -> None:
    path = tmp_path / "autoscale.toml"
    path.write_text("name = 'x'\nevry = 3\n[jobs.a]\n[deployments.a]\nbackend = 'http'\n")
    for command in (("run",), ()):
        outcome = await leasequeue("autoscale", *command, str(path))
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.error == f"{path}, evry: unknown key; did you mean `every`?"


async def test_a_check_looks_for_the_programs(leasequeue: Leasequeue, file: Path) -> None:
    change(file, 'ready = ["echo"', 'ready = ["no-such-program"')
    outcome = await leasequeue("autoscale", str(file), "--check")
    assert (outcome.code, outcome.out) == (2, "")
    assert "deployments.media.command.ready: there is no program 'no-such-program' in PATH" in outcome.error


async def test_without_a_file_there_is_help(leasequeue: Leasequeue) -> None:
    outcome = await leasequeue("autoscale")
    assert "estimate" in outcome.out + outcome.err


def test_commands_and_options_are_completed() -> None:
    assert complete("autoscale", "") == ["run", "estimate"]
    assert complete("autoscale", "run", "x", "--o") == complete("autoscale", "x", "--o") == ["--once"]


# ------------------------------------------------------------------------------------------------- passes


async def test_one_pass_asks_for_units_and_says_why(
    leasequeue: Leasequeue, file: Path, queue: AsyncWorkQueue
) -> None:
    await queue.add_items([Item(b"") for _ in range(30)])
    outcome = await leasequeue("autoscale", str(file), "--dry-run", "--json")
    [tier] = outcome.document["tiers"]
    assert tier["wanted"] >= 3
    assert (tier["asked"], outcome.document["dry_run"], asked(file)) == (False, True, [])
    outcome = await leasequeue("autoscale", str(file), "--once", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = outcome.document
    [job], [tier] = report["jobs"], report["tiers"]
    assert (job["job"], job["signals"]["waiting"], report["errors"]) == (queue.name, 30, [])
    assert tier["wanted"] >= 3
    assert (tier["asked"], tier["deployment"], tier["tier"]) == (True, "media", "default")
    assert asked(file) == [tier["wanted"]]
    table = (await leasequeue("autoscale", str(file), "--once")).out
    assert job["answer"]["why"] in table or tier["why"] in table
    assert "media/default" in table


async def test_a_part_that_fails_is_exit_code_1_and_the_server_5(
    leasequeue: Leasequeue, file: Path, redis_url: str
) -> None:
    change(file, '["echo", "0"]', '["sh", "-c", "echo no >&2; exit 3"]')
    outcome = await leasequeue("autoscale", str(file), "--once", "--json")
    assert outcome.code == 1
    assert outcome.document["errors"][0]["part"] == "tier media/default"
    assert "no" in outcome.error
    change(file, f'url = "{redis_url}"', "")
    outcome = await leasequeue("autoscale", str(file), "--once", LEASEQUEUE_URL="redis://127.0.0.1:1")
    assert outcome.code == 5
    assert "127.0.0.1:1" in outcome.error


@pytest.mark.slow
async def test_it_runs_until_a_signal_and_answers_over_http(file: Path, queue: AsyncWorkQueue) -> None:
    port = free_port()
    change(file, "[jobs", f'[http]\naddress = "127.0.0.1:{port}"\n[jobs')
    await queue.add_items([Item(b"") for _ in range(30)])

    def answer(path: str) -> Any:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as found:
                return json.load(found)
        except HTTPError as refusal:
            refusal.close()
        except URLError:
            pass
        return None

    async with started("autoscale", str(file), "--json") as process:
        await eventually("it answers", lambda: bool((answer("/units/media/default") or {}).get("wanted")))
        assert process.stdout is not None
        first, second = [json.loads(await process.stdout.readline()) for _ in range(2)]
        assert second["number"] == first["number"] + 1
        assert answer("/report")["number"] >= 1
        process.terminate()
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert [json.loads(line)["leads"] for line in out.splitlines()] == [True] * len(out.splitlines())
        assert {json.loads(line)["level"] for line in err.splitlines()} <= {"info", "warning"}


@pytest.mark.slow
async def test_a_second_signal_ends_it_in_the_middle_of_a_pass(file: Path, queue: AsyncWorkQueue) -> None:
    change(file, "/asked", "/asked; exec sleep 3600")
    change(file, "ready =", 'timeout = "1h"\nready =')
    await queue.add_item(Item(b""))
    async with started("autoscale", str(file)) as process:
        await eventually("it is in a pass", lambda: bool(asked(file)))
        assert process.stderr is not None
        lines: list[str] = []

        async def logged(text: str) -> None:
            while not lines or text not in lines[-1]:
                assert process.stderr is not None
                lines.append((await process.stderr.readline()).decode())
                assert lines[-1], f"it has ended without {text!r}: {lines}"

        process.send_signal(signal.SIGTERM)
        await logged("SIGTERM: stopping")
        await asyncio.sleep(0.1)
        assert process.returncode is None, "it waits for the end of the pass"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(120):
            await logged("SIGINT: stopping at once")
            await logged("interrupted; what runs continues")
            assert await process.wait() == 0
    assert "Traceback" not in "".join(lines)


# ------------------------------------------------------------------------------------------------- estimate


async def test_a_plan_is_a_table_with_the_fewest_workers(leasequeue: Leasequeue) -> None:
    outcome = await leasequeue(*ESTIMATE, "--age-target", "10s", "--workers", "100", "--workers", "101")
    titles, first, second = outcome.out.splitlines()
    assert titles.split() == ["workers", "busy", "mean", "wait", "p99", "wait", "in", "time"]
    assert first.split() == ["100", "too", "few", "without", "end", "without", "end", "0.0%"]
    assert second.split()[:2] == ["101", "99%"]
    assert "← the fewest" in second


async def test_a_plan_as_json_has_null_for_what_has_no_end(leasequeue: Leasequeue) -> None:
    outcome = await leasequeue(*ESTIMATE, "--workers", "90", "--backlog", "10", "--json")
    document = outcome.document
    assert (document["workers"], document["mean_wait"], document["clear_in"]) == (90, None, None)
    assert (document["within"], document["fewest"]) == (0.0, False)


@pytest.mark.parametrize(
    ("rate", "per_second"), [("50", 50), ("50/s", 50), ("90/m", 1.5), ("1800/h", 0.5), ("43200/d", 0.5)]
)
async def test_a_rate_has_a_unit(leasequeue: Leasequeue, rate: str, per_second: float) -> None:
    plan = ("--rate", rate, "--service-time", "1s", "--workers", "100", "--json")
    outcome = await leasequeue("autoscale", "estimate", *plan)
    assert outcome.document["utilisation"] == pytest.approx(per_second / 100)


async def test_huge_and_tiny_figures_are_answered_at_once(leasequeue: Leasequeue) -> None:
    for rate, service in (("999999999999/s", "30d"), ("0/s", "0s"), ("0.000000001/d", "1ms")):
        outcome = await leasequeue("autoscale", "estimate", "--rate", rate, "--service-time", service)
        assert outcome.code == 0, outcome.err
