"""What the worker, Spark and `leasequeue.testing` need of a queue object beyond its public surface.

Internal to Leasequeue: this module may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.queue.bulk import Bulk
from leasequeue.queue.encoding import encoded, encoded_id
from leasequeue.queue.engine import BATCHED, LEASING
from leasequeue.queue.registry import Registry
from leasequeue.queue.runs.reads import RunReader
from leasequeue.queue.slot import expect_queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.leasing import Watcher
    from leasequeue.queue.lifecycle import Lifecycle
    from leasequeue.queue.limits import DeclaredLimit
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.schedules import Declaration


def bulk(queue: AsyncWorkQueue) -> Bulk:
    """Return the calls that take rows which are already checked and encoded."""
    return Bulk(_lifecycle(queue).engine)


async def assist_another(queue: AsyncWorkQueue, session: str, *, reply_timeout: float) -> None:
    """Let the calls of the running event loop act for another session than before. See `assist`."""
    before = running_engine(queue)
    _lifecycle(queue).assist(session, reply_timeout=reply_timeout)
    if before is not None:
        await before.close()


async def replace_session(queue: AsyncWorkQueue) -> str:
    """Give the running event loop another session for this queue, since its session was failed; return it.

    What was leased before cannot be completed or released any more. Ids on their way to the old session
    return to the queue. Calls of the program that use the old session go on.

    Raises:
        QueueClosed: If the queue object is closed.
    """
    before = _lifecycle(queue).replace()
    await before.stop_listening()
    before.close_when_unused()
    return queue.session


def new_worker_id(queue: AsyncWorkQueue) -> str:
    """Return an id for a worker that starts in the running event loop.

    It is the session of this queue for the first one, and has a number for others that use the session.
    """
    session = _lifecycle(queue).engine().session
    session.workers += 1
    return session.id if session.workers == 1 else f"{session.id}.{session.workers}"


def registry(queue: AsyncWorkQueue) -> Registry:
    """Return the calls that register, list and fail the workers of a queue."""
    return Registry(_lifecycle(queue).engine)


def run_reader(queue: AsyncWorkQueue) -> RunReader:
    """Return the calls that read the flow runs of a queue."""
    return RunReader(_lifecycle(queue).engine)


def assist(queue: AsyncWorkQueue, session: str, *, reply_timeout: float) -> None:
    """Let the calls of the running event loop act for the session of another one, before the first of them.

    What was leased there can be renewed, completed and released here. Only the other event loop should wait
    for items: an id that arrives for a session goes to the first that takes it. After `queue.close()`, these
    calls are still possible; they end with the running event loop.

    Args:
        queue: The queue object.
        session: The session of the other event loop.
        reply_timeout: Seconds to wait for a reply.

    Raises:
        QueueClosed: If the queue object is closed.
    """
    _lifecycle(queue).assist(session, reply_timeout=reply_timeout)


def watch(queue: AsyncWorkQueue, watcher: Watcher) -> bool:
    """Notify a watcher once, when an item may be waiting in a queue that was empty at the last lease.

    The queue object listens until `unwatch`. An item that arrives while no watcher expects to be notified, or
    that none will lease, returns to the front of the queue at once.

    Returns:
        False if an item may be waiting now: lease without waiting, and then try again.

    Raises:
        QueueClosed: If the queue object is closed.
    """
    return _lifecycle(queue).engine().watch(watcher)


def unwatch(queue: AsyncWorkQueue, watcher: Watcher) -> None:
    """Notify a watcher no more."""
    if (engine := running_engine(queue)) is not None:
        engine.unwatch(watcher)


def release_soon(queue: AsyncWorkQueue, leases: Sequence[Lease]) -> None:
    """Release leases of a queue to its front, in their order, for a caller that was cancelled."""
    if (engine := running_engine(queue)) is not None:
        engine.release_soon([(encoded(lease), lease.token) for lease in leases])


def is_listening(queue: AsyncWorkQueue) -> bool:
    """Return whether an id may be on its way to one of its event loops; callable from any thread."""
    return any(engine.is_listening for engine in _lifecycle(queue).engines)


async def release_arrivals(queue: AsyncWorkQueue) -> int:
    """Return what is on its way to this session to the front of the queue; return how many ids there were.

    What was delivered is returned as well, and not counted. For the event loop that waits for items, or one
    that assists it, while that is blocked and cannot take them.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    engine = _lifecycle(queue).engine()

    def leave(accepted: list[bytes]) -> Awaitable[Any]:
        return engine.run("leave", accepted, stays=1)

    ours = [one for one in _lifecycle(queue).engines if one.session.id == engine.session.id]
    waiting = next((one for one in ours if not one.session.adopted), engine)
    return await waiting.deliveries.recall(leave)


def on_push(
    queue: AsyncWorkQueue,
    kind: str,
    handle: Callable[[bytes], None],
    *,
    missed: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """Call a function for each message of a kind that is published to this session, until that is ended.

    For as long, the session receives `<queue>:push:<session>`, also while it waits for no item: one SUBSCRIBE
    for the queue, on the one connection of the session for all pushes. If the server is away, that begins
    when it is back; where its access rules forbid the channel, no message arrives. Not for an event loop that
    assists: a session receives once, as the server counts who has received a delivery.

    Args:
        queue: The queue object.
        kind: The first word of the messages.
        handle: Called in this event loop with what follows that word and a space.
        missed: Called when messages may have been missed: when the subscription has begun, when the
            connection has ended and when it is there again, and when the queue object is closed.

    Returns:
        What ends it. Calling it twice is fine.

    Raises:
        QueueClosed: If the queue object is closed.
    """
    engine = _lifecycle(queue).engine()
    if engine.session.adopted:
        raise RuntimeError("an event loop that assists another one receives no pushes")
    receiver = engine.pushes.add(kind, handle, missed)
    engine.pushes.hold_soon(missed)
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            ended = True
            receiver.close()
            engine.pushes.release()

    return end


async def replace_data(queue: AsyncWorkQueue, lease: Lease, data: bytes) -> bool:
    """Replace the data of a leased item, for its next holder; the lease goes on.

    Args:
        queue: The queue object.
        lease: The lease of the item. Only the current holder is accepted.
        data: The new data.

    Returns:
        False if the item is no longer the holder's.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.complete`. Repeating is safe.
    """
    row = (encoded(lease), b"%d" % lease.token, data)
    return bool((await _lifecycle(queue).engine().run("replace_data", row))[0] == 1)


async def end_lease(queue: AsyncWorkQueue, item_id: str, token: int) -> bool:
    """End the lease of a holder that is known to be dead: its item returns to the front of the queue.

    Args:
        queue: The queue object.
        item_id: The id of the item.
        token: The token of the lease.

    Returns:
        False if the item is under another lease, or under none.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.complete`. Repeating is safe.
    """
    row = (encoded_id(item_id), b"%d" % token)
    return bool((await _lifecycle(queue).engine().run("end_leases", row))[0] == 1)


async def stop_listening(queue: AsyncWorkQueue) -> None:
    """Stop listening for items if no caller waits, and return when none is on its way to this event loop.

    Otherwise the queue object does so a moment after the last call of `lease`; if its process ends before,
    items sent to it are held up for some seconds. `close` stops listening, too.
    """
    if (engine := running_engine(queue)) is not None:
        await engine.stop_listening()


async def expect_rights(queue: AsyncWorkQueue, adds_to: Iterable[str] = ()) -> None:
    """Check that the server permits the session of the running event loop what a worker needs.

    What only other calls need is logged. The commands are those of the whole queue: a rule for single keys of
    it is found when they are used.

    Args:
        queue: The queue.
        adds_to: The names of other queues in its slot to which the worker adds items of flow runs, or which
            hold their state.

    Raises:
        AccessDenied: If one of these queues is forbidden, or a command of the scripts with which items are
            leased and acknowledged, or `BLMOVE`. The text has the rules that permit them.
        QueueClosed, ServerError: If the server cannot be asked.
    """
    engine = _lifecycle(queue).engine()
    await engine.session.runner.expect_rights(LEASING | BATCHED.keys(), engine.keys)
    await expect_queues(queue, adds_to, "which the stages of a flow need")


async def ask_server(queue: AsyncWorkQueue, *commands: tuple[bytes, ...]) -> list[Any]:
    """Send plain commands about the server of a queue; return the replies and the errors.

    Raises:
        QueueClosed, ServerError: If the server cannot be asked.
    """
    return await _lifecycle(queue).engine().session.runner.ask(*commands)


async def check_waiting(queue: AsyncWorkQueue) -> tuple[int, bool]:
    """Return how many items wait for any worker, and whether a queue has limits or pauses: they may have to.

    It costs the same however many workers there are.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    waiting, has_limits = await _lifecycle(queue).engine().run("check_waiting")
    return waiting, bool(has_limits)


async def take_clean_turn(queue: AsyncWorkQueue, *, deep: bool, every: float) -> bool:
    """Return whether this session is to clean a queue now, rather than the one that does so already.

    Args:
        queue: The queue object.
        deep: Whether it is to be a deep clean.
        every: This session cleans once in so many seconds, on average. One that has not cleaned for twice as
            long is dead.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    every_ms = max(1, round(every * 1000))
    return bool(await _lifecycle(queue).engine().run("clean_turn", deep=int(deep), every_ms=every_ms))


async def declare_limit(queue: AsyncWorkQueue, limit: DeclaredLimit) -> None:
    """Set the limits of a group to those that a program declares.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    await queue.limits._declare(limit)  # noqa: SLF001 - a door for the worker


async def declare(queue: AsyncWorkQueue, declaration: Declaration) -> bool:
    """Store a schedule, or keep it, because this program has it.

    Of several definitions of a name that are declared at the same time, the one counts that was declared
    first at the latest time, by the server's clock.

    Returns:
        True if it is new or was changed.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    return await queue.schedules._declare(declaration)  # noqa: SLF001 - see `_lifecycle`


async def expire_declared(queue: AsyncWorkQueue) -> list[str]:
    """Remove the schedules that were declared once, and not in the last hour; return their names.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    return await queue.schedules._expire_declared()  # noqa: SLF001 - see `_lifecycle`


def running_engine(queue: AsyncWorkQueue) -> Engine | None:
    """Return the engine of a queue object in the running event loop, if it has been made."""
    return _lifecycle(queue).running


def engines(queue: AsyncWorkQueue) -> list[Engine]:
    """Return the engines of a queue object in all event loops."""
    return _lifecycle(queue).engines


def clock_of(queue: AsyncWorkQueue) -> Callable[[], float] | None:
    """Return the clock that a queue object was given in place of the server's."""
    return _lifecycle(queue).clock


def set_engine_factory(queue: AsyncWorkQueue, make: Callable[..., Engine]) -> None:
    """Have the engines of a queue object made by `make`, before its first call."""
    _lifecycle(queue).make_engine = make


def _lifecycle(queue: AsyncWorkQueue) -> Lifecycle:
    return queue._lifecycle  # noqa: SLF001 - this module is the one door to what is private
