"""What is the same for all commands: help, completion, errors and exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from redis.asyncio import Redis
from typer.testing import CliRunner

from leasequeue import Item
from leasequeue.cli.app import COMMANDS, app, load
from leasequeue.cli.options import format_time, parse_duration
from tests.cli.program import run_process, started, usage_error
from tests.eventually import eventually

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy
    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer

#: Arguments for each command that uses a server.
CALLS = {
    "add": ("add", "emails", "x"),
    "add --file": ("add", "emails", "--file", "-"),
    "ls": ("ls", "emails"),
    "ls, all": ("ls",),
    "stats": ("stats", "emails"),
    "stats, all": ("stats",),
    "show": ("show", "emails"),
    "show ID": ("show", "emails", "x"),
    "clean": ("clean", "emails"),
    "cancel": ("cancel", "emails", "x"),
    "limits": ("limits", "emails"),
    "pause": ("pause", "emails"),
    "resume": ("resume", "emails"),
    "fsck": ("fsck", "emails"),
    "events": ("events", "emails"),
    "workers ls": ("workers", "ls", "emails"),
    "workers fail": ("workers", "fail", "emails", "x"),
    "workers stop": ("workers", "stop", "emails", "x"),
    "acl": ("acl", "emails"),
    "peek": ("peek", "emails"),
    "mv": ("mv", "emails", "others"),
    "purge": ("purge", "emails", "--yes"),
    "rm": ("rm", "emails", "--yes"),
    "recover": ("recover", "emails", "--elapsed", "5m"),
    "clear-leases": ("clear-leases", "emails", "--yes"),
    "clear-leases, all": ("clear-leases", "--yes"),
    "dead ls": ("dead", "ls", "emails"),
    "dead show": ("dead", "show", "emails", "x"),
    "dead requeue": ("dead", "requeue", "emails", "--all"),
    "dead drop": ("dead", "drop", "emails", "x"),
    "schedule ls": ("schedule", "ls", "emails"),
    "schedule add": ("schedule", "add", "emails", "x", "--every", "5m"),
    "schedule run": ("schedule", "run", "emails", "x"),
    "schedule rm": ("schedule", "rm", "emails", "x"),
    "flow ls": ("flow", "ls", "emails"),
    "flow show": ("flow", "show", "emails", "x"),
    "flow find": ("flow", "find", "emails", "access", "user_id=62"),
    "flow cancel": ("flow", "cancel", "emails", "x"),
}
NO_SERVER = "redis://127.0.0.1:1"


def complete(*words: str, url: str = NO_SERVER) -> list[str]:
    """Return what bash gets when tab is pressed after these words; other shells differ in Typer only."""
    environment = {"COMP_WORDS": " ".join(["leasequeue", *words]), "COMP_CWORD": str(len(words))}
    result = CliRunner().invoke(
        app,
        prog_name="leasequeue",
        env={"_LEASEQUEUE_COMPLETE": "complete_bash", "LEASEQUEUE_URL": url, **environment},
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


# ------------------------------------------------------------------------------------------------------- help


def test_help_lists_every_command_and_imports_none() -> None:
    program = "import sys; from leasequeue.cli import main; sys.argv = ['leasequeue', '--help']\ntry: main()"
    program += "\nfinally: print(*sorted(name for name in sys.modules if name.startswith('leasequeue.cli.')))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *shown, imported = result.stdout.splitlines()
    assert imported == "leasequeue.cli.app"
    listed = [line.split()[1] for line in shown if line.startswith("│ ") and line[2] not in " -"]
    assert listed == [*COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.seed("RRQ-T5")
def test_a_command_and_the_overview_have_the_same_text(name: str) -> None:
    assert load(name).help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("add", "q", "x", "--delay", "60d"),
            "'60d' is longer than 30d, the longest that is accepted; use --at, which takes any time",
        ),
        (("add", "q", "x", "--expires-in", "31d"), "'31d' is longer than 30d, the longest that is accepted"),
        (
            ("show", "q", "--state", "dead"),
            "'dead' is not one of waiting, leased, scheduled; `leasequeue dead ls QUEUE` lists dead letters",
        ),
        (
            ("worker", "app:tasks", "--url", "redis://localhost"),
            'the program names the server: `TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], "emails")`',
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
async def test_a_value_that_belongs_elsewhere_is_refused_with_the_place(
    leasequeue: Leasequeue, arguments: tuple[str, ...], says: str
) -> None:
    assert says in usage_error(await leasequeue(*arguments))


async def test_old_dead_letters_are_dropped_by_an_age_above_that_of_a_delay(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    outcome = await leasequeue("dead", "drop", queue.name, "--older-than", "60d", "--yes")
    assert (outcome.code, outcome.out) == (0, "0 dropped\n")


async def test_an_unknown_command_is_refused_with_the_most_similar_one(leasequeue: Leasequeue) -> None:
    assert "No such command 'shov'. Did you mean 'show'?" in usage_error(await leasequeue("shov"))


# ------------------------------------------------------------------------------------------------- completion


#: Lets a test name the shell; otherwise it is the one that started the tests.
NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

#: Presses tab after `leasequeue dead drop --o`.
PRESS_TAB = """
source "$1"
COMP_WORDS=(leasequeue dead drop --o)
COMP_CWORD=3
_leasequeue_completion leasequeue
echo "${COMPREPLY[@]}"
complete -p leasequeue
"""


async def test_the_completion_script_of_a_shell_is_printed() -> None:
    async def script_of(shell: str) -> None:
        outcome = await run_process("--show-completion", shell, stdin=b"", cwd=None, **NAMED_SHELL)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"_LEASEQUEUE_COMPLETE=complete_{shell}" in outcome.out

    await asyncio.gather(*map(script_of, ("bash", "zsh", "fish")))


async def test_completion_can_be_installed(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), **NAMED_SHELL}
    async with started("--install-completion", "bash", environment=home) as process:
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"completion installed" in out
    script = tmp_path / ".bash_completions" / "leasequeue.sh"
    assert str(script) in (tmp_path / ".bashrc").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tab = await asyncio.create_subprocess_exec(
        *("bash", "-c", PRESS_TAB, "bash", script), env={"PATH": path}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await tab.communicate()
    assert out.decode().splitlines() == [
        "--older-than",
        "complete -o default -F _leasequeue_completion leasequeue",
    ]


def test_commands_options_and_values_are_completed_without_a_server() -> None:
    assert {*complete("s")} == {"show", "serve", "schedule", "stats"}
    assert complete("dead", "") == ["ls", "show", "requeue", "drop"]
    assert complete("dead", "drop", "--o") == ["--older-than"]
    assert complete("show", "emails", "--state", "") == ["waiting", "leased", "scheduled"]


# ------------------------------------------------------------------------------------------------- exit codes


def test_every_command_that_uses_a_server_has_a_call() -> None:
    called = {arguments[0] for arguments in CALLS.values()}
    # Those of `pipeline` start Spark: tests/spark/test_jobs.py.
    assert called == {name for name, place in COMMANDS.items() if place.epilog} - {"pipeline"}


@pytest.mark.parametrize("call", CALLS)
async def test_a_server_that_cannot_be_reached_is_exit_code_5_and_one_line(
    leasequeue: Leasequeue, call: str
) -> None:
    outcome = await leasequeue(*CALLS[call], "--url", NO_SERVER, stdin=b"x\n")
    assert (outcome.code, outcome.out) == (5, "")
    assert outcome.error.startswith("the server cannot be reached: ")
    assert "127.0.0.1:1" in outcome.error
    assert "nothing was applied" in outcome.error
    assert "start a server with `leasequeue serve --port 6379`" in outcome.error


async def test_a_lost_connection_is_exit_code_5(leasequeue: Leasequeue, name: str, proxy: Proxy) -> None:
    proxy.cut_after_bytes(0)
    outcome = await leasequeue("add", name, "x", "--url", proxy.url)
    assert (outcome.code, outcome.out) == (5, "")
    assert outcome.error


async def test_a_wrong_password_is_exit_code_5(leasequeue: Leasequeue, make_server: MakeServer) -> None:
    server = await make_server()
    url = f"redis://127.0.0.1:{server.port}"
    async with Redis.from_url(url) as client:
        await client.config_set("requirepass", "secret")
    for given in (url, url.replace("//", "//:wrong@")):
        for arguments in (("ls",), ("ls", "emails")):
            outcome = await leasequeue(*arguments, "--url", given)
            assert (outcome.code, outcome.out) == (5, "")
            assert "check the user and the password" in outcome.error
    assert (await leasequeue("ls", "--url", url.replace("//", "//:secret@"))).code == 0


async def test_a_key_of_another_type_is_exit_code_5(leasequeue: Leasequeue, redis: Redis, name: str) -> None:
    await redis.set(f"{name}:queue", "a string")
    outcome = await leasequeue("add", name, "x")
    assert outcome.code == 5
    assert "choose another name" in outcome.error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "q", "--count", "5000"), "'--count': '5000' is not a whole number from 1 to 1,000"),
        (("show", "q", "--count", "x"), "'--count': 'x' is not a whole number from 1 to 1,000"),
        (("show", "q", "--state", "bad"), "'--state': 'bad' is not one of waiting, leased, scheduled"),
        (("dead", "ls", "q", "--start", "1.5"), "'--start': '1.5' is not a whole number"),
        (("serve", "--port", "0"), "'--port': '0' is not a whole number from 1 to 65,535"),
        (("worker", "a:b", "--processes", "0"), "'--processes': '0' is not a whole number from 1 to 1,000"),
        (("worker", "a:b", "--log-format", "xml"), "'--log-format': 'xml' is not one of text, json"),
        (("demo", "--lease", "nan"), "'--lease': 'nan' is not a number from 0.1 to 60"),
        (("demo", "/nowhere"), "FOLDER: /nowhere is not a folder"),
        (
            ("pipeline", "load", "q", "x", "--format", "xml"),
            "'--format': 'xml' is not one of csv, json, parquet",
        ),
        (("pipeline", "backfill", "q", "x", "--rate", "fast"), "'--rate': 'fast' is not a number"),
    ],
)
def test_an_option_says_what_it_accepts(arguments: tuple[str, ...], error: str) -> None:
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert error in " ".join(outcome.output.replace("│", " ").split())


THEIRS = "keys that begin with 'a:item:' belong to the queue 'a'"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), "name: got '', expected a string of 1 to 512 bytes in UTF-8"),
        (
            ("a:item",),
            f"name: got 'a:item', expected a name without ':item': {THEIRS}",
        ),
    ]
    + [
        (("emails", "--url", url), "url: expected a redis://, rediss:// or unix:// URL")
        for url in ("nothing", "http://:secret@localhost", "")
    ],
)
async def test_an_invalid_name_or_url_is_reported_without_the_password(
    leasequeue: Leasequeue, arguments: tuple[str, ...], error: str
) -> None:
    outcome = await leasequeue("ls", *arguments)
    assert (outcome.code, outcome.out, outcome.error) == (2, "", error)


async def test_the_url_is_the_option_or_leasequeue_url_or_redis_url(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis_url: str
) -> None:
    """The option comes first, then LEASEQUEUE_URL, then REDIS_URL."""
    await queue.add_item(Item(b"x"))
    ask = ("ls", queue.name, "--json")
    for outcome in (
        await leasequeue(*ask, "--url", redis_url, LEASEQUEUE_URL=NO_SERVER, REDIS_URL=NO_SERVER),
        await leasequeue(*ask, LEASEQUEUE_URL=redis_url, REDIS_URL=NO_SERVER),
        await leasequeue(*ask, LEASEQUEUE_URL="", REDIS_URL=redis_url),
    ):
        assert outcome.document["waiting"] == 1


async def test_ctrl_c_ends_a_command(proxy: Proxy) -> None:
    proxy.drop_replies = True
    async with started("ls", "emails", "--url", proxy.url) as process:
        await eventually("it waits for an answer", lambda: bool(proxy.commands), within=120)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert (process.returncode, out, err) == (130, b"", b"")


# ------------------------------------------------------------------------------------------------------ times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5", 1.5), ("500ms", 0.5), ("90s", 90), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800)],
)
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "5 m", "m", "1y", "1h-5m", "inf", "nan", "1e3", "٣s"])
def test_a_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        parse_duration(text)


def test_times_are_formatted_in_utc() -> None:
    assert format_time(None) is None
    assert format_time(0.5) == "1970-01-01T00:00:00.500Z"
    assert format_time(1e30) is not None
