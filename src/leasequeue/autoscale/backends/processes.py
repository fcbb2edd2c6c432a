"""The back end of processes: units are `leasequeue worker` processes on this machine. One concept."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import socket
import time
from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.elsewhere import Elsewhere
from leasequeue.autoscale.backends.failures import Failures
from leasequeue.autoscale.backends.owners import OtherOwners
from leasequeue.autoscale.backends.registered import Registered
from leasequeue.autoscale.backends.settings import ProcessSettings, settings_of
from leasequeue.autoscale.backends.units import (
    Unit,
    adopt,
    command_of,
    find_units,
    leader_of,
    mark_of,
    start_unit,
)
from leasequeue.errors import BackendError, WorkerUnknown
from leasequeue.log import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue.autoscale.config import Config
    from leasequeue.fleet import Fleet, WorkerView

#: A unit that ends sooner, and was not told to, is a failure (s); one that lives longer ends a row of them.
LONG_LIFE = 30.0
#: So long after an order, a worker has heard it and says so (s).
HEARD_SECONDS = 15.0
#: When the last request is older (s), another copy leads, and closing stops nothing.
LEADS_SECONDS = 600.0
#: How often to look whether units have ended (s).
LOOK_SECONDS = 0.05
#: A unit that is started to see why another one has failed may live so much longer than that one (s), and
#: for so long in all; then nothing is quoted yet.
LONGER, LONGEST_TRIAL = 1.0, 4.0
#: The longest name of a worker.
MAX_NAME = 200

log = Log("leasequeue.autoscale")


class ProcessBackend:
    """Runs the units of one tier as processes on this machine, and nothing else.

    A unit is a worker whose name is `<autoscaler>.<deployment>.<tier>-<number>`. Units outlive the
    autoscaler; the next one adopts them: it finds them by the workers' registrations and, on Linux, by a
    variable of their environment, so also those that have not registered yet. Processes of other users are
    left alone.

    Units are stopped in two steps. First a unit is told to fetch nothing more, those without runs first and
    then the youngest. When its runs have ended, it is told to stop. So scaling in interrupts no run, however
    long it takes, and nothing runs twice; and a unit in the first step works on when it is needed again. A
    unit that another client has told to fetch nothing more is in the first step, too.
    All happens inside `request`.

    Args:
        config: The configuration.
        deployment: The name of the deployment.
        tier: The name of the tier, with the settings of `ProcessSettings`.

    Raises:
        BackendError: If the settings cannot be used.
    """

    def __init__(self, config: Config, deployment: str, tier: str) -> None:
        self._target = f"{deployment}/{tier}"
        settings = config.deployments[deployment].tiers[tier].settings
        self._settings = settings_of(ProcessSettings, settings, "processes", self._target)
        if not self._settings.command:
            raise self._error("its setting `command` is empty")
        self._prefix = f"{config.name}.{deployment}.{tier}-"
        if len(self._prefix) > MAX_NAME - 6:
            raise self._error(f"the workers' names would be too long: {self._prefix}1")
        self._mark = mark_of(config.url, self._prefix)
        urls = {config.jobs[one].url for one in config.deployments[deployment].policy.jobs}
        self._environment = {**os.environ, **self._settings.env}
        if len(urls) == 1 and "LEASEQUEUE_URL" not in self._settings.env:
            self._environment["LEASEQUEUE_URL"] = urls.pop()
        self._registered = Registered(config, deployment)
        self._elsewhere = Elsewhere(config, deployment, tier)
        self._others = OtherOwners(config.name)
        self._units: dict[int, Unit] = {}
        #: The registrations of each unit, by its process.
        self._views: dict[int, list[tuple[Fleet, WorkerView]]] = {}
        #: The numbers in names that are registered, by whomever.
        self._taken: set[int] = set()
        self._looked = False
        self._wanted = 0
        self._requested_at: float | None = None
        self._failures = Failures(self._target)
        #: How long the last unit lived that has failed at its start (s).
        self._lived = 0.0

    @property
    def count(self) -> int:
        """How many units run, those included that are to leave, as far as was seen last."""
        return sum(one.alive() for one in self._units.values())

    async def ready(self) -> int:
        """Return how many units are at work: registered, and neither quiet nor stopping.

        Raises:
            BackendError: If no registrations can be read.
        """
        await self._look()
        return sum(self._works(one) for one in self._active())

    async def requested(self) -> int:
        """Return how many units run and were not told to leave, with those that wait after a failure.

        Raises:
            BackendError: If no registrations could be read yet.
        """
        if not self._looked:
            await self._look()
        self._note_ends()
        active = len(self._active())
        return max(active, self._wanted) if self._failures.count else active

    async def request(self, units: int) -> None:
        """Start, replace and stop units until so many run.

        One that was killed is replaced at once. If units fail at their start, or again and again within 30 s,
        there is a pause before the next start, which grows to a minute, until a unit has lived for 30 s.
        Failures at the start are reported until a later unit, or all, are at work.

        Args:
            units: How many there shall be, 0 or more.

        Raises:
            BackendError: If units fail, cannot be started, serve none of the deployment's queues, or do not
                stop in time, or if another autoscaler has units here. All else was done.
        """
        await self._look()
        self._wanted, self._requested_at = units, time.monotonic()
        for unit in self._active():
            if self._works(unit):
                self._failures.began(unit.began)
                if unit.captured is not None:  # the next one may write where all do
                    await self._quiet(unit)
        await self._scale(units)
        for unit in [*self._units.values()]:
            if unit.quieted and unit.stopped is None and self._may_stop(unit):
                await self._stop(unit)
        active = self._active()
        at_work = sum(self._works(one) for one in active)
        problems = [
            *self._overdue(),
            *await self._elsewhere.problems(one for one in active if not one.was_ready),
        ]
        if self._others.problem:
            problems.append(self._others.problem)
        if self._failures.stands(units, len(active), at_work):
            self._failures.logged = True  # by the caller
            problems.insert(0, self._failures.text)
        self._failures.log()
        if problems:
            raise self._error("; ".join(problems))

    async def close(self) -> None:
        """Disconnect; leave the units to the next autoscaler, or stop them.

        They are stopped if the setting `on_exit` is `"stop"`, and left if it is `"leave"`. Without it, they
        are stopped if standard error is a terminal, where Ctrl-C is expected to end everything, and if this
        is the first process of a container, with which they would be killed. Only the leader stops units.
        They have the time `stop_within` for their runs. If this is cancelled, they go on stopping.
        """
        try:
            if self._stops_on_exit():
                await self._stop_all()
        finally:
            self._requested_at = None
            self._failures.log()
            for unit in self._units.values():
                unit.last_words()
            await self._registered.close()

    # -------------------------------------------------------------------------- looking

    async def _look(self) -> None:
        """Read which units there are, and what they do."""
        found = await self._registered.workers("processes", self._target)
        self._note_ends()
        if not self._looked:
            for pid, name in await asyncio.to_thread(lambda: [*find_units(self._mark)]):
                self._adopt(pid, name)
        self._views, self._taken = {}, set()
        self._others.look(view for _, view in found)
        host = socket.gethostname()
        for fleet, view in found:
            number = self._number(view.name)
            if number is None:
                continue
            self._taken.add(number)
            if view.dead or view.host != host:
                continue
            # A supervisor of several processes adds a number of its own.
            leader = leader_of(view.pid, f"{self._prefix}{number}")
            if leader is not None:
                self._adopt(leader, f"{self._prefix}{number}")
                self._views.setdefault(leader, []).append((fleet, view))
        for unit in self._units.values():
            self._read(unit)
        self._looked = True

    def _read(self, unit: Unit) -> None:
        """Note what the workers of a unit say of themselves."""
        views = self._views.get(unit.pid)
        if not views:
            return
        unit.was_ready = True
        if unit.stopped is None and any(view.stopping for _, view in views):
            unit.stopped = time.monotonic()
        if time.monotonic() - unit.told > HEARD_SECONDS:
            unit.quieted = self._is_quiet(unit)

    def _adopt(self, pid: int, name: str) -> None:
        number = self._number(name)
        if pid in self._units or number is None:
            return
        unit = adopt(name, number, pid)
        if unit.alive():  # one that was just killed may still be registered, and not be reaped
            self._units[pid] = unit
            log.info("%s: adopted the unit %s, process %d", self._target, name, pid)

    def _number(self, name: str) -> int | None:
        """Return the number of a unit by the name of its worker; None: the name is none of ours."""
        if not name.startswith(self._prefix):
            return None
        found = re.fullmatch(r"([1-9]\d{0,5})(-\d+)?", name.removeprefix(self._prefix))
        return None if found is None else int(found[1])

    def _note_ends(self) -> None:
        """Forget the units that have ended. Those that were not told to are failures if they ended soon."""
        now = time.monotonic()
        failed: list[tuple[bool, str, bool]] = []
        for pid, unit in [*self._units.items()]:
            if unit.alive():
                if now - unit.began >= LONG_LIFE:
                    self._failures.lives(unit.began, was_ready=unit.was_ready)
                continue
            del self._units[pid]
            lived, written = unit.lived(), unit.last_words()
            if unit.leaving:
                log.info("%s: the unit %s has stopped%s", self._target, unit.name, written and f": {written}")
                continue
            text = unit.account(written)
            if not unit.was_ready:
                self._lived = lived
            # One that another client has stopped is replaced at once.
            stopped = unit.was_ready and unit.child is not None and unit.child.returncode == 0
            if lived < LONG_LIFE and unit.child is not None and not stopped:
                failed.append((bool(written), text, not unit.was_ready))
            else:
                log.warning("%s: %s", self._target, text)
        if failed:
            self._failures.add_ends(failed, now)

    def _active(self) -> list[Unit]:
        return [one for one in self._units.values() if one.alive() and not one.leaving]

    def _works(self, unit: Unit) -> bool:
        return bool(self._views.get(unit.pid))

    def _runs(self, unit: Unit) -> int:
        """Return how many runs it had at its last heartbeat."""
        return sum(len(view.running) for _, view in self._views.get(unit.pid, ()))

    def _leaves_first(self, unit: Unit) -> tuple[bool, int, float]:
        """Return what to sort by: those not at work first, then those with few runs, then the youngest."""
        started = [view.started or 0.0 for _, view in self._views.get(unit.pid, ())]
        return self._works(unit), self._runs(unit), -max(started, default=math.inf)

    def _is_quiet(self, unit: Unit) -> bool:
        return all(view.quiet for _, view in self._views.get(unit.pid, ()))

    def _may_stop(self, unit: Unit) -> bool:
        """Return whether a unit has said that it fetches nothing more and that no run is left."""
        if not self._works(unit):  # it is ending, or its server is away
            return time.monotonic() - unit.told > HEARD_SECONDS
        return self._is_quiet(unit) and not self._runs(unit)

    def _overdue(self) -> list[str]:
        """Return which units have not stopped in time. Kill them, if that is wished."""
        found = []
        kill_after = math.inf if self._settings.kill_after is None else self._settings.kill_after
        for unit in self._units.values():
            late = 0.0 if unit.stopped is None else time.monotonic() - unit.stopped
            if late <= self._settings.stop_within or not unit.alive():
                continue
            text = f"the unit {unit.name}, process {unit.pid}, was told to stop {late:.0f} s ago"
            found.append(text)
            if late >= kill_after:
                log.error("%s: %s: killing it", self._target, text)
                unit.kill()
        return found

    # -------------------------------------------------------------------------- acting

    async def _scale(self, units: int) -> None:
        """Start units, or tell some to fetch nothing more, until so many are to work."""
        missing = units - len(self._active())
        if missing > 0 and self._failures.at_start and not self._failures.explained:
            await self._find_out_why()
            missing = units - len(self._active())
        if missing > 0:
            await self._resume(missing)
            self._start(units - len(self._active()))
        else:
            for unit in sorted(self._active(), key=self._leaves_first)[: max(0, -missing)]:
                await self._quiet(unit)

    async def _find_out_why(self) -> None:
        """Start a unit whose output is captured, to quote what it writes if it fails as the last one did.

        That one wrote where all units do: their output is not read, so that they need no autoscaler.
        """
        self._failures.explained = True
        before = {*self._units}
        self._start(1, trial=True)
        for pid in self._units.keys() - before:
            unit, until = self._units[pid], time.monotonic() + min(self._lived + LONGER, LONGEST_TRIAL)
            while unit.alive() and time.monotonic() < until:  # noqa: ASYNC110 - a process
                await asyncio.sleep(LOOK_SECONDS)
            if not unit.alive():
                del self._units[pid]
                self._failures.explain(unit.account(unit.last_words()), time.monotonic())

    def _start(self, count: int, *, trial: bool = False) -> None:
        if count <= 0 or (self._failures.pauses(time.monotonic()) and not trial):
            return
        numbers = self._taken | {one.number for one in self._units.values()}
        free = (number for number in range(1, len(numbers) + count + 1) if number not in numbers)
        for number, index in zip(free, range(1 if self._failures.single else count), strict=False):
            name = f"{self._prefix}{number}"
            try:
                unit = start_unit(
                    name,
                    number,
                    command_of(self._settings.command, name),
                    mark=self._mark,
                    environment=self._environment,
                    directory=self._settings.directory,
                    captured=self._failures.at_start and index == 0,
                )
            except (OSError, ValueError) as error:
                problem = f"a unit cannot be started: {error}"
                self._failures.add(problem, time.monotonic(), at_start=True)
                return
            self._units[unit.pid] = unit
            log.info("%s: started the unit %s, process %d", self._target, name, unit.pid)

    async def _resume(self, count: int) -> None:
        """Let units work on that were only told to fetch nothing more, the oldest first."""
        quiet = [one for one in self._units.values() if one.quieted and one.stopped is None and one.alive()]
        for unit in sorted((one for one in quiet if one.captured is None), key=self._leaves_first)[::-1][
            :count
        ]:
            if await self._tell(unit, lambda fleet: fleet.resume):
                unit.quieted, unit.told = False, time.monotonic()
                log.info("%s: the unit %s works on", self._target, unit.name)

    async def _quiet(self, unit: Unit) -> None:
        """Have a unit fetch nothing more; one that is not at work yet is stopped."""
        if not self._works(unit):
            await self._stop(unit)
        elif await self._tell(unit, lambda fleet: fleet.quiet):
            unit.quieted, unit.told = True, time.monotonic()
            log.info("%s: the unit %s fetches nothing more", self._target, unit.name)

    async def _stop(self, unit: Unit) -> None:
        """Stop a unit gracefully.

        By the server, as that may be said twice. A signal only goes to a process that has not registered, and
        to one that supervises the worker and would restart it.
        """
        told = await self._tell(unit, lambda fleet: fleet.stop)
        pids = {view.pid for _, view in self._views.get(unit.pid, ())}
        if (not told or unit.pid not in pids) and not unit.signalled:
            unit.signalled = True
            unit.signal(signal.SIGTERM)
        unit.stopped = unit.stopped or time.monotonic()
        log.info("%s: stopping the unit %s", self._target, unit.name)

    async def _tell(
        self, unit: Unit, what: Callable[[Fleet], Callable[[WorkerView], Awaitable[None]]]
    ) -> bool:
        """Tell the workers of a unit what to do; return whether any of them is registered."""
        told = False
        for fleet, view in self._views.get(unit.pid, ()):
            try:
                await what(fleet)(view)
            except WorkerUnknown:  # it has just ended
                continue
            told = True
        return told

    def _stops_on_exit(self) -> bool:
        now = time.monotonic()
        if self._requested_at is None or now - self._requested_at > LEADS_SECONDS:
            return False
        if self._settings.on_exit is not None:
            return self._settings.on_exit == "stop"
        return os.getpid() == 1 or os.isatty(2)

    async def _stop_all(self) -> None:
        self._note_ends()
        units = [one for one in self._units.values() if one.alive()]
        for unit in units:
            if unit.stopped is None:  # a second signal would interrupt its runs
                unit.signalled, unit.stopped = True, time.monotonic()
                unit.signal(signal.SIGTERM)
        if units:
            log.info("%s: stopping %d units, which finish their runs", self._target, len(units))
        until = time.monotonic() + self._settings.stop_within
        while any(one.alive() for one in units) and time.monotonic() < until:  # noqa: ASYNC110 - processes
            await asyncio.sleep(LOOK_SECONDS)
        for unit in units:
            if unit.alive():
                log.error("%s: the unit %s, process %d, has not stopped", self._target, unit.name, unit.pid)

    def _error(self, problem: str) -> BackendError:
        return BackendError("processes", self._target, problem)
