"""The screen of `leasequeue top`: which table is shown and how, what keys do, and when to read again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from typing import TYPE_CHECKING

from rich.layout import Layout
from rich.live import Live
from rich.text import Text

from leasequeue.cli.formatting import cell, console, table_of
from leasequeue.cli.server import Code, explain, until_signal
from leasequeue.cli.top.keyboard import Keyboard
from leasequeue.cli.top.tables import TABLES, Act, Row
from leasequeue.errors import LeasequeueError, ServerError
from leasequeue.errors.describing import NAME_LENGTH, plain, text_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leasequeue.cli.top.readings import Readings

#: The time between two readings: so many times as long without the focus, or as long as one took.
UNFOCUSED_TIMES, TOOK_TIMES = 5.0, 4.0
#: How often ages are drawn again (s), and how many lines are not rows.
DRAW_SECONDS, OTHER_LINES = 1.0, 4
_NAMES = [*TABLES]
_HELP = """\
1 2 3 4, Tab   queues, workers, runs, dead letters
↑ ↓, k j       choose a row; also PgUp, PgDn, Home, End
← →            sort by another column; ▲ or ▼ marks it
r              reverse the order
/              filter: Enter keeps it, in all tables; Esc removes it
p              pause the display, or continue
Ctrl-L         draw again
q, Ctrl-C      quit

Uppercase letters act on the chosen row, and ask before:
"""


class Screen:
    """Shows one table at a time, and follows keys."""

    def __init__(self, readings: Readings, *, every: float) -> None:
        for variable in ("COLUMNS", "LINES"):
            os.environ.pop(variable, None)  # an exported one would win over the size, which may change
        self._readings, self._every, self._console = readings, every, console()
        self._place = re.sub("//.*@", "//", readings.url)  # without a password
        self._name = "queues"
        #: By which column each table is sorted, and whether the greatest comes first.
        self._orders = dict.fromkeys(TABLES, (0, False))
        self._filter, self._typing = "", False
        self._focused, self._paused, self._helps, self._ended = True, False, False, False
        self._chosen: tuple[str, ...] | None = None
        self._rows: list[Row] = []
        self._shown: list[str] = []
        self._read_at = time.monotonic()
        self._problem = self._message = ""
        self._question: Act | None = None
        self._acting: set[asyncio.Task[None]] = set()
        self._changed, self._hurry = asyncio.Event(), asyncio.Event()

    async def run(self) -> Code:
        """Show the tables until the user quits."""
        # A warning of a library would be drawn over them.
        logging.basicConfig(handlers=[logging.NullHandler()])
        logging.captureWarnings(capture=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._changed.set)
        return await until_signal(self._show()) or Code.DONE

    async def _show(self) -> Code:
        live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live, Keyboard(self._press).reading():
            reading = asyncio.create_task(self._keep_reading())
            try:
                while not self._ended and not reading.done():
                    self._changed.clear()
                    live.update(self._drawn(), refresh=True)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), DRAW_SECONDS)
            finally:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
        return Code.DONE

    async def _keep_reading(self) -> None:
        while True:
            began = time.monotonic()
            self._hurry.clear()
            try:
                if not self._paused:
                    await self._readings.read(self._name, self._shown)
                    self._problem, self._read_at = "", time.monotonic()
            except ServerError as error:
                self._problem = explain(error)
            self._changed.set()
            took = time.monotonic() - began
            pause = self._every * (1.0 if self._focused else UNFOCUSED_TIMES)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(pause - took, TOOK_TIMES * took))

    # ------------------------------------------------------------------------------------------------ drawing

    def _drawn(self) -> RenderableType:
        width, height = self._console.size
        body = self._help() if self._helps else self._table(max(1, height - OTHER_LINES))
        tabs = [(f"{at} {name}", "reverse" * (name == self._name)) for at, name in enumerate(_NAMES, 1)]
        top = Text("  ").join([*(Text(*tab) for tab in tabs), Text(plain(self._place), "dim")])
        lines = (top, self._state(), self._bottom())
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        layout = Layout()
        sizes = zip((lines[0], lines[1], body, lines[2]), (1, 1, None, 1), strict=True)
        layout.split_column(*(Layout(part, size=size) for part, size in sizes))
        return layout

    def _state(self) -> Text:
        """Return the line that says how old the tables are, and what is missing."""
        if self._problem:
            age = time.monotonic() - self._read_at
            return Text(plain(f"trying again, for {age:.0f} s: {self._problem}"), "bold red")
        if self._paused:
            return Text("the display is paused: p continues", "bold yellow")
        count = f"{len(self._rows):,} {self._name}" + " or more" * (self._name in self._readings.cut)
        facts = [count, "" if self._focused else "slower without the focus", *self._readings.notes()]
        return Text(plain(" · ".join(filter(None, facts))), "dim")

    def _table(self, height: int) -> RenderableType:
        table, (column, descending) = TABLES[self._name], self._orders[self._name]
        rows = [row for row in table.rows(self._readings) if self._passes(row)]
        known = [row for row in rows if row.cells[column] is not None]
        known.sort(key=lambda row: (row.cells[column], row.key), reverse=descending)
        self._rows = [*known, *(row for row in rows if row.cells[column] is None)]
        at = self._at()
        first = max(0, min(at - height // 2, len(rows) - height))
        page = self._rows[first : first + height]
        self._shown = [row.key[0] for row in page] if self._name == "queues" else []
        mark = " ▼" if descending else " ▲"
        titles = [title + mark * (number == column) for number, title in enumerate(table.titles)]
        return table_of(titles, [row.cells for row in page], selected=at - first)

    def _passes(self, row: Row) -> bool:
        wanted = self._filter.casefold()
        return not wanted or any(wanted in cell(one).casefold() for one in row.cells if one is not None)

    def _bottom(self) -> Text:
        if self._question is not None:
            return Text(f"y: yes, any other key: no · {plain(self._question.words)}?", "bold reverse")
        if self._typing:
            return Text(f"/{plain(self._filter)}▏", "bold")
        kept = f"filter /{plain(self._filter)} · " * bool(self._filter)
        return Text(kept + (plain(self._message) or f"? help · q quit · {TABLES[self._name].help}"))

    def _help(self) -> Text:
        return Text(_HELP + "\n".join(f"  {name:13}{table.help}" for name, table in TABLES.items()))

    # --------------------------------------------------------------------------------------------------- keys

    def _press(self, key: str | None) -> None:
        self._changed.set()
        if key in {"focus", "blur"}:
            self._focused = key == "focus"
            self._hurry.set()
        elif key is None:
            self._ended = True
        elif self._question is not None:
            act, self._question = self._question, None
            if key == "y":
                self._acting.add(task := asyncio.create_task(self._act(act)))
                task.add_done_callback(self._acting.discard)
        elif self._typing:
            self._type(key)
        else:
            self._message = ""
            self._follow(key)

    def _type(self, key: str) -> None:
        if key in {"escape", "backspace"}:
            self._filter = self._filter[:-1] if key == "backspace" else ""
        elif len(key) == 1:
            self._filter = (self._filter + key)[:NAME_LENGTH]
        self._typing = key not in {"enter", "escape"}

    def _follow(self, key: str) -> None:
        page = max(1, self._console.height - OTHER_LINES)
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": page, "page up": -page}
        steps |= {"end": len(self._rows), "home": -len(self._rows)}
        if key in steps and self._rows:
            self._chosen = self._rows[max(0, min(self._at() + steps[key], len(self._rows) - 1))].key
        elif key in {"1", "2", "3", "4", "tab", "back tab"}:
            turned = _NAMES.index(self._name) + (1 if key == "tab" else -1)
            self._name = _NAMES[int(key) - 1 if key.isdecimal() else turned % len(_NAMES)]
            self._chosen, self._rows = None, []
            self._hurry.set()
        elif key in {"left", "right", "r"}:
            self._order(key)
        elif key in TABLES[self._name].acts and self._rows:
            self._question = TABLES[self._name].acts[key](self._readings, self._rows[self._at()].subject)
        elif key == "p":
            self._paused = not self._paused
            self._hurry.set()
        elif key == "redraw":
            self._console.clear()
        elif key == "escape" and not self._helps:
            self._filter = ""
        self._typing = key == "/"
        self._helps = key == "?" and not self._helps
        self._ended = key == "q"

    def _order(self, key: str) -> None:
        column, descending = self._orders[self._name]
        if key != "r":
            column = (column + (1 if key == "right" else -1)) % len(TABLES[self._name].titles)
            values = [one for row in self._rows if (one := row.cells[column]) is not None]
            descending = not values or isinstance(values[0], str)  # numbers: the greatest first
        self._orders[self._name] = column, not descending

    async def _act(self, act: Act) -> None:
        try:
            done = await act.run() not in (False, [False])
            self._message = f"{act.words}: {'done' if done else 'not done, as it is gone or has ended'}"
        except LeasequeueError as error:
            self._message = text_of(error)
        self._hurry.set()

    def _at(self) -> int:
        """Return the place of the chosen row; the first one if it is gone, or none was chosen."""
        return next((at for at, row in enumerate(self._rows) if row.key == self._chosen), 0)
