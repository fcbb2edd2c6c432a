"""The commands, programs and links of the README work, and the first task of the tutorial."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import DOCS, README, ROOT, blocks
from tests.docs.test_examples import run_block
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

TUTORIAL = DOCS / "tutorial.md"


def test_the_commands_of_the_readme_are_targets_of_make() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert named >= {"demo", "test", "bench-rivals"}
    assert named <= targets


def test_the_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\(([^):]+)\)", README.read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a newcomer, in which this process works as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    yield tmp_path
    sys.modules.pop("app", None)


class Terminals:
    """Runs the commands of a page, on another port than the page's.

    Args:
        folder: Where they run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running: list[subprocess.Popen[str]] = []

    def write_programs(self, page: Path) -> None:
        """Write the programs of a page."""
        for block in blocks(page):
            if block.title:
                (self._folder / block.title).write_text(self.on_port(block.code))

    def start(self, command: str) -> str:
        """Start a command, and return its first line."""
        started = subprocess.Popen(
            self.words_of(command),
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(started)
        assert started.stdout is not None
        return started.stdout.readline()

    def words_of(self, command: str) -> list[str]:
        """Return a line of the shell as words, with the programs of this environment."""
        program, *words = shlex.split(self.on_port(command), comments=True)
        words = [word for word in words if word != "&"]
        return [sys.executable, *(["-m", "leasequeue.cli"] if program == "leasequeue" else []), *words]

    def stop(self) -> str:
        """Stop the last command with Ctrl-C, and return what it has printed since its first line."""
        process = self._running.pop()
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=120)[0]

    def stop_all(self) -> None:
        """Stop the commands that run."""
        while self._running:
            self.stop()

    def on_port(self, code: str) -> str:
        """Return a block, or a line, for the port of these terminals."""
        return code.replace("6379", str(self._port))


@pytest.fixture
def terminals(folder: Path) -> Iterator[Terminals]:
    terminals = Terminals(folder)
    yield terminals
    terminals.stop_all()


def commands_of(page: Path) -> list[str]:
    """Return the lines of the shell of a page, in order."""
    return [line for block in blocks(page) if block.language == "sh" for line in block.code.splitlines()]


@pytest.mark.slow
def test_the_first_blocks_of_the_readme_run_as_they_are_pasted(terminals: Terminals, folder: Path) -> None:
    """Bash reads the block from its input, as from a terminal; what the block starts, it stops."""
    terminals.write_programs(README)
    _, pasted, *_ = (block for block in blocks(README) if block.language == "sh")
    programs = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = subprocess.run(
        ["bash"],
        input=terminals.on_port(pasted.code),
        cwd=folder,
        env=programs,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert pasted.output in shell.stdout
    assert "1 completed" in shell.stderr, "the worker has stopped"
    assert shell.stdout.endswith("Stopped.\n"), "the server has stopped"


def test_no_block_of_shell_that_is_pasted_has_a_comment() -> None:
    """Zsh takes the `#` of a line that is typed for an argument."""
    pasted = [block.code for page in (README, TUTORIAL) for block in blocks(page) if block.language == "sh"]
    assert pasted
    assert not [code for code in pasted if " #" in code]


@pytest.mark.slow
def test_the_task_of_the_tutorial_runs(terminals: Terminals, capsys: pytest.CaptureFixture[str]) -> None:
    page = TUTORIAL
    terminals.write_programs(page)
    _, serve, worker, prompt = commands_of(page)
    assert "is running" in terminals.start(serve)
    assert terminals.start(worker)
    assert prompt == "python -m asyncio"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.reason:
                run_block(page, block, runner, namespace)
                assert capsys.readouterr().out == block.output


def test_the_blocks_of_the_tutorial_can_be_pasted_into_a_prompt() -> None:
    """Before Python 3.13, an empty line has to end a block of code before the next statement."""
    for block in blocks(TUTORIAL):
        lines = block.code.splitlines() if block.language == "python" and not block.title else []
        for line, following in itertools.pairwise(lines):
            if line.startswith(" ") and following and not following.startswith((" ", ")", "]", "}")):
                assert following.startswith(("except", "else", "elif", "finally")), following
