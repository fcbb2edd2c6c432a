"""The back end of processes: units are `leasequeue worker` processes on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import os
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leasequeue.autoscale.backends.registered import Registered
from leasequeue.errors import BackendError, WorkerUnknown
from leasequeue.errors.log import Log
from leasequeue.worker.supervision import LONG_LIFE, Restarts, SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from leasequeue.alive import Fleet, WorkerView
    from leasequeue.autoscale.config import Config, ProcessSettings

#: The variable that marks the processes of a unit: the mark of its tier, and its name.
MARK = "LEASEQUEUE_UNIT"


@dataclass(eq=False)
class Unit:
    """A unit on this machine. Its process leads a session of its own, with all that it starts."""

    name: str
    number: int
    process: SupervisedProcess
    #: Whether it was seen at work.
    was_ready: bool = False
    #: Whether it was ordered to fetch nothing more; and when to do that, or the contrary (`time.monotonic`).
    quieted: bool = False
    ordered: float = -math.inf
    #: When it was ordered to stop, by `time.monotonic()`.
    stopped: float | None = None
    #: Whether that was by a signal. A second one would interrupt its runs.
    signalled: bool = False

    @property
    def active(self) -> bool:
        """Whether it runs and is not leaving."""
        return self.process.alive() and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether it was ordered to fetch nothing more, or to stop."""
        return self.quieted or self.stopped is not None


def mark_of(url: str, prefix: str) -> str:
    """Return what marks the processes of a tier. Two servers may have autoscalers of the same name."""
    parts = urlsplit(url)
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return hashlib.sha256(f"{place}\0{prefix}".encode()).hexdigest()[:16]


def command_of(command: Sequence[str], name: str) -> list[str]:
    """Return the command of a unit: with its name, and run by the same Python if it is `leasequeue`."""
    if any("{name}" in one for one in command):
        command = [one.replace("{name}", name) for one in command]
    else:
        command = [*command, "--name", name]
    if command[0] == "leasequeue":  # the one that runs this, also if it is not on PATH
        command = [sys.executable, "-P", "-m", "leasequeue.cli", *command[1:]]
    return [*command]


def find_units(mark: str) -> Iterator[tuple[int, str]]:
    """Return the processes that are proved to lead a unit of a tier, and their names.

    Only Linux shows the environment of processes; elsewhere nothing is found.
    """
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        name = unit_name(pid, mark)
        if name is not None:
            yield pid, name


def unit_name(pid: int, mark: str) -> str | None:
    """Return the name of the unit that a process is proved to lead; None: it leads none, or none can know.

    Programs that a unit has started inherit the variable, and may lead a session, too: those are no units,
    as their arguments do not have the name.
    """
    return _name_of(pid, mark) if session_of(pid) == pid else None


def leader_of(pid: int, name: str, mark: str) -> int | None:
    """Return the process that is proved to lead a unit, by that of its worker; None: it is no unit of ours.

    The two differ if a supervisor or a launcher runs the worker. If that was killed alone, the worker is what
    is left of the unit, and leads it. What a registration says is no proof: any producer may write one.
    """
    leader = session_of(pid)
    if leader is not None and not Path(f"/proc/{leader}").exists():
        leader = pid
    return leader if leader is not None and _name_of(leader, mark) == name else None


def session_of(pid: int) -> int | None:
    """Return which process leads the session of another; None: there is none, or the system does not say.

    It does not say (0) of a session that was begun outside a container: what the container runs joined it.
    """
    try:
        return os.getsid(pid) or None
    except (OSError, OverflowError):
        return None


def _name_of(pid: int, mark: str) -> str | None:
    """Return the name of the unit of which a process is a part, as its environment and arguments say.

    Only this user may have started it: with another real, effective or saved user id, as programs have that
    run with the rights of their file's owner, the environment may be what somebody else has written.
    """
    place = Path(f"/proc/{pid}")
    try:
        users = re.search(rb"^Uid:\t(.*)$", (place / "status").read_bytes(), re.MULTILINE)
        variables = (place / "environ").read_bytes().split(b"\0")
        arguments = (place / "cmdline").read_bytes()
    except OSError:  # it has ended, or is of another user, or the system does not say
        return None
    if users is None or {*users[1].split()} != {b"%d" % os.geteuid()}:
        return None
    for one in variables:
        if one.startswith(MARK.encode() + b"="):
            found, _, name = one.decode(errors="replace").removeprefix(f"{MARK}=").partition("/")
            return name if found == mark and name.encode() in arguments else None
    return None


#: So long after an order, a worker has received it and says so (s).
RECEIVED_SECONDS = 15.0
#: When the last request is older (s), another copy leads, and closing stops nothing.
LEADS_SECONDS = 600.0
#: How often to look whether units have ended (s).
LOOK_SECONDS = 0.05
#: After so many failures before the unit was at work, only one is started.
SINGLE_AFTER = 2
#: A unit that is not at work after so many times the spin-up is reported.
LATE = 2
#: The longest name of a worker.
MAX_NAME = 200

log = Log("leasequeue.autoscale")


class ProcessBackend:
    """Runs the units of one tier as processes on this machine, and nothing else.

    A unit is a worker whose name is `<autoscaler>.<deployment>.<tier>-<number>`. Units outlive the
    autoscaler; on Linux, the next one adopts them, also those that have not registered yet: what proves a
    unit is a variable in the environment of its process, with the tier and the unit's name, the name among
    its arguments, that it leads a session, and that it was started by this user and has no other user's
    rights. What is not proved is never signalled, whatever its registration on the server says: any producer
    may write that. Elsewhere, only units that this object has started are its own.

    Units are stopped in two steps. First a unit is ordered to fetch nothing more, those without runs before
    the others and then the youngest. When its runs have ended, it is ordered to stop. So scaling in
    interrupts no run, however long it takes, and nothing runs twice; and a unit in the first step works on
    when it is needed again. One that another client has ordered to fetch nothing more is in the first step,
    too.
    All happens inside `request`.
    """

    def __init__(self, config: Config, deployment: str, tier: str, settings: ProcessSettings) -> None:
        self._target = f"{deployment}/{tier}"
        self._settings = settings
        self._prefix = f"{config.name}.{deployment}.{tier}-"
        if len(self._prefix) > MAX_NAME - 6:
            raise self._error(f"the workers' names would be too long: {self._prefix}1")
        self._mark = mark_of(config.url, self._prefix)
        urls = {config.jobs[one].url for one in config.deployments[deployment].policy.jobs}
        self._environment = {**os.environ, **self._settings.env}
        if len(urls) == 1 and "LEASEQUEUE_URL" not in self._settings.env:
            self._environment["LEASEQUEUE_URL"] = urls.pop()
        self._registered = Registered(config, deployment)
        self._queues = ", ".join(
            sorted({config.jobs[one].queue for one in config.deployments[deployment].policy.jobs})
        )
        self._late = LATE * config.deployments[deployment].tiers[tier].policy.spin_up
        self._units: dict[int, Unit] = {}
        #: The registrations of each unit, by its process.
        self._views: dict[int, list[tuple[Fleet, WorkerView]]] = {}
        #: The numbers in names that are registered, by whomever.
        self._taken: set[int] = set()
        self._looked = self._warned = False
        self._wanted = 0
        self._requested_at: float | None = None
        #: The row of failures: how the last one ended and when, and whether it was not at work before.
        self._restarts = Restarts()
        self._failure, self._failed_at, self._at_start = "", -math.inf, False

    async def ready(self) -> int:
        """Return how many units are at work: registered, and neither quiet nor stopping."""
        await self._look()
        return sum(self._works(one) for one in self._active())

    async def requested(self) -> int:
        """Return how many units run and were not ordered to leave, with those that wait after a failure."""
        if not self._looked:
            await self._look()
        self._note_ends()
        active = len(self._active())
        return max(active, self._wanted) if self._restarts.count else active

    async def request(self, units: int) -> None:
        """Start, replace and stop units until so many run.

        One that was killed is replaced at once. If units fail at their start, or again and again within 30 s,
        there is a pause before the next start, which grows to 30 s, until a unit has lived for 30 s.
        Failures at the start are reported until a later unit, or all, are at work.

        Raises:
            BackendError: If units fail, cannot be started, serve none of the deployment's queues, or do not
                stop in time. All else was done.
        """
        await self._look()
        self._wanted, self._requested_at = units, time.monotonic()
        for unit in self._active():
            if self._works(unit) and unit.process.began >= self._failed_at:
                self._at_start = False
        await self._scale(units)
        for unit in [*self._units.values()]:
            if unit.quieted and unit.stopped is None and self._may_stop(unit):
                await self._stop(unit)
        problems = [*self._overdue(), *self._unseen()]
        active = self._active()
        running = sum(self._works(one) for one in active) if self._at_start else len(active)
        if self._restarts.count and running < units:
            soon = f"{self._restarts.pause:g} s later" if self._restarts.pause else "in the next pass"
            row = f"failures in a row: {self._restarts.count}; the next start is {soon}"
            problems.insert(0, f"{self._failure} ({row})")
        if problems:
            raise self._error("; ".join(problems))

    async def close(self) -> None:
        """Disconnect; leave the units to the next autoscaler, or stop them.

        They are stopped if the setting `on_exit` is `"stop"`, and left if it is `"leave"`. Without it, they
        are stopped if standard error is a terminal, where Ctrl-C is expected to end everything, and if this
        is the first process of a container, with which they would be killed. Only the leader stops units.
        They have the time `stop_within` for their runs. If this is cancelled, they continue to stop.
        """
        try:
            if self._stops_on_exit():
                await self._stop_all()
            elif self._requested_at is not None and (left := len(self._active())):
                queues = self._queues.replace(",", "")
                log.info(
                    "%s: %d units go on: `leasequeue workers ls %s` lists them, `leasequeue workers stop` "
                    'stops one; with on_exit = "stop" they would end now',
                    *(self._target, left, queues),
                )
        finally:
            self._requested_at = None
            await self._registered.close()

    # -------------------------------------------------------------------------- looking

    async def _look(self) -> None:
        found = await self._registered.workers("processes", self._target)
        self._note_ends()
        if not self._looked:
            for pid, name in await asyncio.to_thread(lambda: [*find_units(self._mark)]):
                self._adopt(pid, name)
        self._views, self._taken = {}, set()
        host = socket.gethostname()
        for fleet, view in found:
            number = self._number(view.name)
            if number is None:
                continue
            self._taken.add(number)
            if view.dead or view.host != host:
                continue
            leader = self._leader_of(view, f"{self._prefix}{number}")
            if leader is not None:
                self._views.setdefault(leader, []).append((fleet, view))
        for unit in self._units.values():
            self._read(unit)
        self._looked = True

    def _read(self, unit: Unit) -> None:
        """Note what the workers of a unit say of themselves."""
        views = self._views.get(unit.process.pid)
        if not views:
            return
        unit.was_ready = True
        if unit.stopped is None and any(view.stopping for _, view in views):
            unit.stopped = time.monotonic()
        if time.monotonic() - unit.ordered > RECEIVED_SECONDS:
            unit.quieted = self._is_quiet(unit)

    def _leader_of(self, view: WorkerView, name: str) -> int | None:
        """Return the process that leads the unit of a worker; None: the worker is not proved to be a unit's.

        A supervisor of several processes has added a number of its own to the worker's name.
        """
        leader = session_of(view.pid)
        if leader in self._units and self._units[leader].name == name:
            return leader
        leader = leader_of(view.pid, name, self._mark)
        if leader is not None and self._adopt(leader, name):
            return leader
        if not self._warned and session_of(view.pid) is not None and SupervisedProcess(view.pid).alive():
            self._warned = True
            log.warning(
                "%s: process %d is registered as %s, and not proved to be a unit: it is left alone",
                *(self._target, view.pid, name),
            )
        return None

    def _adopt(self, pid: int, name: str) -> bool:
        """Adopt a unit; return False if the process is not proved to be that one.

        It is proved again when its start time is known: the process of before may have ended.
        """
        number = self._number(name)
        if number is None or pid in self._units:
            return False
        unit = Unit(name, number, SupervisedProcess(pid))
        if leader_of(pid, name, self._mark) != pid or not unit.process.alive():
            return False
        self._units[pid] = unit
        log.info("%s: adopted the unit %s, process %d", self._target, name, pid)
        return True

    def _number(self, name: str) -> int | None:
        """Return the number of a unit by the name of its worker; None: the name is none of ours."""
        if not name.startswith(self._prefix):
            return None
        found = re.fullmatch(r"([1-9]\d{0,5})(-\d+)?", name.removeprefix(self._prefix))
        return None if found is None else int(found[1])

    def _note_ends(self) -> None:
        """Forget the units that have ended. Those that ended soon without an order are one failure."""
        failed: Unit | None = None
        for pid, unit in [*self._units.items()]:
            process = unit.process
            if process.alive():
                if unit.was_ready or not self._at_start:
                    self._restarts.lives(process.began)
                continue
            del self._units[pid]
            if unit.leaving:
                log.info("%s: the unit %s has stopped", self._target, unit.name)
                continue
            log.warning("%s: %s", self._target, _account(unit))
            # One that another client has stopped is replaced at once.
            stopped = unit.was_ready and process.returncode == 0
            if process.lived() < LONG_LIFE and process.is_child and not stopped:
                failed = unit
        if failed is not None:
            self._fail(_account(failed), failed.process.lived(), at_start=not failed.was_ready)

    def _fail(self, problem: str, lived: float, *, at_start: bool) -> None:
        self._restarts.ended(lived, pause=at_start)
        self._failure, self._failed_at, self._at_start = problem, time.monotonic(), at_start

    def _active(self) -> list[Unit]:
        return [one for one in self._units.values() if one.active]

    def _works(self, unit: Unit) -> bool:
        return bool(self._views.get(unit.process.pid))

    def _runs(self, unit: Unit) -> int:
        return sum(len(view.running) for _, view in self._views.get(unit.process.pid, ()))

    def _leaves_first(self, unit: Unit) -> tuple[bool, int, float]:
        """Return what to sort by: those not at work first, then those with few runs, then the youngest."""
        started = [view.started or 0.0 for _, view in self._views.get(unit.process.pid, ())]
        return self._works(unit), self._runs(unit), -max(started, default=math.inf)

    def _is_quiet(self, unit: Unit) -> bool:
        return all(view.quiet for _, view in self._views.get(unit.process.pid, ()))

    def _may_stop(self, unit: Unit) -> bool:
        """Return whether a unit has said that it fetches nothing more and that no run is left."""
        if not self._works(unit):  # it is ending, or its server is away
            return time.monotonic() - unit.ordered > RECEIVED_SECONDS
        return self._is_quiet(unit) and not self._runs(unit)

    def _overdue(self) -> list[str]:
        """Return which units have not stopped in time. Kill them, if that is wished."""
        found = []
        for unit in self._units.values():
            late = 0.0 if unit.stopped is None else time.monotonic() - unit.stopped
            if late <= self._settings.stop_within or not unit.process.alive():
                continue
            text = f"the unit {unit.name}, process {unit.process.pid}, was ordered to stop {late:.0f} s ago"
            found.append(text)
            if late >= self._settings.kill_after:
                log.error("%s: %s: killing it", self._target, text)
                # If it supervises the worker, that would run on, and no autoscaler would know it.
                unit.process.kill(group=True)
        return found

    def _unseen(self) -> list[str]:
        """Return what to report of units that should be at work for the deployment's queues by now."""
        late = [one.name for one in self._active() if not one.was_ready and one.process.lived() >= self._late]
        if not late:
            return []
        more = f" and {len(late) - 1} more are" if len(late) > 1 else " is"
        where = f"not registered on any of the deployment's queues after {self._late:g} s: {self._queues}"
        return [f"the unit {late[0]}{more} {where}"]

    # -------------------------------------------------------------------------- acting

    async def _scale(self, units: int) -> None:
        """Start units, or order some to fetch nothing more, until so many are to work."""
        missing = units - len(self._active())
        if missing > 0:
            await self._resume(missing)
            self._start(units - len(self._active()))
        else:
            for unit in sorted(self._active(), key=self._leaves_first)[: max(0, -missing)]:
                await self._quiet(unit)

    def _start(self, count: int) -> None:
        if count <= 0 or self._restarts.waits:
            return
        if self._at_start and self._restarts.count >= SINGLE_AFTER:
            count = 1
        numbers = self._taken | {one.number for one in self._units.values()}
        free = (number for number in range(1, len(numbers) + count + 1) if number not in numbers)
        for number in itertools.islice(free, count):
            name = f"{self._prefix}{number}"
            try:
                process = SupervisedProcess.run(
                    command_of(self._settings.command, name),
                    stdout=2,  # our standard output may be JSON
                    env={**self._environment, MARK: f"{self._mark}/{name}"},
                    cwd=self._settings.directory,
                    session=True,
                )
            except (OSError, ValueError) as error:
                self._fail(f"a unit cannot be started: {error}", 0.0, at_start=True)
                return
            self._units[process.pid] = Unit(name, number, process)
            log.info("%s: started the unit %s, process %d", self._target, name, process.pid)

    async def _resume(self, count: int) -> None:
        """Let units work on that were only ordered to fetch nothing more, the oldest first."""
        units = self._units.values()
        quiet = [one for one in units if one.quieted and one.stopped is None and one.process.alive()]
        for unit in sorted(quiet, key=self._leaves_first)[::-1][:count]:
            if await self._order(unit, lambda fleet: fleet.resume):
                unit.quieted, unit.ordered = False, time.monotonic()
                log.info("%s: the unit %s works on", self._target, unit.name)

    async def _quiet(self, unit: Unit) -> None:
        """Have a unit fetch nothing more; one that is not at work yet is stopped."""
        if not self._works(unit):
            await self._stop(unit)
        elif await self._order(unit, lambda fleet: fleet.quiet):
            unit.quieted, unit.ordered = True, time.monotonic()
            log.info("%s: the unit %s fetches nothing more", self._target, unit.name)

    async def _stop(self, unit: Unit) -> None:
        """Stop a unit gracefully.

        By the server, as that may be said twice. A signal only goes to a process that has not registered, and
        to one that supervises the worker and would restart it.
        """
        received = await self._order(unit, lambda fleet: fleet.stop)
        pids = {view.pid for _, view in self._views.get(unit.process.pid, ())}
        if (not received or unit.process.pid not in pids) and not unit.signalled:
            unit.signalled = True
            unit.process.signal(signal.SIGTERM)
        unit.stopped = unit.stopped or time.monotonic()
        log.info("%s: stopping the unit %s", self._target, unit.name)

    async def _order(
        self, unit: Unit, what: Callable[[Fleet], Callable[[WorkerView], Awaitable[None]]]
    ) -> bool:
        """Order the workers of a unit something; return whether any of them is registered."""
        received = False
        for fleet, view in self._views.get(unit.process.pid, ()):
            try:
                await what(fleet)(view)
            except WorkerUnknown:  # it has just ended
                continue
            received = True
        return received

    def _stops_on_exit(self) -> bool:
        now = time.monotonic()
        if self._requested_at is None or now - self._requested_at > LEADS_SECONDS:
            return False
        if self._settings.on_exit is not None:
            return self._settings.on_exit == "stop"
        return os.getpid() == 1 or os.isatty(2)

    async def _stop_all(self) -> None:
        self._note_ends()
        units = [one for one in self._units.values() if one.process.alive()]
        for unit in units:
            if unit.stopped is None:  # a second signal would interrupt its runs
                unit.signalled, unit.stopped = True, time.monotonic()
                unit.process.signal(signal.SIGTERM)
        if units:
            log.info("%s: stopping %d units, which finish their runs", self._target, len(units))
        until = time.monotonic() + self._settings.stop_within
        while any(one.process.alive() for one in units) and time.monotonic() < until:  # noqa: ASYNC110 - processes
            await asyncio.sleep(LOOK_SECONDS)
        for unit in units:
            if unit.process.alive():
                log.error(
                    "%s: the unit %s, process %d, has not stopped", self._target, unit.name, unit.process.pid
                )

    def _error(self, problem: str) -> BackendError:
        return BackendError("processes", self._target, problem)


def _account(unit: Unit) -> str:
    return f"the unit {unit.name} ended after {unit.process.lived():.1f} s with {unit.process.how()}"
