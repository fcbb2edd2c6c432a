"""What is the same for all commands: help, completion, errors and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
import typer
from redis.asyncio import Redis
from typer.testing import CliRunner

from leasequeue import Item
from leasequeue.cli.app import COMMANDS, app, load
from leasequeue.cli.options import format_time, parse_duration
from leasequeue.cli.pipeline import FORMATS, URL_VARIABLES, facts
from leasequeue.cli.server import DEFAULT_URL
from leasequeue.spark import options
from leasequeue.spark.jobs.load import Format
from tests.cli.program import started, usage_error, use
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
    "top": ("top", "emails"),
    "top, all": ("top",),
    "stats": ("stats", "emails"),
    "stats, all": ("stats",),
    "show": ("show", "emails"),
    "show ID": ("show", "emails", "x"),
    "clean": ("clean", "emails"),
    "cancel": ("cancel", "emails", "x"),
    "promote": ("promote", "emails", "x"),
    "priority": ("priority", "emails", "x", "--level", "3"),
    "tags": ("tags", "emails", "x"),
    "groups": ("groups", "emails", "x"),
    "limits": ("limits", "emails"),
    "pause": ("pause", "emails"),
    "resume": ("resume", "emails"),
    "fsck": ("fsck", "emails"),
    "upgrade": ("upgrade", "emails"),
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
    "flow signal": ("flow", "signal", "emails", "x", "approval", "true"),
    "flow cancel": ("flow", "cancel", "emails", "x"),
}
NO_SERVER = "redis://127.0.0.1:1"
ESTIMATE = ("autoscale", "estimate", "--rate", "50/s", "--service-time", "2s")


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
    titles = [line.strip("╭─╮ ") for line in shown if line.startswith("╭")]
    assert titles == ["Options", "Look at work", "Act on items", "Act on queues", "Run", "Set up"]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.seed("RRQ-T5")
def test_a_command_and_the_overview_have_the_same_text(name: str) -> None:
    assert load(name).help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help


#: Wrong usage, and what is said of it.
USAGE: list[tuple[tuple[str, ...], str]] = [
    (("shov",), "No such command 'shov'. Did you mean 'show'?"),
    (("add", "q"), "give either the data, - for standard input, or --file, or --task"),
    (("add", "q", "x", "--file", "-"), "give either the data, - for standard input, or --file, or --task"),
    (("add", "q", "--file", "-", "--task", "x"), "give either the data, - for standard input, or --file"),
    (("add", "q", "x", "--task", "x"), "cannot be combined with DATA"),
    (("add", "q", "x", "--args", "{}"), "can only be given with --task"),
    (("add", "q", "--task", "x", "--args", "[]"), "is not a JSON object"),
    (("add", "q", "x", "--app", "a:b"), "goes with --task"),
    (("add", "q", "--task", "x", "--app", "a:b", "--url", NO_SERVER), "names the server: no --url"),
    (("add", "q", "--file", "-", "--id", "x"), "cannot be combined with --content-id or --file"),
    (("add", "q", "x", "--content-id", "--id", "x"), "cannot be combined with --content-id or --file"),
    (("add", "q", "x", "--delay", "soon"), "'soon' is not a duration; write 500ms, 30s, 5m, 1h30m, 2d or 1w"),
    (
        ("add", "q", "x", "--delay", "60d"),
        "'60d' is longer than 30d, the longest that is accepted; use --at, which takes any time",
    ),
    (("add", "q", "x", "--expires-in", "31d"), "'31d' is longer than 30d, the longest that is accepted"),
    (("add", "q", "x", "--at", "2030-01-31T09:00"), "not a time with a zone; write 2030-01-31T09:00Z"),
    (("add", "q", "x", "--at", "2030-01-31T09:00Z", "--delay", "5m"), "a delay or a time, not both"),
    (("add", "q", "--file", "/nowhere"), "/nowhere: No such file or directory; 0 items were added"),
    (("add", "q", "x", "--id", ""), "id: got '', expected a string of 1 to 512 bytes"),
    (("add", "q", "x", "--priority", "10"), "from -9 to 9"),
    (("add", "q", "x", "--group", ""), "group"),
    (("show", "q", "--count", "5000"), "'--count': '5000' is not a whole number from 1 to 1,000"),
    (("show", "q", "--state", "bad"), "'--state': 'bad' is not one of waiting, leased, scheduled"),
    (
        ("show", "q", "--state", "dead"),
        "'dead' is not one of waiting, leased, scheduled; `leasequeue dead ls QUEUE` lists dead letters",
    ),
    (("cancel", "q"), "give either ids or --data"),
    (("cancel", "q", "a", "--data", "x"), "give either ids or --data"),
    (("cancel", "q", "a", "--limit", "3"), "goes with --data"),
    (("clean",), "Missing argument 'QUEUE'"),
    (("clean", "q", "--watch", "--every", "0s"), "must be at least 0.1 s"),
    (("clean", "q", "--every", "1s"), "needs --watch"),
    (("clean", "q", "--keep-dead", "1s"), "needs --watch"),
    (("clean", "q", "--lines"), "takes no queues"),
    (("dead", "ls", "q", "--start", "1.5"), "'--start': '1.5' is not a whole number"),
    (
        ("dead", "ls", "q", "--start", "1", "--task", "x"),
        "cannot be combined with --task, --error and --since",
    ),
    (("dead", "requeue", "q", "d1", "--dry-run"), "go with --all, not with ids"),
    (("dead", "requeue", "q", "d1", "--error", "x"), "go with --all, not with ids"),
    (("dead", "requeue", "q"), "give exactly one of ids or --all"),
    (("dead", "requeue", "q", "d1", "--all"), "give exactly one of ids or --all"),
    (("dead", "drop", "q"), "give exactly one of ids, --all or --older-than"),
    (("dead", "drop", "q", "--all", "--older-than", "1d"), "give exactly one of ids, --all or --older-than"),
    (("events", "q", "--publish", "--live"), "--stop, and alone"),
    (("flow", "ls", "q", "--state", "done"), "is not one of active, completed"),
    (("flow", "show", "q", "r", "--mermaid", "--json"), "cannot be combined with --json"),
    (("flow", "signal", "q", "r", "approval", "yes"), "'yes' is not JSON"),
    (("flow", "find", "q", "f", "user_id"), "'user_id' is not a name and a value, such as user_id=62"),
    (("flow", "find", "q", "f", "=62"), "'=62' is not a name and a value, such as user_id=62"),
    (("fsck",), "Missing argument 'QUEUE'"),
    (("limits", "q", "--rate", "0/s"), "expected a rate such as"),
    (("limits", "q", "--rate", "1/s", "--remove", "all"), "cannot be combined"),
    (("mv", "q", "other", "c", "--count", "1"), "not both"),
    (("mv", "q", "q"), "another queue"),
    (("schedule", "rm", "q"), "Missing argument 'NAME'"),
    (("schedule", "add", "q", "s"), "either --every or --cron"),
    (("schedule", "add", "q", "s", "--every", "5m", "--cron", "* * * * *"), "either --every or --cron"),
    (
        ("schedule", "add", "q", "s", "--cron", "* * * * *", "--start", "2030-01-31T09:00Z"),
        "only be given with --every",
    ),
    (("schedule", "add", "q", "s", "--every", "5m", "--tz", "UTC"), "only be given with --cron"),
    (("schedule", "add", "q", "s", "--every", "5m", "--args", "{}"), "only be given with --task"),
    (("schedule", "add", "q", "s", "data", "--every", "5m", "--task", "x"), "cannot be combined with DATA"),
    (
        ("schedule", "add", "q", "s", "--every", "5m", "--task", "x", "--args", "{"),
        "'{' is not a JSON object",
    ),
    (("schedule", "add", "q", "s", "--every", "5m", "--task", "x", "--args", "[]"), "is not a JSON object"),
    *(
        ((*command, "--task", "x", "--args", arguments), says)
        for command in (("add", "q"), ("schedule", "add", "q", "s", "--every", "5m"))
        for arguments, says in (
            ('{"a": NaN}', "is not a JSON object, with names: JSON is malformed"),
            ('{"a": 1e999}', "Number out of range"),
            (r'{"a": "\ud800"}', "is not a JSON object"),
            ('{"a": "\udcff"}', "'utf-8' codec can't decode"),
            ('{"a":' + "[" * 100_000, "maximum recursion depth"),
        )
    ),
    (("acl", "q", "--user", "a b"), "--user"),
    (("stats", "--every", "0.01s"), "must be at least 0.1 s"),
    (("stats", "--port", "70000"), "from 1 to 65,535"),
    (("worker", "a:b", "--processes", "0"), "'--processes': '0' is not a whole number from 1 to 1,000"),
    (("worker", "a:b", "--log-format", "xml"), "'--log-format': 'xml' is not one of text, json"),
    (("worker", "a:b", "--concurrency", "0"), "--concurrency"),
    (("worker", "a:b", "--grace", "-1"), "--grace"),
    (("worker", "a:b", "--exit-on-unhealthy", "50ms"), "--exit-on-unhealthy"),
    (
        ("worker", "a:b", "--url", "redis://localhost"),
        'the program names the server: `TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], "emails")`',
    ),
    (("autoscale", "--once"), "Missing argument 'FILE'"),
    (
        ("autoscale", "estimate", "--rate", "fast"),
        "'fast' is not a rate; write 50/s, 100/m, 5000/h or 20000/d",
    ),
    (("autoscale", "estimate", "--rate", "5/s"), "Missing option '--service-time'"),
    ((*ESTIMATE, "--workers", "0"), "'0' is not a whole number from 1 to 1,000,000"),
    ((*ESTIMATE, "--confidence", "1"), "'1' is not a number from 0.5 to 0.9999"),
    ((*ESTIMATE, "--backlog", "-1"), "'-1' is not a whole number from 0 to 1,000,000,000"),
    ((*ESTIMATE, "--age-target", "40d"), "'40d' is longer than 30d"),
    (("demo", "--lease", "nan"), "'--lease': 'nan' is not a number from 0.1 to 60"),
    (("demo", "/nowhere"), "FOLDER: /nowhere is not a folder"),
    (("pipeline", "load", "q", "x", "--format", "xml"), "'--format': 'xml' is not one of csv, json, parquet"),
    (("pipeline", "backfill", "q", "x", "--rate", "fast"), "'--rate': 'fast' is not a number"),
]


@pytest.mark.parametrize(
    ("arguments", "says"), USAGE, ids=lambda one: " ".join(one)[:100] if isinstance(one, tuple) else ""
)
async def test_wrong_usage_is_refused_before_the_server_is_asked(
    leasequeue: Leasequeue, arguments: tuple[str, ...], says: str
) -> None:
    outcome = await leasequeue(*arguments, stdin=b"x\n", LEASEQUEUE_URL=NO_SERVER)
    assert says in usage_error(outcome)


async def test_old_dead_letters_are_dropped_by_an_age_above_that_of_a_delay(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await use(queue)
    outcome = await leasequeue("dead", "drop", queue.name, "--older-than", "60d", "--yes")
    assert (outcome.code, outcome.out) == (0, "0 dropped\n")


# ------------------------------------------------------------------------------------------------- completion


#: Presses tab after `leasequeue dead drop --o`.
PRESS_TAB = """
source "$1"
COMP_WORDS=(leasequeue dead drop --o)
COMP_CWORD=3
_leasequeue_completion leasequeue
echo "${COMPREPLY[@]}"
complete -p leasequeue
"""


@pytest.fixture
def named_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test name the shell; otherwise it is the one that started the tests."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")


@pytest.mark.usefixtures("named_shell")
async def test_the_completion_script_of_a_shell_is_printed(leasequeue: Leasequeue) -> None:
    for shell in ("bash", "zsh", "fish"):
        outcome = await leasequeue("--show-completion", shell)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"_LEASEQUEUE_COMPLETE=complete_{shell}" in outcome.out


@pytest.mark.usefixtures("named_shell")
async def test_completion_can_be_installed(leasequeue: Leasequeue, tmp_path: Path) -> None:
    outcome = await leasequeue("--install-completion", "bash", HOME=str(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    assert "completion installed" in outcome.out
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
    # Those of `pipeline` start Spark: tests/spark/jobs/test_jobs.py.
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
    outcome = await leasequeue("ls", name, "--url", proxy.url)
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


# ------------------------------------------------------------------------------------- what a command imports


#: Runs commands one after the other, and prints after each which modules have been imported.
PROGRAM = """
import gc, json, sys
from leasequeue.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit:
        pass
    print(json.dumps([gc.isenabled(), *sys.modules]), file=sys.stderr)
"""
#: What takes long to import, and has no part in the command.
NEEDLESS = {"anyio", "leasequeue.alive", "leasequeue.tasks.queue", "leasequeue.worker", "lua", "pydantic"}
#: For the autoscaler's back end for Kubernetes alone.
OF_KUBERNETES = {"lightkube", "httpx2"}


AUTOSCALE = """
name = "media"
[jobs.resize]
[deployments.resize]
backend = "command"
command = { request = ["true", "{units}"] }
"""


async def run(redis_url: str, *commands: tuple[str, ...]) -> tuple[str, list[set[str]]]:
    """Run commands in one process; return what it has printed, and had imported after each of them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, json.dumps(commands)),
        env={**os.environ, "LEASEQUEUE_URL": redis_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    found = []
    for line in err.decode().splitlines():
        collects, *imported = json.loads(line)
        assert collects or "leasequeue.cli.ls" not in imported, "it is off only while a command is imported"
        found.append({*imported})
    assert len(found) == len(commands)
    return out.decode(), found


async def test_a_command_imports_only_what_it_needs(
    queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    """The version and the help no Redis client, items no tables, and tables no workers and tasks."""
    await queue.add_item(Item(b'{"task": "send", "args": {}}', id="x"))
    commands = (("add", queue.name, "hello"), ("show", queue.name, "--json"), ("ls", queue.name))
    (tmp_path / "autoscale.toml").write_text(AUTOSCALE)
    once = ("autoscale", f"{tmp_path / 'autoscale.toml'}", "--once")
    out, found = await run(redis_url, ("--version",), *commands, once)
    version, *items, table, autoscaler = found
    _, [help_] = await run(redis_url, ("--help",))
    assert not {"asyncio", "msgspec", "pydantic", "redis"} & help_
    assert re.match(r"leasequeue \S+\n", out)
    assert not {"asyncio", "msgspec", "pydantic", "redis", "rich.console"} & version
    ours = {name for name in version if name.startswith("leasequeue.")}
    assert ours == {"leasequeue.cli", "leasequeue.cli.app", "leasequeue.lazy"}
    assert not {*NEEDLESS, "rich.console"} & set().union(*items)
    assert not NEEDLESS & table
    assert "leasequeue.autoscale.backends" in autoscaler
    assert not OF_KUBERNETES & autoscaler
    assert f"{queue.name} " in out


WORKER = """
import os, signal
from leasequeue import TaskQueue

tasks = TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], "{name}")

@tasks.task
async def job() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
"""
#: What a worker without probes, telemetry, tables and a server of its own has no use for.
NEEDLESS_FOR_WORKERS = {
    *("http.server", "jinja2", "opentelemetry.exporter.prometheus", "pydantic", "rich.console", "watchfiles"),
    *("wsgiref", "leasequeue.cli.probes", "leasequeue.cli.worker.supervisor", "leasequeue.dashboard"),
    *("leasequeue.embedded", "leasequeue.telemetry.instruments"),
}


async def test_a_worker_imports_only_what_it_needs(
    queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(WORKER.replace("{name}", queue.name))
    await queue.add_item(Item(b'{"task": "job", "args": {}}'))
    command = ("worker", f"{tmp_path / 'program.py'}:tasks", "--log-level", "error")
    _, [imported] = await run(redis_url, command)
    assert not NEEDLESS_FOR_WORKERS & imported
    assert (await queue.counts()).total == 0


# --------------------------------------------------------------------------------------------------- pipeline


def test_a_total_and_a_state_with_the_same_name_are_both_printed() -> None:
    report = {
        "leased": 2381,
        "dead_letters": 81,
        "per_second": 13.150876527552242,
        "wait_p50": 0.126,
        "service_p50": None,
        "now": {"leased": 0, "dead": 81},
    }
    assert facts(report) == {
        "leased": 2381,
        "dead letters": 81,
        "per second": "13.2",
        "wait p50": "126 ms",
        "service p50": None,
        "leased at the end": 0,
        "dead at the end": 81,
    }


#: A program that runs the command line as if Spark were not installed, and prints each exit code.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from leasequeue.cli import main
for arguments in (["--help"], ["load", "--help"], ["redrive", "emails"]):
    sys.argv[1:] = ["pipeline", *arguments]
    try:
        main()
    except SystemExit as end:
        print("exit code", end.code)
"""


def test_without_spark_there_is_help_and_a_job_names_the_extra() -> None:
    program = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout.count("Usage: leasequeue pipeline") == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        *["exit code 0"] * 2,
        "exit code 2",
    ]
    [error] = done.stderr.splitlines()
    assert 'pip install "leasequeue[spark]"' in error


def test_the_options_of_a_job_are_those_of_spark() -> None:
    assert get_args(Format) == FORMATS
    assert (options.URL_VARIABLES, options.DEFAULT_URL) == (URL_VARIABLES, DEFAULT_URL)
