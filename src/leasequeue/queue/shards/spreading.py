"""The shards of a queue: which one an item is in, and calls on several of them."""

from __future__ import annotations

import asyncio
import itertools
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from leasequeue.durations import Duration, check_int
from leasequeue.errors import InvalidArgument, LeasequeueError, NotReplicated, PartlyApplied, ServerError
from leasequeue.queue.encoding import encoded_id
from leasequeue.queue.lease import Lease
from leasequeue.queue.plans.plan import SUB_RUN
from leasequeue.queue.queue import AsyncWorkQueue, engine_of, engines_of, next_level_of
from leasequeue.queue.shards.naming import place_of, shard_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from typing import NoReturn

    from leasequeue.codecs import Codecs
    from leasequeue.wire.endpoints import Client

T = TypeVar("T")
Given = TypeVar("Given")

#: The most shards of a queue.
MAX_SHARDS = 256
#: See `Shards.in_turn`.
FREE_TURNS = 5
#: What `shards=` may be spread by.
ShardBy = Literal["id", "group"]
#: Whether calls on several shards or queues leave out those that are away, as a page shows what is there.
IN_PART = ContextVar("leasequeue_in_part", default=False)
#: What a schedule appends to its name in the ids of its items, which are in the shard of the schedule.
_STAMP = re.compile(rb"@\d{4}-\d\d-\d\dT[\d:.]+Z$")
#: What follows the id of a run in that of a run for which one of its stages waits: both are in one shard.
_SUB_RUN = SUB_RUN.encode()
#: The id of an item of a flow run: that of the run, a stage, and the numbers of children.
_STAGE = re.compile(r"([^/]+)/[^/]+(?:/\d+)*")


class Shards:
    """The queues over which the items of a queue are spread. The arguments are those of `AsyncWorkQueue`.

    Attributes:
        all: The queues, in their order.
        by: By what items are spread.
    """

    def __init__(  # noqa: PLR0913 - all but four by name
        self,
        name: str,
        redis: Client,
        count: int,
        by: ShardBy,
        *,
        return_to: str,
        reply_timeout: Duration,
        clock: Callable[[], float] | None,
        replicas: int,
        codec: Codecs = None,
    ) -> None:
        check_int("shards", count, minimum=1, maximum=MAX_SHARDS)
        if by not in {"id", "group"}:
            raise InvalidArgument("shard_by", by, "'id' or 'group'")
        self.name, self.by = name, by
        self.all = tuple(
            AsyncWorkQueue(
                one,
                redis,
                return_to=return_to,
                reply_timeout=reply_timeout,
                clock=clock,
                replicas=replicas,
                codec=codec,
            )
            for one in shard_names(name, count)
        )
        for one in self.all:
            engines_of(one).blocks = False
        self._by_name = {one.name: one for one in self.all}
        #: With which shard the next call begins that asks one after the other.
        self._turn = itertools.count()
        self._is_checked = False

    def refuse(self) -> NoReturn:
        """Say that there is no engine of all shards together."""
        allowed = f"for this, a queue without shards, or one of its {len(self.all)} `shards`"
        raise InvalidArgument("queue", self.name, allowed)

    def in_turn(self) -> Sequence[AsyncWorkQueue]:
        """Return all shards: those with a higher level first, and beginning with another one in each call.

        One of `FREE_TURNS` calls does not look at levels, so that each shard has its turn.
        """
        turns, first = divmod(next(self._turn), len(self.all))
        shards = (*self.all[first:], *self.all[:first])
        if (turns - first) % FREE_TURNS == 0:
            return shards
        return sorted(shards, key=next_level_of, reverse=True)

    def of(self, item_id: str, group: str | None = None) -> AsyncWorkQueue:
        """Return the shard of an item: by its group, if it has one and they have shards, else by its id."""
        by = encoded_id(item_id) if group is None or self.by == "id" else group.encode()
        by = _STAMP.sub(b"", by.partition(_SUB_RUN)[0])
        return self.all[place_of(by, len(self.all))]

    def with_id(self, item_id: str) -> Sequence[AsyncWorkQueue]:
        """Return the shards in which an item of this id may be: one, unless groups have shards.

        An item of a flow run is in the shard of the run. Another one may have such an id, such as `order/7`:
        if all of these were in the shard of `order`, they would not be spread.
        """
        if self.by == "group":
            return self.all
        shard, stage = self.of(item_id), _STAGE.fullmatch(item_id)
        return (shard,) if stage is None else tuple(dict.fromkeys((shard, self.of(stage[1]))))

    def with_group(self, group: str | None) -> Sequence[AsyncWorkQueue]:
        """Return the shards that have items of a group; None: of the queue."""
        return self.all if group is None or self.by == "id" else (self.of("", group),)

    def holding(self, lease: Lease) -> AsyncWorkQueue:
        """Return the shard of a lease."""
        if not isinstance(lease, Lease) or lease.queue_name not in self._by_name:
            raise InvalidArgument("lease", lease, f"a lease of the queue {self.name!r}")
        return self._by_name[lease.queue_name]

    def forget(self) -> None:
        """Note the number of shards again at the next call, as the queue was deleted."""
        self._is_checked = False

    async def checked(self) -> None:
        """Compare the number of shards with the one that the queue was first used with, once.

        Raises:
            InvalidArgument: If they differ: an id would be in two shards.
        """
        if self._is_checked:
            return
        layout = f"{len(self.all)} {self.by}"
        noted: bytes = await engine_of(self.all[0]).run("open_shards", layout=layout.encode())
        if noted.decode(errors="replace") != layout:
            known, _, by = noted.decode(errors="replace").partition(" ")
            raise InvalidArgument(
                "shards",
                f"shards={len(self.all)}, shard_by={self.by!r}",
                f"shards={known}, shard_by={by!r}, as when the queue was first used"
                if noted
                else "another name, as the queue is used without shards",
            )
        self._is_checked = True

    async def each(
        self, call: Callable[[AsyncWorkQueue], Awaitable[T]], among: Sequence[AsyncWorkQueue] | None = None
    ) -> list[T]:
        """Make a call on several shards, all of them by default; return the answers in their order."""
        await self.checked()
        return [*(await answers_of({one: call(one) for one in among or self.all})).values()]

    async def spread(
        self,
        given: Sequence[Given],
        shard_of: Callable[[Given], AsyncWorkQueue],
        call: Callable[[AsyncWorkQueue, list[Given]], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """Make a call for each shard with its part of some values; return the answers in their order.

        Raises:
            PartlyApplied: If it fails on some of several shards.
            NotReplicated: If it fails on none, and replicas of some lack what it has done.
        """
        await self.checked()
        places: dict[AsyncWorkQueue, list[int]] = {}
        for place, one in enumerate(given):
            places.setdefault(shard_of(one), []).append(place)
        calls = (call(shard, [given[place] for place in some]) for shard, some in places.items())
        found = await asyncio.gather(*calls, return_exceptions=True)
        answers: list[T | None] = [None] * len(given)
        errors: list[BaseException] = []
        late: NotReplicated | None = None
        for some, reply in zip(places.values(), found, strict=True):
            if isinstance(reply, NotReplicated):
                late, its_answers = reply, cast("Sequence[T]", reply.answers)
            elif isinstance(reply, BaseException):
                errors.append(reply)
                continue
            else:
                its_answers = reply
            for place, answer in zip(some, its_answers, strict=True):
                answers[place] = answer
        for error in errors:
            if len(errors) == len(places) or not isinstance(error, LeasequeueError):
                raise error
        if errors:
            raise PartlyApplied(answers, replicated=late is None) from errors[0]
        if late is not None:
            late.answers = tuple(cast("list[bool]", answers))
            raise late
        return cast("list[T]", answers)

    async def any_of(self, item_id: str, call: Callable[[AsyncWorkQueue], Awaitable[T]]) -> T:
        """Make a call on each shard in which an item may be; return the first answer that says something."""
        answers = await self.each(call, self.with_id(item_id))
        return next((one for one in answers if one), answers[0])

    async def any_of_each(
        self,
        item_ids: Sequence[str],
        call: Callable[[AsyncWorkQueue, list[str]], Awaitable[Sequence[bool]]],
    ) -> list[bool]:
        """Make a call for each shard with those ids whose items may be in it; return for each if one agrees.

        Raises:
            PartlyApplied: As in `spread`.
        """
        where = [self.with_id(one) for one in item_ids]
        asked = [(one, shard) for one, shards in zip(item_ids, where, strict=True) for shard in shards]

        def joined(answers: Iterable[bool | None]) -> list[bool | None]:
            left = iter(answers)
            found = [[next(left) for _ in shards] for shards in where]
            return [True if any(some) else None if None in some else False for some in found]

        try:
            answers = await self.spread(
                asked, lambda pair: pair[1], lambda shard, some: call(shard, [one for one, _ in some])
            )
        except PartlyApplied as error:
            found = joined(cast("tuple[bool | None, ...]", error.answers))
            raise PartlyApplied(found, replicated=error.replicated) from error.__cause__
        return cast("list[bool]", joined(answers))


async def answers_of(calls: Mapping[Given, Awaitable[T]]) -> dict[Given, T]:
    """Make calls at once, and return their answers. With `IN_PART`, some may be missing, but not all."""
    found = await asyncio.gather(*calls.values(), return_exceptions=IN_PART.get())
    answers = {
        one: reply for one, reply in zip(calls, found, strict=True) if not isinstance(reply, Exception)
    }
    for reply in found:
        if isinstance(reply, Exception) and not (answers and isinstance(reply, ServerError)):
            raise reply
    return cast("dict[Given, T]", answers)
