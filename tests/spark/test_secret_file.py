"""The file that holds a URL with a password is removed however its process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue.spark.options import server_options
from leasequeue.spark.secret_file import PREFIX
from tests.eventually import eventually
from tests.spark.programs.faults import is_there

if TYPE_CHECKING:
    from asyncio.subprocess import Process

URL = "redis://user:secret@localhost"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def holders(folder: Path, *kinds: str) -> tuple[Process, dict[str, tuple[int, Path]]]:
    """Start processes that hold a file each; return their ids and files by kind."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.spark.programs.secret_program", *kinds),
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    found = {}
    for _ in kinds:
        assert process.stdout
        kind, pid, file = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()
        found[kind] = int(pid), Path(file)
    return process, found


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that this one has started."""
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]


def files_in(folder: Path) -> set[Path]:
    """Return the files of a folder."""
    return {*folder.iterdir()}


async def test_the_file_is_removed_however_the_process_ends(folder: Path) -> None:
    endings = {"plain": "TERM", "plain2": "HUP", "plain3": "INT", "plain4": "KILL", "thread": "TERM"}
    endings |= {"handler": "TERM", "exit": "", "forks": ""}
    process, found = await holders(folder, *endings)
    for kind, (pid, file) in found.items():
        assert file.read_text() == URL
        assert file.stat().st_mode & 0o777 == 0o600
        if endings[kind]:
            os.kill(pid, signal.Signals[f"SIG{endings[kind]}"])
    output, _ = await asyncio.wait_for(process.communicate(b""), 60)
    assert output == b"handled\n", "its own handler has run, as if there were no file"
    await eventually("all files are removed", lambda: not files_in(folder))


async def test_a_file_left_by_a_power_failure_is_removed_at_the_next_start(folder: Path) -> None:
    """The watching child is killed before its parent, as if all ended at once."""
    process, found = await holders(folder, "plain", "plain2")
    (pid, left), (other, held) = found["plain"], found["plain2"]
    strange = folder / f"{PREFIX}link"
    strange.symlink_to(held)
    for child in children_of(pid):
        os.kill(child, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    await eventually("it has ended", lambda: not is_there(pid))
    assert left.read_text() == URL
    with server_options(URL) as options:
        assert files_in(folder) == {held, strange, Path(options["urlFile"])}, "those in use stay"
    os.kill(other, signal.SIGTERM)
    await asyncio.wait_for(process.communicate(b""), 60)
    await eventually("its own child has removed it", lambda: not held.exists())


async def test_a_signal_to_the_group_of_the_process_does_not_reach_the_watching_child(folder: Path) -> None:
    """As a terminal that is closed sends it, and a scheduler that kills a whole group."""
    process, _ = await holders(folder, "plain")
    os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait_for(process.communicate(b""), 60)
    await eventually("the file is removed", lambda: not files_in(folder))


def test_a_block_leaves_neither_file_nor_child(folder: Path) -> None:
    before = children_of(os.getpid())
    with server_options("redis://localhost") as options:
        assert options == {"url": "redis://localhost"}, "there is nothing to hide"
    with server_options(URL) as options:
        assert "secret" not in str(options)
        assert Path(options["urlFile"]).parent == folder
        assert len(children_of(os.getpid())) == len(before) + 1
    assert children_of(os.getpid()) == before
    assert not files_in(folder)
