"""Calls in the slot of a queue, over its connection: for other queues too, and for keys of any name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leasequeue.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from leasequeue.queue.engine import Engine


class QueueObject(Protocol):
    """What is needed of an `AsyncWorkQueue`, which imports this module."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def _engine(self) -> Callable[[], Engine]: ...


async def run_at(
    queue: QueueObject, name: str, script: str, rest: Sequence[bytes] = (), **arguments: bytes | int
) -> Any:
    """Send a script of a queue in the slot of another one, or of the same queue, and return the reply.

    Args:
        queue: The queue object whose connection is used.
        name: The name of the queue.
        script: The script.
        rest: The values of its last argument.
        arguments: The other arguments.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    engine = _engine_of(queue)
    if name == queue.name:
        return await engine.run(script, rest, **arguments)
    return await engine.run_at(name, script, rest, **arguments)


def soon(queue: QueueObject, work: Coroutine[Any, Any, object]) -> None:
    """Do some work in a task that ends before the queue object is closed. Errors of the server are logged."""
    _engine_of(queue).soon(work)


async def expect_queues(queue: QueueObject, names: Iterable[str], why: str) -> None:
    """Check that the server permits this session to write to other queues in the slot, each once.

    Args:
        queue: The queue object whose connection is used.
        names: The names of the queues.
        why: What needs them, for the error.

    Raises:
        AccessDenied: If it does not permit one; the text has the rule that permits it.
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    rights = _engine_of(queue).session.runner.rights
    for name in dict.fromkeys(names):
        if name == queue.name or name in rights.reached:
            continue
        try:
            # Which settles nothing: no item has this id. The server checks the rules for all its keys.
            await run_at(queue, name, "run_settle", [b"\0"], cursor=b"0")
        except AccessDenied as error:
            raise error if error.commands else rights.denied_queue(name, why) from error
        rights.reached.add(name)


async def read_key(queue: QueueObject, command: bytes, key: bytes, *arguments: bytes) -> Any:
    """Send a command that reads one key in the slot of a queue, and return the reply.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    return await _engine_of(queue).read_at(command, key, *arguments)


async def read_keys(queue: QueueObject, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
    """Send commands that read keys in the slot of a queue at once, and return the replies.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    return await _engine_of(queue).read_many_at(commands)


def _engine_of(queue: QueueObject) -> Engine:
    return queue._engine()  # noqa: SLF001 - what `AsyncWorkQueue` shares with this room alone
