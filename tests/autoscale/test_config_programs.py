"""Whether a file's programs can be started here, as `leasequeue autoscale FILE --check` asks."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale import load_config
from leasequeue.autoscale.config.keys import BACKENDS, DEPLOYMENT_KEYS, FILE_KEYS, HTTP_KEYS, JOB_KEYS
from leasequeue.errors import InvalidConfig

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
name = "media"
[jobs.resize]
[deployments.resize]
backend = "{backend}"
[[deployments.resize.tiers]]
name = "one"
[[deployments.resize.tiers]]
name = "two"
[deployments.resize.{backend}]
{settings}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program, and one that is not executable, which is the current one."""
    for name, mode in (("run", 0o755), ("text", 0o644), ("tools/find", 0o755)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(mode)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problem_of(folder: Path, settings: str, backend: str = "processes") -> str:
    """Return the only problem of a file when its programs are checked; without that, it has none."""
    path = folder / "autoscale.toml"
    path.write_text(FILE.format(backend=backend, settings=settings))
    load_config(path)
    try:
        load_config(path, programs=True)
    except InvalidConfig as error:
        [problem] = str(error).splitlines()
        return problem.removeprefix(f"{path}, ")
    return ""


@pytest.mark.parametrize(
    "settings",
    [
        'command = ["leasequeue", "worker", "app:worker"]',
        'command = ["sh", "-c", "x"]',
        'command = ["./run"]',
        'command = ["./find"]\ndirectory = "tools"',
        'command = ["find"]\nenv = { PATH = "tools" }',
        'command = ["find"]\nenv = { PATH = "." }\ndirectory = "tools"',
    ],
)
def test_a_program_that_can_be_started_is_no_problem(folder: Path, settings: str) -> None:
    assert problem_of(folder, settings) == ""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('command = ["no-such-program"]', "command: there is no program 'no-such-program' in PATH"),
        ('command = ["sh"]\nenv = { PATH = "tools" }', "command: there is no program 'sh' in PATH"),
        ('command = ["./run"]\ndirectory = "tools"', "command: there is no file './run'"),
        ('command = ["tools/"]', "command: there is no file 'tools/'"),
        ('command = ["./text"]', "command: './text' is not executable"),
        ('command = ["sh"]\ndirectory = "nowhere"', "directory: there is no folder 'nowhere'"),
    ],
)
def test_a_program_that_cannot_be_started_is_one_problem_with_its_place(
    folder: Path, settings: str, says: str
) -> None:
    line = 12 if says.startswith("directory") else 11
    place = f"line {line}, deployments.resize.processes."
    problem = problem_of(folder, settings)
    assert problem.startswith(f"{place}{says}; expected a ")
    if "directory" not in settings and "env" not in settings:  # the system agrees
        with pytest.raises(OSError, match=r"No such file|Permission denied|Not a directory"):
            subprocess.run([says.split("'")[1]], check=False, cwd=folder)


def test_both_programs_of_a_command_are_checked(folder: Path) -> None:
    request = 'request = ["./run", "{units}"]\n'
    assert problem_of(folder, request, "command") == ""
    says = problem_of(folder, f'{request}ready = ["./ready"]', "command")
    assert says.startswith("line 12, deployments.resize.command.ready: there is no file './ready'")


@pytest.mark.parametrize("settings", ['command = "leasequeue worker app:worker"', "command = 5", ""])
def test_a_command_that_is_no_list_has_the_same_problem_with_and_without_the_check(
    folder: Path, settings: str
) -> None:
    path = folder / "autoscale.toml"
    path.write_text(FILE.format(backend="processes", settings=settings))
    problems = []
    for programs in (False, True):
        with pytest.raises(InvalidConfig, match="expected a list of words") as caught:
            load_config(path, programs=programs)
        problems.append(str(caught.value))
    assert problems[0] == problems[1]


#: The tables of a file with the keys that each may have.
TABLES = {
    "": FILE_KEYS,
    "[jobs.resize]": JOB_KEYS,
    "[http]": HTTP_KEYS,
    "[deployments.resize]": DEPLOYMENT_KEYS,
    **{f"[deployments.resize.{backend}]": keys for backend, keys in BACKENDS.items()},
}
#: What any key may be set to by mistake.
VALUES = ("0", "-1", "nan", '""', '"x"', "[]", "{}", "true", "[1]", '[""]', "[[]]", "{ a = 1 }", "1979-05-27")
LONG = "x" * 5_000


@pytest.mark.parametrize("table", TABLES)
def test_whatever_a_key_is_set_to_is_accepted_or_has_a_message(folder: Path, table: str) -> None:
    whole = {
        "": {"name": '"media"'},
        "[jobs.resize]": {},
        "[deployments.resize]": {"backend": '"processes"'},
        "[deployments.resize.processes]": {"command": '["leasequeue"]'},
    }
    kind = table.rpartition(".")[2].rstrip("]")
    if kind in BACKENDS:
        whole["[deployments.resize]"] = {"backend": f'"{kind}"'}
    if kind == "command":
        whole[table] = {"request": '["sh", "{units}"]'}
    path = folder / "autoscale.toml"
    for key in TABLES[table]:
        for value in (*VALUES, f'"{LONG}"', f'["{LONG}/x", "{{units}}"]'):
            tables = {**whole, table: {**whole.get(table, {}), key: value}}
            if not table and key in {"jobs", "deployments", "http"}:
                tables = {"": tables[""]}
            path.write_text(
                "\n".join(
                    line
                    for title, said in tables.items()
                    for line in (title, *(f"{name} = {text}" for name, text in said.items()))
                )
            )
            for programs in (False, True):
                with contextlib.suppress(InvalidConfig):
                    load_config(path, programs=programs)
