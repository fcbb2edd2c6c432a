"""The composed scripts: written whole by any number of processes, and refused if they are missing or old."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue.wire.scripts import LINES, SCRIPTS, find_script, load
from lua.compose.linker import BrokenContract
from lua.compose.writer import Sources

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
COMPOSE = [
    sys.executable,
    "-S",
    "-m",
    "lua.compose",
]  # nothing but Python is installed where a wheel is built
LOAD = [sys.executable, "-c", "from leasequeue.wire.scripts import load; print(len(load()))"]


#: The scripts of the copies below, which use all constants: composing all scripts takes seconds.
FEW = {
    *("counts", "sample_queue", "fsck_leases", "fsck_entries", "fsck_lanes", "move_items", "delete_queue"),
    "run_once",
    "emit_chunks",
}


def other_scripts(folder: str, names: list[str]) -> set[str]:
    """Return which files of a folder of `lua/` are scripts beside these few."""
    left_out = {name for name in names if name.endswith(".lua") and name.removesuffix(".lua") not in FEW}
    return {"__pycache__"} | (set() if Path(folder).name == "lib" else left_out)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of what composes and loads scripts, with a few files of scripts, not composed yet."""
    shutil.copytree(ROOT / "lua", tmp_path / "lua", ignore=other_scripts)
    package, copied = ROOT / "src/leasequeue", tmp_path / "src/leasequeue"
    for folder in ("wire", "errors"):
        (copied / folder).mkdir(parents=True)
    wire = package / "wire/__init__.py", package / "wire/scripts.py"
    for file in (*package.glob("*.py"), *package.glob("errors/*.py"), *wire):
        shutil.copy(file, copied / file.relative_to(package))
    return tmp_path


@pytest.fixture
def composed(checkout: Path) -> Path:
    """Return such a copy with its scripts."""
    assert run(checkout, *COMPOSE).returncode == 0
    return checkout


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def written(checkout: Path) -> dict[str, bytes]:
    """Return the files that composing has written, also those that it has left behind."""
    folder = checkout / "src/leasequeue/wire"
    return {path.name: path.read_bytes() for path in folder.iterdir() if ".json" in path.name}


def test_all_scripts_are_read_once_and_are_those_of_lua() -> None:
    assert load() is load()
    assert find_script("lease_many") is load()["lease_many"]
    composed = Sources.read().compose()
    assert {name: (script.keys, script.arguments, script.events) for name, script in load().items()} == {
        name: (script.keys, script.arguments, script.events) for name, script in composed.items()
    }
    for name, script in load().items():
        assert (script.name, script.body, script.sha) == (name, composed[name].body, composed[name].sha)
        assert (script.commands, script.calls) == (composed[name].commands, composed[name].calls)


def test_nothing_is_composed_again_while_nothing_changes(composed: Path) -> None:
    before = written(composed)
    assert {*before} == {SCRIPTS, LINES}
    assert "Composed" not in run(composed, *COMPOSE).stdout
    file = composed / "lua/lanes/lib/lanes.lua"
    file.write_bytes(file.read_bytes())  # only its time is another
    assert "Composed" not in run(composed, *COMPOSE).stdout
    assert run(composed, *LOAD).returncode == 0
    assert written(composed) == before


@pytest.mark.slow
def test_processes_that_compose_at_once_leave_one_whole_result(checkout: Path) -> None:
    processes = [subprocess.Popen(COMPOSE, cwd=checkout, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    files = written(checkout)
    assert {*files} == {SCRIPTS, LINES}
    assert json.loads(files[SCRIPTS])["scripts"].keys() == FEW
    assert run(checkout, *LOAD).stdout.split() == [str(len(FEW))]


@pytest.mark.slow
@pytest.mark.parametrize("name", [SCRIPTS, LINES])
def test_a_process_that_is_killed_leaves_the_old_files_or_the_new_ones(composed: Path, name: str) -> None:
    before = written(composed)
    file = composed / "lua/reading/counts.lua"
    file.write_text(file.read_text() + "\nlocal more = 1\n")
    program = (
        "import os, pathlib; from lua.compose.writer import refresh; replace = pathlib.Path.replace\n"
        f"def kill(one, other): other.name == '{name}' and os.kill(os.getpid(), 9); replace(one, other)\n"
        "pathlib.Path.replace = kill; refresh()"
    )
    assert run(composed, sys.executable, "-c", program).returncode == -9
    after = written(composed)
    assert after[SCRIPTS] == before[SCRIPTS]
    assert json.loads(after[LINES])
    [left] = after.keys() - before.keys()
    os.utime(composed / "src/leasequeue/wire" / left, (0, 0))
    assert "Composed" in run(composed, *COMPOSE).stdout
    assert written(composed).keys() == before.keys()
    assert b"local more=1" in written(composed)[SCRIPTS]
    assert run(composed, *LOAD).returncode == 0


def changed(file: Path) -> None:
    file.write_text(file.read_text().replace("redis.call('EXISTS'", "redis.call('TYPE'", 1))


def kept_time(file: Path) -> None:
    """Change a file, and give it the time that it had."""
    stat = file.stat()
    changed(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("change", [changed, kept_time, Path.unlink])
def test_scripts_older_than_their_sources_are_refused(composed: Path, change: Callable[[Path], None]) -> None:
    change(composed / "lua/lanes/lib/controlled.lua")
    refused = run(composed, *LOAD)
    assert (
        "RuntimeError: lua/ has changed since its scripts were composed: run `make scripts`" in refused.stderr
    )


def test_missing_scripts_are_an_error_that_says_what_to_do(checkout: Path) -> None:
    missing = run(checkout, *LOAD).stderr
    assert "FileNotFoundError: there is no " in missing
    assert "reinstall leasequeue; in a checkout, run `make scripts` or `pip install -e .`" in missing


def test_a_file_that_breaks_a_rule_is_named_and_nothing_is_written(checkout: Path) -> None:
    file = checkout / "lua/reading/counts.lua"
    file.write_text(file.read_text().replace("-- Cost:", "-- Price:"))
    refused = run(checkout, *COMPOSE)
    assert (refused.returncode, refused.stderr) == (1, "lua: counts: the header lacks Cost\n")
    assert written(checkout) == {}


def test_no_two_files_have_the_same_name() -> None:
    with pytest.raises(BrokenContract, match=r"^lua/b/lib/one\.lua: has the name of lua/a/one\.lua$"):
        Sources({"a/one": "", "a/two": "", "b/lib/one": ""})


def test_each_script_is_written_into_a_file_for_linters(checkout: Path) -> None:
    assert run(checkout, *COMPOSE, "--into", "there").returncode == 0
    files = {path.stem: path.read_bytes() for path in (checkout / "there").iterdir()}
    assert files == {name: load()[name].body + b"\n" for name in FEW}
    assert "usage" in run(checkout, *COMPOSE, "--dump").stderr
