"""The keys of a terminal, one by one, and whether it has the focus."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import sys
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: One key: a sequence that a terminal sends for it, or a character.
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|.", re.DOTALL)
#: The beginning of a sequence. After so many seconds without the rest, an escape is the key itself.
_BEGINNING, _REST_SECONDS = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?\Z"), 0.1
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
_NAMES = {f"\x1b{mode}{end}": name for mode in "[O" for end, name in _ARROWS.items()} | {
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[Z": "back tab",
    "\x1b[I": "focus",
    "\x1b[O": "blur",
    "\x1b": "escape",
    "\x0c": "redraw",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}


class Keyboard:
    """Calls a function for each key: with its character, or its name; with None when there are no more."""

    def __init__(self, press: Callable[[str | None], None]) -> None:
        self._press = press
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._received = ""
        self._rest: asyncio.TimerHandle | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read keys in a block, and ask for the focus; leave the terminal as it was."""
        fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
        mode = termios.tcgetattr(fd)
        mode[6][termios.VSUSP] = bytes([os.fpathconf(fd, "PC_VDISABLE")])  # the shell would get our screen
        termios.tcsetattr(fd, termios.TCSANOW, mode)
        os.write(sys.stdout.fileno(), b"\x1b[?1004h")
        loop.add_reader(fd, self._read, fd)
        try:
            yield
        finally:
            loop.remove_reader(fd)
            os.write(sys.stdout.fileno(), b"\x1b[?1004l")
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)

    def _read(self, fd: int) -> None:
        try:
            received = os.read(fd, 1 << 12)
        except OSError:  # the terminal is gone
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(fd)
            self._press(None)
        if self._rest is not None:
            self._rest.cancel()
        self._received += self._decode(received)
        begun = _BEGINNING.search(self._received)
        self._take(len(self._received) if begun is None else begun.start())
        if self._received:
            self._rest = asyncio.get_running_loop().call_later(_REST_SECONDS, self._take, len(self._received))

    def _take(self, count: int) -> None:
        text, self._received = self._received[:count], self._received[count:]
        for key in _KEY.findall(text):
            name = _NAMES.get(key, key)
            if name.isprintable():  # no sequence that is not known
                self._press(name)
