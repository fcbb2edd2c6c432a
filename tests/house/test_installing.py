"""The README's install lines, as they are written, in a new environment and an empty folder.

They need a package registry: `make test-pythons` and `make test-long` run them, and `make release`.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.eventually import LIMIT_SECONDS
from tests.house.environment import Environment, new_environment
from tests.house.test_packaging import USERS
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def install_lines(root: Path) -> list[str]:
    """Return the commands of the README that install something, in their order."""
    return re.findall(r"^pip install [^#\n]*[^#\s]", (root / "README.md").read_text(), re.MULTILINE)


def programs(root: Path) -> dict[str, str]:
    """Return the first two programs of the README, by the names of their files."""
    found = re.findall(
        r'^```python title="(\S+)"\n(.*?)^```', (root / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return dict(found[:2])


@pytest.fixture
def python() -> str:
    return sys.executable


@pytest.fixture
def checkout(root: Path) -> Path:
    return root


@pytest.fixture
def environment(root: Path, tmp_path: Path, python: str, checkout: Path) -> Environment:
    """Make an environment whose folder holds nothing but the checkout."""
    made = new_environment(root, tmp_path, python)
    (made.elsewhere / "leasequeue").symlink_to(checkout)
    return made


def install(environment: Environment, line: str) -> None:
    """Run a line as a shell would. pip only warns of an extra that there is not."""
    program, *arguments = shlex.split(line)
    assert {*"".join(re.findall(r"leasequeue\[(.*?)\]", line)).split(",")} <= {"", *USERS}, line
    environment.run(program, *arguments, "--quiet")


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def running(environment: Environment, *arguments: str) -> Iterator[None]:
    """Run a command of the installed program inside the block."""
    with subprocess.Popen(
        [environment.bin / "leasequeue", *arguments],
        cwd=environment.elsewhere,
        env=environment.variables(),
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def test_the_first_program_of_the_readme_runs_where_its_first_line_was_installed(
    root: Path, environment: Environment
) -> None:
    install(environment, install_lines(root)[0])
    port = str(free_port())
    for name, code in programs(root).items():
        patient = code.replace("timeout=30", "timeout=120")  # three programs start beside other tests
        (environment.elsewhere / name).write_text(patient.replace("6379", port))
    serve = ("serve", "--port", port)
    with running(environment, *serve), running(environment, "worker", "app:tasks"):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not accepts(int(port)):
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.1)
        printed = environment.run("python", "add.py")
    assert printed == "Receipt(to='ann@example.org', characters=8)\n"


def test_each_install_line_of_the_readme_installs_this_project(root: Path, environment: Environment) -> None:
    lines = install_lines(root)
    assert len(lines) == 2
    assert all("./leasequeue" in line for line in lines), "it is not on the registry yet"
    table = (root / "README.md").read_text().partition("\n| in brackets")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    extras = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in rows]
    assert len(extras) == 7
    for line in (
        "pip install ./leasequeue",
        *lines,
        *(f'pip install "./leasequeue[{",".join(names)}]"' for names in extras),
    ):
        install(environment, line)
    code = "import importlib.metadata as m, leasequeue; print(m.version('leasequeue'), leasequeue.__name__)"
    assert environment.run("python", "-c", code) == "0.1.0 leasequeue\n"
