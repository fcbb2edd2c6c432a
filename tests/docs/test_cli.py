"""The page of the command line, as it is built, lists what `--help` lists; its examples are true."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from docs import generated
from leasequeue.cli.app import COMMANDS, app, load
from leasequeue.cli.server import Code
from tests.docs.pages import DOCS, PAGES, REFERENCE, ROOT, blocks, name_of, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer
    from tests.docs.pages import Block

PAGE = REFERENCE / "cli.md"
#: In one place for all commands that speak to a server.
SHARED = {"--url", "--json"}

_OPTION = re.compile(r"^│ (?:[* ]\s+)?(--[a-z-]+)", re.MULTILINE)


@functools.cache
def built() -> str:
    """The page with its generated parts."""
    return generated.on_page_markdown(PAGE.read_text())


def every_command() -> list[str]:
    """The words of each command, those of groups included."""
    return [
        " ".join(filter(None, (name, below)))
        for name in COMMANDS
        for below in getattr(load(name), "commands", {"": None})
    ]


def help_of(command: str) -> str:
    """What `--help` says, on a terminal that is wide enough."""
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"TERMINAL_WIDTH": "300"})
    assert result.exit_code == 0
    return result.output


def section_of(command: str) -> str:
    """The part of the page about a command, as it is built."""
    _, _, rest = built().partition(f"\n## leasequeue {command}\n")
    assert rest, f"the page has no heading for {command}"
    return rest.split("\n## ")[0]


def options_in(section: str) -> set[str]:
    """The options that a part of the page has rows for."""
    return set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))


@pytest.mark.parametrize("command", every_command())
def test_the_page_lists_the_options_that_help_lists(command: str) -> None:
    listed = set(_OPTION.findall(help_of(command))) - {"--help"}
    shared = SHARED if COMMANDS[command.split(maxsplit=1)[0]].epilog else set()
    assert options_in(section_of(command)) | shared == listed


def test_the_page_has_no_command_that_is_not_there() -> None:
    headings = re.findall(r"^## leasequeue (.*)$", built(), re.MULTILINE)
    assert headings == every_command_as_on_the_page()


def every_command_as_on_the_page() -> list[str]:
    """The commands in the order of the page's overview."""
    listed = re.findall(r"^\| \[`([\w-]+)`\]", built(), re.MULTILINE)
    assert {*listed} == {*COMMANDS}
    return sorted(every_command(), key=lambda command: listed.index(command.split()[0]))


def test_the_exit_codes_are_those_of_the_code() -> None:
    listed = [int(cells[0]) for cells in table(PAGE, "### Exit codes")]
    assert listed == [*Code, 130]


@pytest.mark.parametrize(
    "page",
    [PAGE, *(DOCS / "how-to" / f"{name}.md" for name in ("clean", "autoscale", "production"))],
    ids=name_of,
)
async def test_the_examples_say_what_they_are_said_to_say(
    page: Path, make_server: MakeServer, tmp_path: Path
) -> None:
    server = await make_server()
    shown = [block for block in blocks(page) if block.language == "sh" and block.output]
    assert shown
    for block in shown:
        assert said_by(block.code, server, tmp_path) == block.output, f"{name_of(page)}:{block.line}"


def test_every_command_in_a_block_of_shell_is_one_that_the_program_takes() -> None:
    """Most are not run, as they need a cluster or never end; so their names and options are parsed."""
    found = [
        (f"{name_of(page)}:{block.line}", command)
        for page in [*PAGES, ROOT / "SECURITY.md"]
        for block in blocks(page)
        if block.language in {"sh", "console"}
        for command in commands_in(block)
    ]
    assert len(found) > 80
    for place, (name, *arguments) in found:
        try:
            command = load(name)
            if commands := getattr(command, "commands", None):  # of autoscale, `run` may be left out
                command = commands[arguments.pop(0) if arguments[0] in commands else "run"]
            command.make_context(name, arguments)
        except Exception as error:
            error.add_note(f"{place}: leasequeue {name} … {shlex.join(arguments)}")
            raise


def commands_in(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of each `leasequeue` in a block, without redirections and variables."""
    code = re.sub(r"<<'END'.*?^END$", "", block.code, flags=re.DOTALL | re.MULTILINE).replace("\\\n", " ")
    lines = re.findall(r"^\$ (.+)", code, re.MULTILINE) if block.language == "console" else code.splitlines()
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for is_end, words in itertools.groupby(lexer, lambda word: bool(re.fullmatch("[&|;<>()]+", word))):
            program = [] if is_end else [*itertools.dropwhile(lambda word: "=" in word, words)]
            if program[:1] == ["leasequeue"] and not program[1].startswith("-"):
                yield program[1:]


def said_by(script: str, server: EmbeddedServer, folder: Path) -> str:
    """What a script prints, without the spaces at the ends of lines."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={"LEASEQUEUE_URL": server.url, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return re.sub(r" +$", "", result.stdout, flags=re.MULTILINE)
