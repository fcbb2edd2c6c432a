"""`leasehold demo` as people run it, and its check, which must notice what goes wrong."""

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

from leasehold.cli.demo import check, describe, files
from tests.eventually import eventually

WORDS = ["lease", "work", "complete", "again", "never", "twice"]


def leasehold_demo(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", "demo", "--workers", "3", *arguments],
        cwd=cwd,
        env=env | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    report: dict[str, Any] = json.loads(out)
    return report


def lines_of(output: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in output.read_bytes().splitlines(keepends=True)]
    assert len(lines) == len({line["id"] for line in lines})
    return {line["id"]: line for line in lines}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with sixty small files, some of them further down."""
    folder = tmp_path / "files"
    for number in range(60):
        path = folder / f"{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(WORDS[: number % 6 + 1] * number) + "\n")
    return folder


# ------------------------------------------------------------------------------------------- the whole of it


def test_each_file_is_once_in_the_output_though_one_worker_is_killed_and_one_stopped(
    folder: Path, tmp_path: Path
) -> None:
    report = report_of(leasehold_demo(folder, "--json", "--lease", "0.5", cwd=tmp_path))
    assert report["ok"]
    assert (report["items"], report["completed_once"], report["left"]) == (60, 60, 0)
    # At least: on a slow machine a lease may end by itself, which is no fault.
    assert report["delivered_again"] >= 2
    assert report["late_refused"] >= 1
    assert report["written_again"] >= 1
    assert all(0 <= seconds < 10 for seconds in report["recovery_seconds"].values())
    assert not any(report[what] for what in ("missing", "doubled", "wrong", "changed", "unreadable"))

    lines = lines_of(tmp_path / "leasehold-demo.jsonl")
    assert len(lines) == 60
    content = (folder / "2" / "5.txt").read_bytes()
    assert lines["2/5.txt"] == {
        "id": "2/5.txt",
        "path": "2/5.txt",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "lines": content.count(b"\n"),
        "words": sorted(([word, 5] for word in WORDS), key=lambda pair: str(pair[0])),
    }
    assert names_in(tmp_path) == ["files", "leasehold-demo.jsonl"]


@pytest.mark.slow
def test_tells_people_what_happens_and_writes_the_same_bytes_each_time(folder: Path, tmp_path: Path) -> None:
    arguments = (folder, "--lease", "0.3", "--workers", "3")
    first = leasehold_demo(*arguments, "--output", tmp_path / "first.jsonl", cwd=tmp_path)
    second = leasehold_demo(*arguments, "--output", tmp_path / "second.jsonl", "--json", cwd=tmp_path)
    out, err = first.communicate()
    report_of(second)
    assert first.returncode == 0, out + err
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "second.jsonl").read_bytes()

    assert re.search(r"completed exactly once +60\b", out)
    assert "each file once" in out
    for what in ("was killed (SIGKILL)", "was stopped (SIGSTOP)", "was refused", "60 of 60"):
        assert what in err
    assert "\x1b" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_accidents_need_no_more_than_one_file(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}").write_text("one two")
    report = report_of(leasehold_demo(folder, "--json", "--lease", "0.3", cwd=tmp_path))
    assert report["completed_once"] == count
    assert report["delivered_again"] >= 2
    assert report["late_refused"] >= 1


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    process = leasehold_demo(folder, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "no file" in out
    assert (tmp_path / "leasehold-demo.jsonl").read_bytes() == b""


def test_odd_names_are_names(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    deep = Path(*["d" * 200] * 3)
    names: list[str | Path] = ["[b]x", "new\nline", " ", "-n", "\x1b[31m", "ünï 🐟", deep / "deep"]
    if sys.platform != "darwin":  # where names are text
        names.append(os.fsdecode(b"\xff\xfe \x80"))
    (folder / deep).mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"text of " + os.fsencode(name))
    (folder / "link").symlink_to(folder / "-n")
    (folder / "round").symlink_to(folder)
    os.mkfifo(folder / "pipe")

    report = report_of(leasehold_demo(folder, "--json", "--lease", "0.3", cwd=tmp_path))
    assert report["completed_once"] == len(names)
    lines = lines_of(tmp_path / "leasehold-demo.jsonl")
    contents = {hashlib.sha256(b"text of " + os.fsencode(name)).hexdigest() for name in names}
    assert {line["sha256"] for line in lines.values()} == contents
    assert lines["ünï 🐟"]["path"] == "ünï 🐟"
    assert max(len(item_id.encode()) for item_id in lines) < 512


@pytest.mark.slow
def test_a_line_that_is_missing_fails_the_demo(folder: Path, tmp_path: Path) -> None:
    # The merge is told to lose a line and to double another one, after which the real check looks at it.
    program = """
import sys
from leasehold.cli.demo import check
merge = check.merge
def careless(parts, output):
    count = merge(parts, output)
    first, second, *others = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join([second, *others, others[-1]]))
    return count
check.merge = careless
from leasehold.cli import main
main()
"""
    command = [sys.executable, "-c", program, "demo", str(folder), "--lease", "0.3"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert "1 missing: 0/0.txt" in result.stdout
    assert "1 doubled: 2/8.txt" in result.stdout


def test_what_cannot_be_used_is_said_at_once(folder: Path, tmp_path: Path) -> None:
    for arguments, complaint in (
        ([tmp_path / "nowhere"], "does not exist"),
        ([folder, "--workers", "2"], "--workers"),
        ([folder, "--output", "/dev/null"], "is no file"),
    ):
        process = leasehold_demo(*arguments, cwd=tmp_path, COLUMNS="200")
        _, err = process.communicate()
        assert process.returncode == 2
        assert complaint in err
    process = leasehold_demo(folder, "--output", "no/such/folder/out.jsonl", cwd=tmp_path)
    assert process.wait() == 1
    process.communicate()


# ---------------------------------------------------------------------------------------------- ended early


def children_of(parent: int) -> set[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for pid, ppid in pairs if int(ppid) == parent}


def running(pids: set[int]) -> set[int]:
    """Which of these processes run; the dead that nobody has buried yet do not."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for pid, state in pairs if not state.startswith("Z")} & pids


def wait_until_stopped(process: subprocess.Popen[str]) -> set[int]:
    """Read what it tells until a worker is stopped; return its children."""
    assert process.stderr
    told = ""
    while "SIGSTOP" not in told:
        told = process.stderr.readline()
        assert told, "it ended early"
    return children_of(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
async def test_ended_early_it_takes_all_processes_with_it(
    how: signal.Signals, code: int, folder: Path, tmp_path: Path
) -> None:
    with leasehold_demo(folder, "--lease", "30", cwd=tmp_path) as process:
        children = wait_until_stopped(process)
        assert len(children) >= 3  # the worker that is stopped, the one that is left, the server's guardian
        process.send_signal(how)
        assert process.wait() == code
        assert process.stderr
        assert "Traceback" not in process.stderr.read()
        await eventually("all children are gone", lambda: not running(children))
    if how != signal.SIGKILL:
        assert names_in(tmp_path) == ["files"]


@pytest.mark.slow
def test_ended_early_it_leaves_no_item_on_a_server_that_is_not_its_own(
    folder: Path, tmp_path: Path, redis_url: str
) -> None:
    with leasehold_demo(folder, "--lease", "2", cwd=tmp_path, REDIS_URL=redis_url) as process:
        wait_until_stopped(process)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with Redis.from_url(redis_url) as client:
        left = [key for key in client.scan_iter(match="leasehold-demo-*") if not key.endswith(b":fence")]
    assert left == []


@pytest.mark.slow
def test_plays_on_the_server_that_redis_url_names(folder: Path, tmp_path: Path, redis_url: str) -> None:
    report = report_of(leasehold_demo(folder, "--json", "--lease", "0.3", cwd=tmp_path, REDIS_URL=redis_url))
    assert report["completed_once"] == 60
    with Redis.from_url(redis_url) as client:
        assert list(client.scan_iter(match="leasehold-demo-*:fence"))


# ------------------------------------------------------------------------------------------------ its pieces

EXPECTED = {"a": {"id": "a", "lines": 1}, "b": {"id": "b", "lines": 2}, "ü\n": {"id": "ü\n", "lines": 3}}


def written(*lines: Any) -> list[bytes]:
    return [describe.dump(line) for line in lines]


def test_the_check_finds_nothing_where_nothing_is_wrong() -> None:
    verdict = check.check(EXPECTED, written(*EXPECTED.values()))
    assert verdict == check.Verdict(missing=[], doubled=[], wrong=[])


def test_the_check_notices_what_is_missing() -> None:
    verdict = check.check(EXPECTED, written(EXPECTED["a"]))
    assert verdict == check.Verdict(missing=["b", "ü\n"], doubled=[], wrong=[])


def test_the_check_notices_what_is_doubled() -> None:
    verdict = check.check(EXPECTED, written(*EXPECTED.values(), EXPECTED["b"], EXPECTED["b"]))
    assert verdict == check.Verdict(missing=[], doubled=["b"], wrong=[])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"id":"b","lines":7}\n', "b"),
        (b'{"id":"b"}\n', "b"),
        (b'{"id":"stranger","lines":1}\n', "stranger"),
        (b'{"id":"b","lines"', '{"id":"b","lines"'),
        (b'["b"]\n', '["b"]\n'),
        (b'{"id":7}\n', '{"id":7}\n'),
        (b"\xff\n", "\ufffd\n"),
    ],
)
def test_the_check_notices_what_is_wrong(line: bytes, name: str) -> None:
    verdict = check.check({"a": EXPECTED["a"]}, [*written(EXPECTED["a"]), line])
    assert verdict == check.Verdict(missing=[], doubled=[], wrong=[name])


def test_merging_keeps_the_highest_token_and_drops_what_a_killed_worker_began(tmp_path: Path) -> None:
    old, new, other = ({"id": "a", "n": 1}, {"id": "a", "n": 2}, {"id": "b", "n": 3})
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "1.jsonl").write_bytes(
        b"".join(written({"token": 9, "line": new}, {"token": 4, "line": other})) + b'{"token":12,"li'
    )
    (parts / "2.jsonl").write_bytes(b"".join(written({"token": 5, "line": old})))
    assert check.merge(parts, tmp_path / "out") == 1
    assert (tmp_path / "out").read_bytes() == b"".join(written(new, other))


def test_words_lines_and_bytes_do_not_depend_on_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"The the THE über Über\n\n{'x' * 65} {'y' * 64} a-b_c"
    (tmp_path / "file").write_text(text)
    whole = describe.describe(tmp_path, b"file")
    assert dict(whole["words"]) == {"the": 3, "über": 1, "Über": 1, "y" * 64: 1, "a": 1, "b": 1, "c": 1}
    assert (whole["lines"], whole["bytes"]) == (2, len(text.encode()))
    for size in (1, 2, 7):
        monkeypatch.setattr(describe, "_CHUNK_BYTES", size)
        assert describe.describe(tmp_path, b"file") == whole


def test_a_file_that_cannot_be_read_is_a_result(tmp_path: Path) -> None:
    line = describe.describe(tmp_path, b"gone\xff")
    assert line["path"] == "gone\\xff"
    assert line["error"] == "FileNotFoundError: No such file or directory"
    assert re.fullmatch("/sha256/[0-9a-f]{64}", line["id"])


def test_the_output_of_the_run_before_is_no_item(folder: Path) -> None:
    (folder / "0" / "out").write_text("lines")
    found, _ = files.find_files(folder, but=folder / "1" / ".." / "0" / "out")
    assert len(found) == 60


def test_a_file_that_somebody_changes_meanwhile_is_told_from_a_wrong_line(folder: Path) -> None:
    found, unreadable = files.find_files(folder, but=folder / "out")
    assert unreadable == 0
    assert check.changed_since(folder, found) == set()
    (folder / "0" / "0.txt").write_text("something else")
    (folder / "1" / "1.txt").unlink()
    assert check.changed_since(folder, found) == {"0/0.txt", "1/1.txt"}


def test_the_standard_library_is_worked_on_without_what_was_installed_into_it() -> None:
    library = files.standard_library()
    found, _ = files.find_files(library, but=library / "out", leave_out=files.NOT_STANDARD)
    paths = {file.path for file in found}
    assert b"asyncio/tasks.py" in paths
    assert not [path for path in paths if b"site-packages" in path or b"__pycache__" in path]
