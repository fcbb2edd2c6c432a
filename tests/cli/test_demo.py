"""`leasequeue demo` as a process, and its parts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from leasequeue.cli.app import app
from leasequeue.cli.demo import run, workers
from tests.cli.program import run_process, started
from tests.processes import gone

DEMO = ("demo", "--workers", "3")


def lines_of(output: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in output.read_bytes().splitlines(keepends=True)]
    assert len(lines) == len({line["id"] for line in lines})
    return {line["id"]: line for line in lines}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with sixty small files, some of them in subfolders."""
    folder = tmp_path / "files"
    for number in range(60):
        path = folder / f"{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one line\n" * number)
    return folder


# --------------------------------------------------------------------------------------------- the whole demo


async def test_each_file_is_in_the_output_once_although_one_worker_is_killed_and_one_is_stopped(
    folder: Path, tmp_path: Path
) -> None:
    deep = Path(*["d" * 200] * 3)
    odd: list[str | Path] = ["[b]x", "new\nline", " ", "-n", "\x1b[31m", "ünï 🐟", deep / "deep"]
    if sys.platform != "darwin":  # where names are text
        odd.append(os.fsdecode(b"\xff\xfe \x80"))
    (folder / deep).mkdir(parents=True)
    for name in odd:
        (folder / name).write_bytes(b"text of " + os.fsencode(name))
    (folder / "link").symlink_to(folder / "-n")
    (folder / "round").symlink_to(folder)
    os.mkfifo(folder / "pipe")

    code, out, err = await run_process(*DEMO, folder, "--json", "--lease", "0.5", cwd=tmp_path)
    assert code == 0, out + err
    report = json.loads(out)
    assert (report["ok"], report["problems"]) == (True, [])
    assert report["items"] == report["completed_once"] == 60 + len(odd)
    # More on a slow machine, where a lease may expire while its worker waits for a processor.
    assert report["leased_again"] >= 2
    assert report["late_lines"] >= 1
    # An item that was sent to the stopped worker waits until that is known to be dead, for 10 s and more.
    assert 0 <= report["recovery_seconds"] < 30

    lines = lines_of(tmp_path / "leasequeue-demo.jsonl")
    content = (folder / "2" / "5.txt").read_bytes()
    assert lines["2/5.txt"] == {
        "id": "2/5.txt",
        "path": "2/5.txt",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "lines": 5,
    }
    hashes = {line["sha256"] for line in lines.values() if not line["path"].endswith(".txt")}
    assert hashes == {hashlib.sha256(b"text of " + os.fsencode(name)).hexdigest() for name in odd}
    assert lines["ünï 🐟"]["path"] == "ünï 🐟"
    assert max(len(item_id.encode()) for item_id in lines) <= 512
    assert names_in(tmp_path) == ["files", "leasequeue-demo.jsonl"]


@pytest.mark.slow
async def test_a_single_file_on_the_server_that_redis_url_names_is_enough(
    tmp_path: Path, redis_url: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "[b]file").write_text("one line\n")
    options = ("--lease", "0.3")
    code, out, err = await run_process(*DEMO, folder, *options, cwd=tmp_path, REDIS_URL=redis_url)
    assert code == 0, out + err
    assert "1 of 1 items were completed exactly once" in out
    assert "each file is in the output once" in out
    for text in ("sent SIGKILL to a worker that holds [b]file", "SIGSTOP", "SIGCONT"):
        assert text in err
    assert "\x1b" not in out + err
    assert keys_left(redis_url) == []


def keys_left(redis_url: str) -> list[bytes]:
    """Return the keys that hold items or events of demos on a server."""
    with Redis.from_url(redis_url) as client:
        keys = [*client.scan_iter(match="leasequeue-demo-*")]
    # The counter of tokens stays, and so does, until another worker comes, what a killed one has registered.
    stays = (b":fence", b":sessions", b":idle", b":workers", b":heartbeats")
    return [key for key in keys if not key.endswith(stays)]


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    (tmp_path / "files").mkdir()
    result = CliRunner().invoke(app, ["demo", str(tmp_path / "files"), "--output", str(output)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no file in {tmp_path / 'files'}" in result.stderr
    assert not output.exists()


def test_what_is_wrong_with_the_output_fails_the_demo(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"

    async def careless(demo: run.Demo) -> dict[str, Any]:
        lines = [run.dump(workers.describe(demo.folder, path)) for _, path in sorted(demo.files.items())]
        output.write_bytes(b"".join([*lines[1:], lines[-1]]))
        demo.say("a file named [b]file")
        return demo._report([], late=1, left=0)

    monkeypatch.setattr(run.Demo, "run", careless)
    result = CliRunner().invoke(app, ["demo", str(folder), "--output", str(output)])
    assert result.exit_code == 1, result.output
    assert "missing: 0/0.txt\nduplicated: 2/8.txt\n60 items were not completed exactly" in result.stdout
    assert "[b]file" in result.stderr


def test_unusable_arguments_are_refused(folder: Path, tmp_path: Path) -> None:
    for arguments, complaint in (
        (["/nowhere"], "/nowhere is not a folder"),
        ([folder, "--workers", "2"], "--workers"),
        ([folder, "--output", "/dev/null"], "is not a regular file"),
    ):
        result = CliRunner().invoke(app, ["demo", *map(str, arguments)])
        assert result.exit_code == 2
        assert complaint in " ".join(result.stderr.replace("│", " ").split())
    result = CliRunner().invoke(app, ["demo", str(folder), "--output", str(tmp_path / "no" / "out.jsonl")])
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr


# -------------------------------------------------------------------------------------------- ended early


def children_of(parent: int) -> set[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for pid, ppid in pairs if int(ppid) == parent}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
async def test_a_signal_ends_all_processes_and_leaves_no_item_on_a_server(
    number: signal.Signals, code: int, folder: Path, tmp_path: Path, redis_url: str
) -> None:
    # With its own server, that must end, too.
    environment = {"REDIS_URL": redis_url} if number == signal.SIGINT else {}
    command = (*DEMO, folder, "--lease", "2")
    async with started(*command, cwd=tmp_path, environment=environment) as process:
        assert process.stderr
        while b"SIGSTOP" not in (line := await process.stderr.readline()):
            assert line, "it ended early"
        children = children_of(process.pid)
        assert children
        process.send_signal(number)
        assert await process.wait() == code
        assert b"Traceback" not in await process.stderr.read()
        await gone(*children)
    if number != signal.SIGKILL:
        assert names_in(tmp_path) == ["files"]
        assert keys_left(redis_url) == []


# ------------------------------------------------------------------------------------------------ its parts

A, B, C = {"id": "a", "lines": 1}, {"id": "b", "lines": 2}, {"id": "ü\n", "lines": 3}


def written(*lines: Any) -> list[bytes]:
    return [run.dump(line) for line in lines]


@pytest.mark.parametrize(
    ("output", "problems"),
    [
        (written(A, B, C), []),
        (written(A), ["missing: b", "missing: ü\\n"]),
        (written(A, B, C, B, B), ["duplicated: b"]),
        (written(A, {"id": "b", "lines": 7}, C), ["missing: b", 'wrong: {"id": "b", "lines": 7}']),
        (written(A, B, C, {"id": "stranger"}), ['wrong: {"id": "stranger"}']),
        ([*written(A, C), b'{"id": "b", "lines"'], ["missing: b", 'wrong: {"id": "b", "lines"']),
        ([*written(A, B, C), b"\xff\x1b\n"], ["wrong: \\xff\\x1b"]),
    ],
)
def test_the_check_finds_missing_duplicated_and_wrong_lines(output: list[bytes], problems: list[str]) -> None:
    assert run.check([A, B, C], output) == problems


def test_merging_keeps_the_line_with_the_highest_token_and_drops_half_a_line(tmp_path: Path) -> None:
    old, new, other = ({"id": "a", "n": 1}, {"id": "a", "n": 2}, {"id": "b", "n": 3})
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "1.jsonl").write_bytes(
        b"".join(written({"token": 10, **new}, {"token": 4, **other})) + b'{"token":12,"id'
    )
    (parts / "2.jsonl").write_bytes(b"".join(written({"token": 9, **old})))
    assert run.merge(parts, tmp_path / "out") == 1
    assert (tmp_path / "out").read_bytes() == b"".join(written(new, other))


def test_a_file_that_cannot_be_read_has_a_line_with_the_error(tmp_path: Path) -> None:
    line = workers.describe(tmp_path, b"gone\xff")
    assert line["path"] == "gone\\xff"
    assert line["error"] == "FileNotFoundError: No such file or directory"
    assert re.fullmatch("/sha256/[0-9a-f]{64}", line["id"])


def test_the_output_of_an_earlier_demo_and_compiled_files_are_left_out(folder: Path) -> None:
    (folder / "0" / "out").write_text("lines")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "compiled").write_text("")
    errors: list[OSError] = []
    output = folder / "1" / ".." / "0" / "out"
    assert len(workers.find_files(folder, output=output, on_error=errors.append)) == 60
    assert errors == []
