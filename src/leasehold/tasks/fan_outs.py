"""Children of a stage, as its function returns them: calls of any tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from leasehold.durations import check_list
from leasehold.errors import InvalidArgument, InvalidCall
from leasehold.tasks.plans import child_of, join_of
from leasehold.tasks.task import Call
from leasehold.worker.returns import FanOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.queue.plan import ChildPlan, Join

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
    for them. A child may fan out again.

    Args:
        calls: Calls of any tasks, on queues in the slot of the flow run; any number, also none.
        join: What to do if one fails, or is cancelled. `"all"`: the stage fails when the others are done.
            `"settled"`: the list has the results of those that succeeded. `"fail"`: the run fails at once;
            `"fail_fast"`: and the others are cancelled. `AtLeast(n)`: as soon as `n` succeeded, the others
            are cancelled; if `n` cannot, the stage fails.

    Raises:
        InvalidArgument: If one is no call, or `join` is none of these, or wants more than there are.
        InvalidCall: If a call cannot be a child.
    """
    returned: dict[str, Any] = {}
    children = [_child(call, returned) for call in check_list("calls", calls, "calls of tasks")]
    return FanOut(tuple(children), join_of(join, len(children)), returned)


def _child(call: object, returned: dict[str, Any]) -> ChildPlan:
    """Return a call as a child, and note what its task returns."""
    if not isinstance(call, Call):
        raise InvalidArgument("calls", call, "calls of tasks: task.call(…); a chain can be no child")
    node = call._node()  # noqa: SLF001 - of this room
    prepared = node.prepare()
    returned[prepared.task] = node.returns
    if prepared.expires_ms:
        raise InvalidCall(prepared.task, "a child does not expire: leave out `expires_in`")
    return child_of(prepared, first=True)
