"""Children of a stage, as its function returns them: calls of any tasks."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from leasequeue.durations import check_list
from leasequeue.errors import InvalidArgument, InvalidCall, InvalidFanOut
from leasequeue.queue.plans.building import join_of
from leasequeue.queue.plans.plan import ChildPlan
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.tasks.task import Call
from leasequeue.tasks.wire import data_of
from leasequeue.worker.run import RUNNING
from leasequeue.worker.stage_context import CURRENT, FanOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasequeue.queue.plans.plan import Join

R = TypeVar("R")
T = TypeVar("T")


@overload
def fan_out(calls: Iterable[Call[FanOut[T]]], *, join: Join = "all") -> FanOut[list[T]]: ...
@overload
def fan_out(calls: Iterable[Call[R]], *, join: Join = "all") -> FanOut[R]: ...


def fan_out(calls: Iterable[Call[Any]], *, join: Join = "all") -> FanOut[Any]:
    """Return what the function of a stage returns to let calls run side by side before the next stage.

        @tasks.task
        async def plan_rewards(guild: int) -> FanOut[Receipt]:
            return fan_out([discord.call(guild), *(telegram.call(chat) for chat in chats)], join="settled")

    The stage is done when they are; its result is the list of their results, in their order. No worker waits
    for them. A child may fan out again; a chain or a group can be no child.

    Args:
        calls: Calls of any tasks, on queues in the slot of the flow run; any number, also none. They are
            written when the function has returned, some in each turn of the worker's event loop.
        join: What to do if one fails, or is cancelled. `"all"`: the stage fails when the others are done.
            `"settled"`: the list has the results of those that succeeded. `"fail"`: the run fails at once;
            `"fail_fast"`: and the others are cancelled. `AtLeast(n)`: as soon as `n` succeeded, the others
            are cancelled; if `n` cannot, the stage fails.

    Raises:
        InvalidFanOut: If one is no call or cannot be a child, or `join` is none of these, or wants more than
            there are. If the function does not catch it, its stage fails at once.
    """
    try:
        listed = check_list("calls", calls, "calls of tasks")
        text = join_of(join, len(listed))
    except InvalidArgument as error:
        if type(error) is not InvalidArgument:  # of a call that an iterable makes
            raise
        raise InvalidFanOut(error.given, str(error)) from error
    children = Children(listed)
    return FanOut(children, text, children.returned)


class Children(abc.Sequence[ChildPlan]):
    """Calls as children of a stage. Each is written when it is read, so many of them delay no other call.

    Attributes:
        returned: What the called tasks say that they return, by their names.
    """

    def __init__(self, calls: Sequence[Any]) -> None:
        self._calls = calls
        self.returned: dict[str, Any] = {}
        #: What is the same in calls of a task with the same options: when they run first, and the rest.
        self._kinds: dict[tuple[int, int], tuple[int, ChildPlan]] = {}
        for call in calls:
            if not isinstance(call, Call):
                raise InvalidFanOut(
                    call,
                    "expected calls of tasks, task.call(…); a chain can be no child, nor a group: let the "
                    "child fan out again",
                )
            if call._kind not in self._kinds:  # noqa: SLF001 - of this room
                self._kinds[call._kind] = self._kind_of(call)  # noqa: SLF001 - as above

    def _kind_of(self, call: Call[Any]) -> tuple[int, ChildPlan]:
        try:
            call._as_part()  # noqa: SLF001 - as above
        except InvalidCall as error:
            raise InvalidFanOut(call, str(error)) from error
        prepared = call._as_call()  # noqa: SLF001 - as above
        if prepared.expires_ms:
            raise InvalidFanOut(call, f"{prepared.task}: a child does not expire: leave out `expires_in`")
        run = RUNNING.get()
        if run is not None and run.handler.queue.url != prepared.queue.url:
            here = run.handler.queue.url
            raise InvalidFanOut(
                call, f"the queue of {prepared.task} is on {prepared.queue.url}, and the flow run on {here}"
            )
        stage = CURRENT.get()  # in a separate process, there is no run
        home = stage.home if stage is not None else run and run.handler.queue.name
        names = {None, *(one.name for one in call.queue.shards)}
        if isinstance(call.queue, ShardedQueue) and home not in names:
            problem = "its queue has shards, and none has the flow run: let a task add this call"
            raise InvalidFanOut(call, f"{prepared.task}: {problem}")
        self.returned[prepared.task] = call._returns  # noqa: SLF001 - as above
        return prepared.due_ms, prepared.child(first=True)

    @overload
    def __getitem__(self, at: int) -> ChildPlan: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ChildPlan]: ...

    def __getitem__(self, at: int | slice) -> ChildPlan | Sequence[ChildPlan]:
        """Return a child, or some."""
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        call: Call[Any] = self._calls[at]
        due_ms, like = self._kinds[call._kind]  # noqa: SLF001 - of this room
        return replace(like, data=data_of(call.task, call._arguments, due_ms))  # noqa: SLF001 - as above

    def __len__(self) -> int:
        """Return how many children there are."""
        return len(self._calls)

    def __reduce__(self) -> tuple[type[tuple[ChildPlan, ...]], tuple[list[ChildPlan]]]:
        return tuple, ([*self],)  # calls refer to functions and queues
