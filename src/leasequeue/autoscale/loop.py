"""The autoscaler's loop: passes in turn with other copies, reports, and the cleaner."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Self

from leasequeue.alive.ring import LOOK_SECONDS
from leasequeue.autoscale.backends import open_backend as open_configured
from leasequeue.autoscale.leader import Leadership, State, digest_of
from leasequeue.autoscale.passes import CONFIGURATION, Parts, Passes
from leasequeue.autoscale.queues import LOOK_EVERY
from leasequeue.autoscale.report import PassError, PassReport, read_report
from leasequeue.errors import InvalidArgument, LeasequeueError
from leasequeue.errors.describing import describe
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engine_of
from leasequeue.worker.maintenance import Maintenance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from leasequeue.autoscale.backends import Backend
    from leasequeue.autoscale.config import Config
    from leasequeue.autoscale.leader import Turn

#: How long a copy that stops takes at most to hand over the lead (s).
HAND_OVER_SECONDS = 5.0
#: The shortest time between two passes (s).
MIN_PAUSE = 0.02
#: A standby looks so often in the time between two passes, and at least once in so many seconds.
STANDBY_LOOKS, STANDBY_PAUSE = 2, 1.0
#: How long to wait until the cleaner is started again after an error (s).
CLEANER_PAUSE = 1.0

#: The times in an error, which are others in each pass.
_SECONDS = re.compile(r"\b\d+ s\b", re.ASCII)

log = Log("leasequeue.autoscale")


class FileChanges:
    """Compares a file with what it contained."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._used = self._seen = self._digest()

    def found(self) -> bool:
        """Return whether the file contains other than what is used; True once for each change.

        A file that cannot be read has not changed.
        """
        now = self._digest()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return now != self._used

    def _digest(self) -> bytes | None:
        try:
            return None if self._path is None else hashlib.sha256(self._path.read_bytes()).digest()
        except OSError:
            return None


class Autoscaler:
    """Asks for as many units as the work needs, again and again; and cleans the queues.

        async with Autoscaler(load_config("autoscale.toml")) as autoscaler:
            await autoscaler.run()

    Of any number of copies with one name on one server, one leads at a time, and makes the passes. All that
    it remembers is kept on the server, so that a restart changes nothing, and another copy continues where
    the one before ended. An error of a queue, a back end or a server is reported in the pass, and ends
    neither the loop nor the cleaner.

    Args:
        config: What is wished.
        clock: For tests: returns the time in seconds since 1970, in place of the servers' clocks.
        open_backend: Opens the back end of a tier: by default the one of the configuration.

    Raises:
        InvalidArgument: If the URL or the name of the autoscaler's queue cannot be used, or it is a job's.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] | None = None,
        open_backend: Callable[[Config, str, str], Backend] = open_configured,
    ) -> None:
        if any((one.url, one.queue) == (config.url, config.name) for one in config.jobs.values()):
            raise InvalidArgument("name", config.name, "a name that is not that of a job's queue")
        self._config = config
        self._clock = clock
        self._settings = digest_of(config)
        self._changes = FileChanges(config.path)
        self._passes = Passes(config, open_backend=open_backend, clock=clock)
        self._queue = self._passes.queue_at(config.url, config.name, cluster=config.cluster)
        self._copy = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._leadership = Leadership(self._queue, copy=self._copy, every=config.every)
        #: Held during a pass.
        self._lock = asyncio.Lock()
        self._stopping = asyncio.Event()
        #: The last report of this copy, and when it ended, by `time.monotonic()`.
        self._last: tuple[PassReport, float] | None = None
        self._logged: set[PassError] = set()

    async def once(self, *, dry_run: bool = False) -> PassReport:
        """Make one pass, unless another copy makes one at this moment.

        Args:
            dry_run: Whether to ask for nothing, and to change nothing on any server. If no pass has been made
                yet, it takes a second longer, as rates are known from the second sample on.

        Returns:
            What the pass saw, wanted, asked for and got. Errors of queues, back ends and servers are in it.
        """
        async with self._lock:
            return await self._pass(at_once=True, dry_run=dry_run)

    async def run(self, *, on_report: Callable[[PassReport], None] | None = None) -> None:
        """Make passes while this copy leads, stand by while another one does, and clean the queues.

        It returns after `stop`, when the present pass has ended and the lead is handed over.

        Args:
            on_report: Called with the report of each pass that this copy has made.
        """
        beside = [
            asyncio.create_task(self._clean_until_cancelled(), name="leasequeue autoscaler cleaner"),
            asyncio.create_task(self._leadership.liveness.run(), name="leasequeue autoscaler connections"),
            asyncio.create_task(self._note_connections(), name="leasequeue autoscaler leader"),
        ]
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                if self._changes.found():
                    log.warning("%s has changed: restart the autoscaler to use it", self._config.path)
                async with self._lock:
                    report = await self._pass(at_once=False, dry_run=False)
                if report.leads and on_report is not None:
                    self._hand_on(on_report, report)
                with contextlib.suppress(TimeoutError):
                    pause = max(MIN_PAUSE, began + self._turn_after(report) - time.monotonic())
                    await asyncio.wait_for(self._stopping.wait(), pause)
            await self._hand_over()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    def _turn_after(self, report: PassReport) -> float:
        """Return how long after a turn began the next one begins (s)."""
        every = self._config.every
        if report.leads:
            return every
        return min(
            every / STANDBY_LOOKS, STANDBY_PAUSE, LOOK_SECONDS if self._leadership.suspects else math.inf
        )

    async def _note_connections(self) -> None:
        """Have this copy seen by its present connections, whenever they have changed, until cancelled."""
        while True:
            await self._leadership.liveness.changed.wait()
            self._leadership.liveness.changed.clear()
            async with self._lock:
                with contextlib.suppress(LeasequeueError):  # the next pass does it
                    await self._leadership.announce()

    @staticmethod
    def _hand_on(on_report: Callable[[PassReport], None], report: PassReport) -> None:
        try:
            on_report(report)
        except Exception:
            log.exception("the report of pass %d could not be handed on", report.number)

    def stop(self) -> None:
        """Let `run` return after the present pass. Another copy then leads at once."""
        self._stopping.set()

    async def last_report(self) -> PassReport | None:
        """Return the report of the last pass, whichever copy made it; None: there is none.

        If the server cannot be asked, it is the last one of this copy, if that has made one; see
        `PassReport.age`.
        """
        own = self._last
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                state = await self._leadership.read()
                now = await self._now()
        except (LeasequeueError, TimeoutError):
            return None if own is None else replace(own[0], age=time.monotonic() - own[1])
        if state is None or state.report is None:
            return None
        return read_report(state.report, age=now - state.at)

    async def close(self) -> None:
        """Hand over the lead, and close the back ends and the connections. Closing twice is fine.

        The units keep running, unless a back end is set to stop its own.
        """
        self.stop()
        await self._hand_over()
        await self._passes.close()
        await self._queue.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -------------------------------------------------------------------------- passes

    async def _pass(self, *, at_once: bool, dry_run: bool) -> PassReport:
        began = time.monotonic()
        try:
            report = await (self._try() if dry_run else self._take_turn(at_once=at_once))
        except LeasequeueError as error:
            report = self._failed("server", str(error), began)
        except Exception as error:  # whatever it is, the next pass may go better
            log.exception("a pass has failed")
            report = self._failed("pass", describe(error), began)
        self._log(report)
        if report.leads and not dry_run:
            self._last = (report, time.monotonic())
        return report

    def _failed(self, part: str, problem: str, began: float) -> PassReport:
        return PassReport(
            copy=self._copy,
            leads=self._leadership.leads,
            duration=time.monotonic() - began,
            errors=(PassError(part=part, problem=problem),),
        )

    async def _take_turn(self, *, at_once: bool) -> PassReport:
        async with self._leadership.turn(at_once=at_once) as turn:
            return PassReport(copy=self._copy, leads=False) if turn is None else await self._lead(turn)

    async def _lead(self, turn: Turn) -> PassReport:
        """Make a pass. What it finds out is dropped if another copy has taken the lead since."""
        began, parts, state = time.monotonic(), Parts(), turn.state
        if state.number and state.settings != self._settings:
            log.info("the configuration has changed since pass %d", state.number)
        sight = await self._passes.look(state, parts, dry_run=False)
        planned = self._passes.plan(sight, state, parts, now=turn.at)
        # As late as possible: a copy that was paused until now must not ask for what is out of date.
        if not await turn.confirm():
            return self._lost()
        tiers = [] if planned is None else await self._passes.request(planned, sight, parts)
        report = PassReport(
            number=state.number + 1,
            at=turn.at,
            duration=time.monotonic() - began,
            copy=self._copy,
            jobs=sight.seen_of(planned),
            tiers=tuple(tiers),
            errors=tuple(parts.errors),
        )
        after = State(
            number=report.number,
            at=turn.at,
            settings=self._settings,
            plan=state.plan if planned is None else dict(planned.memory),
            jobs=sight.memory,
            children=sight.children,
            report=asdict(report),
        )
        if not await turn.keep(after):
            return self._lost()
        self._leadership.lead(turn.state)
        await turn.emit(report.event())
        return report

    def _lost(self) -> PassReport:
        self._leadership.lost()
        return PassReport(copy=self._copy, leads=False)

    async def _try(self) -> PassReport:
        began, parts = time.monotonic(), Parts()
        try:
            state, now = await self._leadership.read() or State(), await self._now()
        except LeasequeueError as error:
            parts.fail("server", str(error))
            state, now = State(), time.time()
        sight = await self._passes.look(state, parts, dry_run=True)
        planned = self._passes.plan(sight, state, parts, now=now)
        return PassReport(
            number=state.number + 1,
            at=now,
            duration=time.monotonic() - began,
            copy=self._copy,
            dry_run=True,
            jobs=sight.seen_of(planned),
            tiers=() if planned is None else planned.tiers,
            errors=tuple(parts.errors),
        )

    async def _now(self) -> float:
        if self._clock is not None:
            return self._clock()
        answer = (await engine_of(self._queue).runner.ask((b"TIME",)))[0]
        if isinstance(answer, list) and len(answer) == 2:
            return int(answer[0]) + int(answer[1]) / 1_000_000
        return time.time()  # the command may be forbidden

    async def _hand_over(self) -> None:
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS), self._lock:
                await self._leadership.hand_over()
        except (LeasequeueError, TimeoutError) as error:
            log.warning("the lead could not be handed over; another copy takes it soon: %s", error)

    def _log(self, report: PassReport) -> None:
        """Log the changes and the figures of a pass, and the errors that the one before did not have."""
        # "… was ordered to stop 61 s ago" is the same error as 10 s before.
        now = {replace(one, problem=_SECONDS.sub("", one.problem)): one for one in report.errors}
        for known, error in now.items():
            if known not in self._logged:
                log.warning("%s: %s", error.part, error.problem)
        failing = {CONFIGURATION, *(one.part for one in now)}
        for part in sorted({one.part for one in self._logged} - failing):
            log.info("%s: works again", part)
        self._logged = {*now}
        if report.number:
            for line in report.lines():
                log.info("%s", line)

    # ------------------------------------------------------------------------ cleaning

    async def _clean_until_cancelled(self) -> None:
        """Clean the queues of all jobs, tick their schedules and settle their flow runs.

        Each copy does: any number of cleaners may run. A queue without any worker has no other cleaner.
        """
        light, deep = self._config.clean_every, self._config.deep_clean_every
        rounds = min(light or math.inf, deep or math.inf)
        per_deep = math.inf if deep is None else max(1.0, deep / rounds)
        maintenance = Maintenance(clean_every=rounds, keep_dead=None, light_per_deep=per_deep)
        await self._open_queues()
        opening = asyncio.create_task(self._open_again(), name="leasequeue autoscaler queues")
        try:
            while True:
                try:
                    await maintenance.run(self._passes.queues.served)
                except Exception:
                    log.exception("the cleaner has failed; starting it again")
                await asyncio.sleep(CLEANER_PAUSE)
        finally:
            opening.cancel()

    async def _open_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._open_queues()

    async def _open_queues(self) -> None:
        for job, one in self._config.jobs.items():
            try:
                await self._passes.queues.get(one)
            except LeasequeueError as error:
                log.warning("the queue of the job %s is not cleaned: %s", job, error)
