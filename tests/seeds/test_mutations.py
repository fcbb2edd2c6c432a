"""Faults put into a copy of the code: the tests that are marked with their row must fail.

A fault is one exact replacement in one file. The marked tests run on the copy in a separate process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.docs.pages import ROOT
from tests.seeds.markers import marked_tests

if TYPE_CHECKING:
    from pathlib import Path

#: The exit code of pytest when tests have failed; others mean that it could not run them.
TESTS_FAILED = 1
COPIED = ("src", "lua", "tests", "pyproject.toml", "README.md", "LICENSE", "docs")
LINKED = ("tests/interop/node_modules",)


class Fault(NamedTuple):
    """In `file`, `old` becomes `new`; the tests of `row` must fail."""

    row: str
    file: str
    old: str
    new: str


#: These run in `make test`: one in Lua, one in Python, one in a setting.
QUICK = [Fault("RWQ-B3", "lua/leases/lib/current.lua", "first and token >= first and token <= last", "first")]

FAULTS = [
    Fault(
        "RWQ-B13",
        "src/leasequeue/durations.py",
        "math.ceil(seconds(argument, value, zero=zero, longest=longest) * 1000)",
        "math.ceil(seconds(argument, value, zero=zero, longest=longest)) * 1000",
    ),
    Fault("RWQ-B18", "pyproject.toml", "dependencies = [\n", 'dependencies = [\n    "uuid",\n'),
    Fault(
        "RWQ-B1",
        "lua/leases/lib/processing.lua",
        "redis.call('EXISTS', data_key(id)) == 1",
        "redis.call('EXISTS', prefix .. ':lease:' .. id) == 1",
    ),
    Fault("RWQ-B2", "lua/leases/fail_many.lua", "redis.call('ZCARD', dead)\n", ""),
    Fault(
        "RWQ-B4", "lua/leases/lib/lease.lua", "redis.pcall(look, key) --", "redis.pcall(look, key) or '' --"
    ),
    Fault("RWQ-B5", "lua/checks/light_clean.lua", "or grace_ms", "or grace_ms * 0"),
    Fault("RWQ-B6", "lua/leases/lib/reclaim.lua", "    in_chunks('ZREM', deadlines, ended)\n", ""),
    Fault(
        "RWQ-B7", "lua/checks/deep_clean_restore.lua", "    or redis.call('EXISTS', data_key(id)) == 0\n", ""
    ),
    Fault("RWQ-B8", "lua/leases/lib/complete.lua", "        others[#others + 1] = id\n", ""),
    Fault("RWQ-B9", "lua/leases/lease_many.lua", "and checked < 1000 do", "and checked < 1 do"),
    Fault("RWQ-B10", "lua/leases/release_many.lua", "redis.call('ZCARD', scheduled)\n", ""),
    Fault(
        "RWQ-B11",
        "src/leasequeue/queue/cleaning.py",
        "partial(_read_queue, engine)",
        "partial(asyncio.sleep, result=([], True))",
    ),
    Fault("RWQ-B12", "src/leasequeue/keys.py", "return escaped(self.prefix)", "return self.prefix"),
    Fault(
        "RWQ-B16",
        "src/leasequeue/queue/queue.py",
        'return Counts(*await self._engine().run("counts"))',
        'a, b = [await self._engine().run("counts") for _ in "ab"]\n        return Counts(*a[:1], *b[1:])',
    ),
    Fault("RWQ-G16", "src/leasequeue/keys.py", 'f"lh:{name}/', 'f"{name}/'),
    Fault("RWQ-O19", "src/leasequeue/keys.py", 'b":item:*"', 'b":*:*"'),
    Fault(
        "GLD-B6",
        "src/leasequeue/worker/acknowledger.py",
        "if not (isinstance(error, LeasequeueError) and (error.transient or is_refusal(error))):",
        "if error:",
    ),
    Fault(
        "GLD-B12", "lua/leases/fail_many.lua", "is_current(id, token, scores[i], records[i])", "records[i]"
    ),
    Fault("GLD-G8", "lua/leases/lib/current.lua", "return not fenced or", "return true or"),
    Fault("GLD-B4", "lua/leases/lib/complete.lua", "if answers[i] == 1 and #values", "if #values"),
    Fault(
        "WRQ-B3",
        "lua/leases/release_many.lua",
        "enter_waiting(to_front, true,",
        "enter_waiting(to_front, false,",
    ),
    Fault(
        "WRQ-B9",
        "src/leasequeue/worker/runtime.py",
        "self._loop.call_soon_threadsafe(run.lose, lease)",
        "pass",
    ),
    Fault("WRQ-B14", "lua/items/lib/cancel.lua", "    redis.pcall('PUBLISH', prefix", "    tostring(prefix"),
    Fault(
        "WRQ-O7",
        "lua/items/cancel_data.lua",
        "redis.call('GET', key) == payload",
        "redis.call('EXISTS', key) == 1",
    ),
    Fault("GLD-O11", "src/leasequeue/worker/worker.py", "loop.call_soon_threadsafe(self._stop, now)", "pass"),
]


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.row, marks=pytest.mark.slow) for fault in QUICK),
        *(pytest.param(fault, id=fault.row, marks=pytest.mark.long) for fault in FAULTS),
    ],
)
def test_a_fault_fails_the_tests_of_its_row(fault: Fault, tmp_path: Path) -> None:
    copy_with(fault, tmp_path)
    tests = marked_tests()[fault.row]
    assert tests
    command = ["-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    result = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == TESTS_FAILED, result.stdout + result.stderr


def test_the_text_of_each_fault_is_in_its_file() -> None:
    """Also those of the long tests, which run seldom."""
    for fault in (*QUICK, *FAULTS):
        assert (ROOT / fault.file).read_text().count(fault.old) == 1, fault


def copy_with(fault: Fault, folder: Path) -> None:
    """Copy the checkout and put a fault into the copy."""
    ignored = shutil.ignore_patterns("node_modules", "__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    file = folder / fault.file
    text = file.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} must have the text of the fault once"
    file.write_text(text.replace(fault.old, fault.new))
