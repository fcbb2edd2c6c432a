"""Limits that blocks of code hold by name: `queue.limits.hold`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Self

from leasequeue.errors import HoldLost, InvalidArgument, LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import check_group

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from leasequeue.queue.engine import Engine

#: The longest time for which a place is held without a renewal.
MAX_HOLD_MS = 3_600_000
#: The replies of `hold_take`.
_LOST, _NO_LIMITS, _WAITS = -1, -2, 0

log = Log("leasequeue.queue")
_numbers = itertools.count(1)
#: Places that are being given back, also if the caller was cancelled again.
_dropping: set[asyncio.Task[None]] = set()


def check_hold(name: object) -> str:
    """Check the name of a limit that blocks hold, and return it."""
    try:
        return check_group(name)
    except InvalidArgument as error:
        raise InvalidArgument("name", name, error.allowed) from error


class Hold:
    """A place of a limit, held while its block runs. `Limits.hold` makes it; it is entered once."""

    def __init__(self, engine: Callable[[], Engine], name: str, weight: int, lease_ms: int) -> None:
        self._find_engine, self._name, self._weight, self._lease_ms = engine, name, weight, lease_ms
        self._ticket = b""
        self._is_lost = False
        #: Until when the place is certainly ours, by the event loop's clock.
        self._held_until = 0.0

    async def __aenter__(self) -> Self:
        engine = self._engine = self._find_engine()
        if self._ticket:
            raise RuntimeError("enter a hold once: call `limits.hold` for each block")
        self._ticket = b"%d %b#%d" % (self._weight, engine.session.id.encode(), next(_numbers))
        engine.holds += 1
        try:
            if not await self._asked():
                await self._wait_for_turn()
        except BaseException:
            await self._drop()
            raise
        self._task = asyncio.current_task()
        self._renewing = asyncio.create_task(self._renew(), name="leasequeue hold")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.cancel()
        await self._drop()
        if self._is_lost and isinstance(error, asyncio.CancelledError):
            if self._task is not None:
                self._task.uncancel()
            raise HoldLost(self._name) from error

    async def _wait_for_turn(self) -> None:
        turn = asyncio.Event()
        end = self._engine.pushes.follow(
            "turn", lambda ticket: turn.set() if ticket == self._ticket else None, missed=turn.set
        )
        try:
            while not await self._asked():
                # On Python 3.11, `wait_for` would swallow a cancellation that comes with the turn.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_ms / 1000):
                        await turn.wait()
                turn.clear()
        finally:
            end()

    async def _asked(self, *, renews: bool = False) -> bool:
        """Ask for the place, or renew it; return whether it is held."""
        asked_at = asyncio.get_running_loop().time()
        answer, self._wait_ms = await self._engine.run(
            "hold_take",
            hold_name=self._name.encode(),
            ticket=self._ticket,
            for_ms=self._lease_ms,
            renews=int(renews),
        )
        if answer == _NO_LIMITS:
            allowed = f"a name with limits: set them with limits.set(hold={self._name!r}, …)"
            raise InvalidArgument("name", self._name, allowed)
        if answer == _LOST:
            raise HoldLost(self._name)
        if answer != _WAITS:
            # Counted from before the call: the server counts from later.
            self._held_until = asked_at + self._lease_ms / 1000
        return bool(answer != _WAITS)

    async def _renew(self) -> None:
        """Renew the place three times in its lease; if it is lost, cancel the block."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                async with asyncio.timeout_at(self._held_until):
                    await self._asked(renews=True)
            except (LeasequeueError, TimeoutError) as error:
                if isinstance(error, HoldLost) or loop.time() >= self._held_until:
                    self._is_lost = True
                    if self._task is not None:
                        self._task.cancel()
                    return
                log.warning("the place of the limit %s is renewed later: %s", self._name, error)

    async def _drop(self) -> None:
        task = asyncio.create_task(self._give_back(), name="leasequeue drop hold")
        _dropping.add(task)
        task.add_done_callback(_dropping.discard)
        await asyncio.shield(task)

    async def _give_back(self) -> None:
        try:
            await self._engine.run("hold_drop", hold_name=self._name.encode(), ticket=self._ticket)
        except LeasequeueError as error:
            log.warning("the place of the limit %s becomes free when its time ends: %s", self._name, error)
        finally:
            self._engine.holds -= 1
