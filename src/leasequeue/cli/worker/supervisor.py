"""The supervisor of worker processes: it starts them, restarts those that die, and stops all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from leasequeue.cli.worker.child import FAIL, NOW, RETIRING, STOP
from leasequeue.cli.worker.settings import CRASHED, CUT_OFF, MISCONFIGURED, REFUSED, STOPPED, UNHEALTHY
from leasequeue.errors.log import Log
from leasequeue.worker.signals import LAST_SECONDS
from leasequeue.worker.supervision import Restarts, SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable

    from leasequeue.cli.worker.settings import WorkerSettings

#: A child ends within its grace time and `LAST_SECONDS`; so many seconds later it is killed.
KILL_AFTER_SECONDS = 5.0
#: How many processes are ordered to fail the sessions of one that has died: each of them may be dying, too.
ORDERED = 3
#: Exit codes, the best first; any other code is worse.
BEST_FIRST = (STOPPED, CUT_OFF, UNHEALTHY, MISCONFIGURED, REFUSED)
#: A process that leases items after so many seconds is not refused by the server.
SETTLED_SECONDS = 10.0

log = Log("leasequeue.supervisor")


class Child:
    """A worker process, and the supervisor's end of the socket pair.

    It runs with `-P`: modules in the current folder must not replace libraries of ours.

    Attributes:
        process: The process.
        sessions: Those under which it holds leases, as it has sent them; empty until it leases items.
        retiring: Set when it leases nothing more, and only finishes its runs: another is to take over.
    """

    def __init__(self, settings: WorkerSettings, on_sessions: Callable[[Child], None]) -> None:
        """Start a worker process."""
        self._link, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, "-P", "-m", "leasequeue.cli.worker.child"]  # -P: see `Child`
            self.process = SupervisedProcess.run([*program, json.dumps(asdict(settings))], stdin=theirs)
        self._on_sessions = on_sessions
        self._grace = 0.0  # until the program is imported, there is nothing to wait for
        self._received = self._unsent = b""
        self.sessions = b""
        self.retiring = asyncio.Event()
        self._link.setblocking(False)
        asyncio.get_running_loop().add_reader(self._link, self._read)

    def order(self, order: bytes) -> None:
        """Send an order. What a process that reads nothing does not take is sent before the next order."""
        self._unsent += order + b"\n"
        with contextlib.suppress(OSError):  # it has ended, or takes nothing now
            self._unsent = self._unsent[self._link.send(self._unsent) :]

    def longest_stop(self, order: bytes) -> float:
        """Return how many seconds the process may take to follow an order."""
        self._read()
        return (0.0 if order == NOW else self._grace) + LAST_SECONDS + KILL_AFTER_SECONDS

    def facts(self) -> tuple[int, str]:
        """Return the process id, and how the process ended, for the log."""
        return self.process.pid, self.process.how()

    async def ended(self) -> int:
        """Wait until the process ends; return the exit code, negative for a signal."""
        code = await self.process.wait()
        self._read()  # what it has sent last
        asyncio.get_running_loop().remove_reader(self._link)
        self._link.close()
        return code

    def _read(self) -> None:
        if self._link.fileno() < 0:
            return  # the process has ended
        try:
            received = self._link.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._link)
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            if line == RETIRING:
                self.retiring.set()
            elif line.startswith(b"["):
                self.sessions = line
                self._on_sessions(self)
            else:
                self._grace = float(line)


class Supervisor:
    """Run worker processes until a signal to stop; restart all of them at each of the changes, if given."""

    def __init__(self, settings: WorkerSettings, *, changes: AsyncIterable[str] | None = None) -> None:
        self._settings = settings
        self._processes = settings.processes
        self._changes = changes
        self._children: set[Child] = set()
        #: The tasks that wait for the end of a retiring process, by its number.
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._killing: set[asyncio.Task[None]] = set()
        self._codes: list[int] = []
        #: The sessions of processes that have died while no other could fail them.
        self._unfailed: list[bytes] = []

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the worst exit code of the processes that ran then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        watching = asyncio.create_task(self._watch())
        log.info("starting %d worker process%s", self._processes, "es" * (self._processes > 1))
        try:
            await asyncio.gather(*(self._keep(number) for number in range(1, self._processes + 1)))
            await asyncio.gather(*self._leaving.values())
        finally:
            watching.cancel()
            for child in self._children:
                child.process.kill()  # only if the supervisor fails
            leaving = self._leaving.values()
            await asyncio.gather(watching, *self._killing, *leaving, return_exceptions=True)
        code = max(self._codes, default=STOPPED, key=badness)
        log.info("stopped, with exit code %d", code)
        return code

    def stop(self) -> None:
        """Begin to stop, as at the first signal."""
        if not self._stopping.is_set():
            self._stop(STOP)

    def _on_signal(self) -> None:
        if not self._stopping.is_set():
            log.info("got a signal: stopping")
            self.stop()
        elif not self._hurry.is_set():
            log.warning("got a second signal: interrupting runs")
            self._hurry.set()
            self._stop(NOW)
        else:
            log.warning("got a third signal: killing all processes")
            for child in self._children:
                child.process.kill()

    def _stop(self, order: bytes) -> None:
        self._stopping.set()
        for child in self._children:
            self._stop_child(child, order)

    def _stop_child(self, child: Child, order: bytes) -> None:
        def on_kill() -> None:
            log.error("worker process %d did not end in time: killing it", child.process.pid)

        child.order(order)
        task = asyncio.create_task(child.process.kill_after(child.longest_stop(order), on_kill))
        self._killing.add(task)
        task.add_done_callback(self._killing.discard)

    async def _keep(self, number: int) -> None:
        """Run one process, and restart it when it dies."""
        restarts = Restarts()
        while not self._stopping.is_set():
            child = Child(self._settings_of(number), self._on_sessions)
            self._children.add(child)
            if self._stopping.is_set():
                self._stop_child(child, STOP)
            before = self._changed
            code = await self._ended_or_retiring(child, number)
            if code is None:
                continue
            self._children.discard(child)
            self._fail(child, code)
            if self._stopping.is_set():
                self._codes.append(code if code >= 0 else CRASHED)
                return
            if before.is_set():
                continue
            if self._changes is not None:
                log.warning("worker process %d ended with %s; waiting for a change", *child.facts())
                await self._wait_for(self._changed)
            elif code == MISCONFIGURED or (code == REFUSED and not self._any_works()):
                log.error("worker process %d cannot start: stopping", child.process.pid)
                self._codes.append(code)
                self._stop(STOP)
            else:
                pause = restarts.ended(child.process.lived())
                log.warning("worker process %d ended with %s; restarting in %.1f s", *child.facts(), pause)
                await self._wait_for(asyncio.Event(), timeout=pause)

    def _any_works(self) -> bool:
        """Return whether a process leases items: then one that the server refuses is restarted later."""
        return any(child.sessions and child.process.lived() > SETTLED_SECONDS for child in self._children)

    def _settings_of(self, number: int) -> WorkerSettings:
        """Return the options of a process: of several, each has a name and a port of its own."""
        found, name = self._settings, self._settings.name
        if name is not None and self._processes > 1:
            found = replace(found, name=f"{name}-{number}")
        if found.health_port is not None:
            found = replace(found, health_port=found.health_port + number - 1)
        return found

    async def _ended_or_retiring(self, child: Child, number: int) -> int | None:
        """Wait until a process ends, and return the exit code; None if another is to take over."""
        ended = asyncio.create_task(child.ended())
        retiring = asyncio.create_task(child.retiring.wait())
        await asyncio.wait([ended, retiring], return_when=asyncio.FIRST_COMPLETED)
        retiring.cancel()
        if not child.retiring.is_set() or self._stopping.is_set():
            return await ended
        earlier = self._leaving.get(number)
        if earlier is not None:  # its runs may still take their time: no third process beside these two
            await asyncio.wait([earlier, ended], return_when=asyncio.FIRST_COMPLETED)
        log.info("replacing worker process %d", child.process.pid)
        leaving = asyncio.create_task(self._leave(child, ended))
        if earlier is None or earlier.done():
            self._leaving[number] = leaving
        else:
            await leaving  # it has ended
        return None

    async def _leave(self, child: Child, ended: asyncio.Task[int]) -> None:
        code = await ended
        self._children.discard(child)
        self._fail(child, code)
        log.log(
            logging.INFO if code == STOPPED else logging.WARNING,
            "worker process %d, which was replaced, ended with %s",
            *child.facts(),
        )
        if self._stopping.is_set():
            self._codes.append(code if code >= 0 else CRASHED)

    def _fail(self, child: Child, code: int) -> None:
        """Have the sessions of a process failed that has died: its items need not wait for their leases.

        This process has no connection to the server; others of its processes have.
        """
        if child.sessions and code not in BEST_FIRST:
            able = [one for one in self._children if one.sessions and one.process.alive()]
            for one in able[:ORDERED]:
                one.order(FAIL + child.sessions)
            if not able:
                self._unfailed.append(child.sessions)

    def _on_sessions(self, child: Child) -> None:
        """Have those sessions failed that no process could fail before this one has started."""
        unfailed, self._unfailed = self._unfailed, []
        for sessions in unfailed:
            child.order(FAIL + sessions)

    async def _wait_for(self, event: asyncio.Event, *, timeout: float | None = None) -> None:
        tasks = [asyncio.create_task(one.wait()) for one in (event, self._stopping)]
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _watch(self) -> None:
        """Restart all processes at each change."""
        if self._changes is None:
            return
        try:
            async for change in self._changes:
                log.info("%s has changed: restarting", change)
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
                for child in self._children:
                    self._stop_child(child, STOP)
        except Exception:
            log.exception("watching files failed; the worker no longer reloads")


def badness(code: int) -> int:
    """Return how bad an exit code is: a number to compare."""
    return BEST_FIRST.index(code) if code in BEST_FIRST else len(BEST_FIRST)
