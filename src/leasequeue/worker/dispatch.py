"""A queue whose items name the handler that they are for: which of several handlers a run gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from leasequeue.errors import InvalidArgument
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.worker.handler import Consumer, Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.limits import DeclaredLimit
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.schedules import Declaration
    from leasequeue.worker.retry import RetryPolicy


class HandlerSource(Protocol):
    """What a `Worker` takes handlers from, besides `Worker.handler`: a `TaskQueue`."""

    def consumers(self, *, retry: RetryPolicy, lease_time: float) -> Sequence[Dispatcher]:
        """Return a dispatcher for each queue.

        The policy and the lease time (in seconds) are for tasks without one.
        """


class Dispatcher(Consumer):
    """The handlers of one queue, and the choice between them.

    Items are leased for the longest lease time of the handlers, since it is not known before for which of
    them they are; they are renewed for that of their handler. A batch has those items for its handler that
    were leased together, so it is smaller than in its own queue. `choose` returns the name of the handler
    that an item is for; `otherwise` is the handler of items for which there is no other one. Two handlers of
    one name are refused.
    """

    def __init__(
        self,
        queue: AsyncWorkQueue,
        handlers: Sequence[Handler],
        *,
        choose: Callable[[Lease], str],
        otherwise: Handler,
        declarations: Sequence[Declaration] = (),
        limits: Sequence[DeclaredLimit] = (),
    ) -> None:
        self.queue = queue
        self.declarations = declarations
        self.limits = limits
        self.name = queue.name
        known = handlers or [otherwise]
        # A batch that has gathered is leased as a whole, by a call that asks for one item or more.
        self.batch = min(1 if handler.gathers else handler.batch or 1 for handler in known)
        self.gathers = any(handler.gathers for handler in known)
        self.weight = max(handler.weight for handler in known)
        self.lease_time = max(handler.lease_time for handler in known)
        self._choose = choose
        self._by_name: dict[str, Handler] = {}
        for handler in handlers:
            if handler.name in self._by_name:
                raise InvalidArgument(
                    "handler", handler.name, "a name that no other handler of the queue has"
                )
            self._by_name[handler.name] = handler
        self._otherwise = otherwise
        for handler in self.all_handlers:
            handler.consumer = self

    @property
    def handlers(self) -> Sequence[Handler]:
        """Its handlers, without the one for items that no other is for."""
        return tuple(self._by_name.values())

    @property
    def all_handlers(self) -> Sequence[Handler]:
        """The handlers that its runs may have."""
        return (*self._by_name.values(), self._otherwise)

    def assign(
        self, leases: Sequence[Lease]
    ) -> tuple[list[tuple[Handler, Lease]], dict[Handler, list[Lease]]]:
        """Choose the handlers of items: of each for its own run, in order, and of those for batches."""
        single: list[tuple[Handler, Lease]] = []
        batches: dict[Handler, list[Lease]] = {}
        for lease in leases:
            handler = self._by_name.get(self._choose(lease), self._otherwise)
            if handler.batch is None:
                single.append((handler, lease))
            else:
                batches.setdefault(handler, []).append(lease)
        return single, batches

    def joined(self, other: Dispatcher) -> Self:
        """Return a dispatcher with the handlers of another one for the same queue, too.

        It is this one if the other one has the same functions under the same names: a task queue and its
        flows may all be sources of a worker.
        """
        ours = {handler.name: handler.function for handler in self.handlers}
        self.adds_to = [*dict.fromkeys([*self.adds_to, *other.adds_to])]
        self.feeds = [*dict.fromkeys([*self.feeds, *other.feeds])]
        self.foreign = [*dict.fromkeys([*self.foreign, *other.foreign])]
        if all(ours.get(handler.name) is handler.function for handler in other.handlers):
            return self
        return self._copy(
            self.queue,
            [handler.on(self.queue) for one in (self, other) for handler in one.handlers],
            declarations=[*self.declarations, *other.declarations],
            limits=[*self.limits, *other.limits],
        )

    def on(self, queue: AsyncWorkQueue) -> Self:
        """Return a copy for the items of another queue."""
        handlers = [handler.on(queue) for handler in self._by_name.values()]
        return self._copy(queue, handlers, declarations=self.declarations, limits=self.limits)

    def _copy(self, queue: AsyncWorkQueue, handlers: Sequence[Handler], **declared: Any) -> Self:
        otherwise = self._otherwise.on(queue)
        made = type(self)(queue, handlers, choose=self._choose, otherwise=otherwise, **declared)
        made.adds_to, made.feeds, made.foreign = self.adds_to, self.feeds, self.foreign
        return made


def one_for_each_queue(handlers: Iterable[Consumer], dispatchers: Iterable[Dispatcher]) -> list[Consumer]:
    """Join the dispatchers of one queue, which would lease each other's items.

    `handlers` are those of queues without tasks: one whose queue has tasks is refused.
    """
    found: dict[object, Dispatcher] = {}
    for one in dispatchers:
        place = _place_of(one.queue)
        found[place] = found[place].joined(one) if place in found else one
    others = [*handlers]
    for other in others:
        if _place_of(other.queue) in found:
            raise InvalidArgument(
                "handler", other.name, f"a queue without tasks; it would be given those of {other.queue.name}"
            )
    return [*others, *found.values()]


def for_each_shard(consumer: Consumer) -> list[Consumer]:
    """Return a copy of what serves a queue for each of its shards, if it has some."""
    queue = consumer.queue
    if not isinstance(queue, ShardedQueue):
        return [consumer]
    found: list[Consumer] = []
    for shard in queue.shards:
        one = consumer.on(shard)
        one.weight = consumer.weight / len(queue.shards)
        one.declarations = [each for each in consumer.declarations if queue.shard_of(each.name) is shard]
        parts = (queue.divided.part_of(limit, shard) for limit in consumer.limits)
        one.limits = [part for part in parts if part is not None]
        found.append(one)
    return found


def foreign_queues(consumers: Sequence[Consumer]) -> list[AsyncWorkQueue]:
    """Return the queues that a worker maintains, and does not serve: each once."""
    served = {_place_of(one.queue) for one in consumers}
    found = {_place_of(queue): queue for one in consumers for queue in one.foreign}
    return [queue for place, queue in found.items() if place not in served]


def _place_of(queue: AsyncWorkQueue) -> object:
    """Return what two objects of the same queue have in common; on a cluster, it is not known."""
    return queue if queue.url is None else (queue.url, queue.name)
