"""Taking turns: of any number of copies of the autoscaler, one leads.

The autoscaler's queue has one item, `pass`, and its data is the state. A copy that makes a pass leases it,
replaces its data and releases it. So a state is neither lost nor doubled, wherever a copy dies: if it has not
replaced the data, the next copy begins where it began, otherwise where it ended.

The copy that leads leases the item at each of its turns. A standby leases it when it has not changed for
two and a half turns, by its own clock, when the leader has noted that it stops, or when its connections show
that it is dead. Then the standby ends the lease that the leader holds, by its token: if the leader lives in
spite of that, its pass is refused, as after the end of its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.alive.connections import NOT_CHECKABLE, Mark
from leasequeue.alive.ring import LeaderWatch
from leasequeue.autoscale.flow_children import Learned  # noqa: TC001 - msgspec reads the types when it runs
from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.item import Item
from leasequeue.queue.encoding import encoded, encoded_id
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.autoscale.config import Config
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.views import ItemView

#: The form in which the state is kept. A state of another form is dropped.
VERSION = 1

log = Log("leasequeue.autoscale")


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of all passes so far. It is the data of the item that copies lease in turn."""

    version: int = VERSION
    #: How many passes have ended.
    number: int = 0
    #: When the last one began, by the server's clock (s since 1970).
    at: float = 0.0
    #: The copy that leads; empty: it has stopped, and any other may lead at once.
    leader: str = ""
    #: How others can see whether that copy is alive: see `Mark`.
    session: str = ""
    connections: tuple[int, ...] = ()
    server: str = ""
    #: What the configuration was, as a digest.
    settings: str = ""
    #: What `plan` is to be given, and for each job what `measure` is.
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    #: On which queues the children are that the functions of flows return.
    children: list[Learned] = msgspec.field(default_factory=list)
    #: The last report; None: there is none.
    report: dict[str, Any] | None = None

    @property
    def mark(self) -> Mark:
        """How others can see whether the copy that leads is alive."""
        return Mark(self.connections, self.server, self.session)

    def led_by(self, copy: str, mark: Mark) -> State:
        """Return this state with another copy that leads; empty: none does."""
        return msgspec.structs.replace(self, leader=copy, **mark._asdict())


def encode_state(state: State) -> bytes:
    """Return a state as JSON; without what is remembered, if JSON cannot hold that."""
    try:
        return msgspec.json.encode(state)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        log.warning("the state of the autoscaler cannot be kept, and begins as a new one: %s", error)
        return msgspec.json.encode(msgspec.structs.replace(state, plan={}, jobs={}, report=None))


def decode_state(data: bytes) -> tuple[State, str]:
    """Return the state that some data holds, and why it could not be read; then the state is a new one.

    No data is a new state, too.
    """
    if not data:
        return State(), ""
    try:
        state = msgspec.json.decode(data, type=State)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return State(), str(error)
    if state.version != VERSION or state.number < 0:
        return State(), f"its version is {state.version}, and its number {state.number}"
    return state, ""


def digest_of(config: Config) -> str:
    """Return a digest of what is wished, to notice that it has changed between two passes."""
    return hashlib.sha256(repr((config.policy, config.deployments)).encode()).hexdigest()[:16]


#: The id of the item that is leased in turn.
PASS_ID = "pass"  # noqa: S105 - no password
#: The item is leased for so many turns, but for at least and at most so long (s), and renewed during them.
LEASE_TURNS, MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 3.0, 30.0, 120.0
#: For how many turns the item must not change until a standby leases it.
STANDBY_TURNS = 2.5
#: How many other items a turn delays that are on the queue by mistake.
MAX_STRANGERS = 20

log = Log("leasequeue.autoscale")


class Turn:
    """The right to make one pass, with the state that the pass before has left."""

    def __init__(
        self, queue: AsyncWorkQueue, lease: Lease, state: State, *, copy: str, lease_time: float
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._copy = copy
        self._mark = NOT_CHECKABLE
        self._lease_time = lease_time
        #: When the item was leased, by the server's clock (s since 1970).
        self.at = lease.deadline - lease_time
        self.state = state

    async def confirm(self) -> bool:
        """Renew the lease; return whether this copy still leads."""
        return await self._queue.renew(self._lease, self._lease_time)

    async def claim(self, mark: Mark) -> bool:
        """Note which copy leads, and how others can see whether it is alive; return whether it still led."""
        self._mark = mark
        return self.state == self._claimed(self.state) or await self.keep(self.state)

    async def keep(self, state: State) -> bool:
        """Keep the state for the next pass, led by this copy; return whether this copy still led.

        Raises:
            ServerError: If the state was perhaps not kept. The next pass then begins with the one before.
        """
        return await self._replace(self._claimed(state))

    async def hand_over(self) -> bool:
        """Note that no copy leads; return whether this copy still led."""
        return await self._replace(self.state.led_by("", NOT_CHECKABLE))

    def _claimed(self, state: State) -> State:
        return state.led_by(self._copy, self._mark)

    async def _replace(self, state: State) -> bool:
        row = (encoded(self._lease), b"%d" % self._lease.token, encode_state(state))
        if (await engine_of(self._queue).run("replace_data", row))[0] != 1:
            return False
        self.state = state
        return True

    async def emit(self, event: object) -> None:
        """Emit an event of this pass. If the lease was lost, or the server is away, there is none."""
        with contextlib.suppress(LeasequeueError):
            await self._queue.progress(self._lease, event)

    async def renew_until_cancelled(self) -> None:
        """Renew the lease, as a pass may take longer, until it is lost."""
        while True:
            await asyncio.sleep(self._lease_time / 3)
            try:
                if not await self.confirm():
                    return
            except LeasequeueError as error:
                log.warning("the lease of the pass could not be renewed: %s", error)

    async def end(self) -> Lease | None:
        """Release the item for the next turn; return the lease if that fails: it is to be released later."""
        try:
            await self._queue.release(self._lease)
        except LeasequeueError as error:
            log.warning("the pass could not be released: %s", error)
            return self._lease
        return None


class Leadership:
    """Whether this copy leads."""

    def __init__(self, queue: AsyncWorkQueue, *, copy: str, every: float) -> None:
        self._queue = queue
        self._copy = copy
        self._lease_time = min(max(MIN_LEASE_SECONDS, LEASE_TURNS * every), MAX_LEASE_SECONDS)
        self._standby_time = STANDBY_TURNS * every
        self._leads = self._follows = False
        self.liveness = LeaderWatch(queue)
        #: What was last seen of the item, and since when it has been so, by `time.monotonic()`.
        self._seen: object = None
        self._seen_since = time.monotonic()
        #: The number and the leader of the state when this copy saw that it may lead.
        self._free = (0, "")
        #: The lease of a turn that could not be released, as the server was away.
        self._left: Lease | None = None
        #: The last state that this copy has kept while it led.
        self._kept: State | None = None

    @property
    def leads(self) -> bool:
        """Whether this copy has made the last pass that it knows of."""
        return self._leads

    @contextlib.asynccontextmanager
    async def turn(self, *, at_once: bool = False) -> AsyncIterator[Turn | None]:
        """Begin a turn, if it is up to this copy, or `at_once`, and end it; None: another copy leads."""
        if self._left is not None:
            await self._queue.release(self._left)
            self._left = None
        lease = await self._lease() if at_once or self._leads or await self._is_free() else None
        if lease is None:
            self._follow()
            yield None
            return
        turn = Turn(self._queue, lease, self._state_in(lease), copy=self._copy, lease_time=self._lease_time)
        if not at_once and self._is_overtaken(turn.state):
            # Another copy has led since this one has looked, or made its last pass: it was perhaps stopped.
            self._left = await turn.end()
            self._follow()
            yield None
            return
        renewing = asyncio.create_task(turn.renew_until_cancelled(), name="leasequeue pass")
        try:
            if await turn.claim(await self.liveness.mark()):
                yield turn
            else:
                self.lost()
                yield None
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            self._left = await turn.end()

    def _is_overtaken(self, state: State) -> bool:
        """Return whether another copy leads, by the state that was found when the item was leased."""
        if self._leads:
            return state.leader not in {"", self._copy}
        return (state.number, state.leader) != self._free

    def lead(self, state: State) -> None:
        """Note that this copy has kept a state, so that it leads."""
        if not self._leads:
            log.info("this copy leads: %s", self._copy)
        self._leads, self._follows, self._kept = True, False, state

    def _follow(self) -> None:
        """Note that another copy leads."""
        if not self._follows:
            log.info("another copy leads; this one stands by: %s", self._copy)
        self._leads, self._follows, self._kept = False, True, None

    def lost(self) -> None:
        """Note that another copy has taken the lead during a pass of this one."""
        log.warning("another copy has taken the lead during a pass, whose result is dropped: %s", self._copy)
        self._leads, self._kept, self._seen = False, None, None

    async def hand_over(self) -> None:
        """If this copy leads, note that it stops, so that another one leads at once."""
        if self._leads:
            async with self.turn() as turn:
                if turn is not None and await turn.hand_over():
                    log.info("this copy has handed over the lead: %s", self._copy)
        self._leads, self._kept = False, None

    async def announce(self) -> None:
        """If this copy leads and has other connections than it has noted, note them."""
        if self._leads and self._kept is not None and self._kept.mark != await self.liveness.mark():
            async with self.turn() as turn:
                if turn is not None:
                    self._kept = turn.state

    @property
    def suspects(self) -> bool:
        """Whether the copy that leads seems to be dead, so that it is to be looked at again soon."""
        return not self._leads and self.liveness.suspects

    async def read(self) -> State | None:
        """Return the state of the last pass, without changing anything; None: there is none."""
        found = await self._queue.find(PASS_ID)
        return None if found is None or found.data is None else decode_state(found.data)[0]

    async def _is_free(self) -> bool:
        """Return whether a standby may lease the item now."""
        try:
            found = await self._queue.find(PASS_ID)
        except LeasequeueError:
            self._seen = None  # the leader cannot reach the server either
            raise
        if found is None:
            self._free = (0, "")
            return await self._queue.add_item(Item(b"", id=PASS_ID))
        now = time.monotonic()
        seen = (found.state, found.token, found.due)
        if seen != self._seen:
            self._seen, self._seen_since = seen, now
        state, _ = decode_state(found.data or b"")
        self._free = (state.number, state.leader)
        if found.state == "waiting" and state.leader in {"", self._copy}:
            return True
        return await self._has_died(found, state) or now - self._seen_since >= self._standby_time

    async def _has_died(self, found: ItemView, state: State) -> bool:
        """Return whether the copy that leads is dead; end the lease that it holds."""
        if not await self.liveness.is_dead(state.mark):
            return False
        if found.state == "leased":
            if found.holder != state.session or found.token is None:
                return False  # another copy has begun a turn
            row = (encoded_id(PASS_ID), b"%d" % found.token)
            if (await engine_of(self._queue).run("end_leases", row))[0] != 1:
                return False
        log.warning("the copy that led is dead, as its connections are gone: %s", state.leader)
        return True

    async def _lease(self) -> Lease | None:
        await self._queue.add_item(Item(b"" if self._kept is None else encode_state(self._kept), id=PASS_ID))
        for _ in range(MAX_STRANGERS):
            lease = await self._queue.lease(self._lease_time, block=False)
            if lease is None:
                await self._check_pause()
            if lease is None or lease.id == PASS_ID:
                return lease
            log.warning(
                "the queue %s of the autoscaler has another item, %r: give it a separate name",
                self._queue.name,
                lease.id,
            )
            await self._queue.release(lease, front=False)
        return None

    async def _check_pause(self) -> None:
        """Check that the queue is not paused: then no copy can lease the item."""
        pause = (await self._queue.limits.get()).paused
        if pause is None or (pause.until is not None and pause.until <= time.time()):
            return
        why = pause.reason and f" ({pause.reason})"
        raise LeasequeueError(
            f"the autoscaler's own queue {self._queue.name} is paused{why}, so no pass can be made: "
            f"`leasequeue resume {self._queue.name}`"
        )

    def _state_in(self, lease: Lease) -> State:
        state, problem = decode_state(lease.data)
        if problem:
            log.warning("the state of the autoscaler cannot be read, and begins as a new one: %s", problem)
        if self._kept is not None and state.number < self._kept.number:
            log.warning("the server has lost the last state; continuing with the one that this copy has")
            return self._kept
        return state
