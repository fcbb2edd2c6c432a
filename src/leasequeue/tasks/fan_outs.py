"""Children of a stage, as its function returns them: calls of any tasks."""

# ruff: noqa: SLF001 - steps are of this room; their methods are not for users

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from leasequeue.durations import check_list
from leasequeue.errors import InvalidArgument, InvalidCall, InvalidFanOut
from leasequeue.queue.plans.building import join_of
from leasequeue.queue.plans.plan import CHAIN, MAX_CHILD_DEPTH, MAX_CHILD_ITEMS, ChildPlan
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.tasks.chains import Chain, Group, Step
from leasequeue.tasks.task import Call
from leasequeue.worker.run import RUNNING
from leasequeue.worker.stage_context import CURRENT, FanOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leasequeue.queue.plans.plan import Join, Need

R = TypeVar("R")
T = TypeVar("T")


@overload
def fan_out(calls: Iterable[Step[FanOut[T]]], *, join: Join = "all") -> FanOut[list[T]]: ...
@overload
def fan_out(calls: Iterable[Step[R]], *, join: Join = "all") -> FanOut[R]: ...


def fan_out(calls: Iterable[Step[Any]], *, join: Join = "all") -> FanOut[Any]:
    """Return what the function of a stage returns to let calls run side by side before the next stage.

        @tasks.task
        async def plan_rewards(guild: int) -> FanOut[Receipt]:
            return fan_out([discord.call(guild), *(telegram.call(chat) for chat in chats)], join="settled")

    The stage is done when they are; its result is the list of their results, in their order. No worker waits
    for them. A child may fan out again. It may be a chain, whose result is that of its last part; or a group,
    whose result is a list.

    Args:
        calls: Calls of any tasks, or chains and groups of up to 250 calls each, on queues in the slot of the
            flow run; any number, also none. They are written when the function has returned, some in each
            turn of the worker's event loop.
        join: What to do if one fails, or is cancelled. `"all"`: the stage fails when the others are done.
            `"settled"`: the list has the results of those that succeeded. `"fail"`: the run fails at once;
            `"fail_fast"`: and the others are cancelled. `AtLeast(n)`: as soon as `n` succeeded, the others
            are cancelled; if `n` cannot, the stage fails.

    Raises:
        InvalidFanOut: If one is no call, chain or group, or cannot be a child, or `join` is none of these, or
            wants more than there are. If the function does not catch it, its stage fails at once.
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
            if not isinstance(call, Step):
                raise InvalidFanOut(
                    call, "expected calls of tasks, task.call(…), or chains and groups of them"
                )
            if isinstance(call, Call):
                self._check(call)
            else:
                self._check_parts(call)

    def _check(self, call: Call[Any]) -> None:
        try:
            call._group()
            if call._kind not in self._kinds:
                self._kinds[call._kind] = self._kind_of(call)
        except InvalidCall as error:
            raise InvalidFanOut(call, str(error)) from error
        self.returned[call.task] = call._returns

    def _check_parts(self, step: Step[Any]) -> None:
        """Check a chain or a group, and the calls in it."""
        others = dict(self.returned)
        calls = [*self._calls_in(step, depth=0, begins=True)]
        if len(calls) > MAX_CHILD_ITEMS:
            problem = f"it has {len(calls):,} calls, more than {MAX_CHILD_ITEMS}: let one of them fan out"
            raise InvalidFanOut(step, problem)
        for call, begins in calls:
            self._check(call)
            if call._options.at is not None and not begins:
                problem = f"{call.task} has a time, `at`, and begins after another call: use `delay`"
                raise InvalidFanOut(step, problem)
        self.returned = {**others, f"{step!r} to {calls[-1][0].task}": step._returns}

    def _calls_in(self, step: Step[Any], *, depth: int, begins: bool) -> Iterator[tuple[Call[Any], bool]]:
        """Yield the calls in a step, each with whether it begins at once."""
        if isinstance(step, Call):
            yield step, begins
            return
        parts = step._parts if isinstance(step, (Chain, Group)) else ()
        if not parts:
            raise InvalidFanOut(step, "a group in a child has at least one call")
        if depth == MAX_CHILD_DEPTH:
            raise InvalidFanOut(step, f"chains and groups are in each other {depth} deep at most")
        for at, part in enumerate(parts):
            first = begins and (at == 0 or isinstance(step, Group))
            yield from self._calls_in(part, depth=depth + 1, begins=first)

    def _plan_of(self, step: Step[Any], need: Need, *, begins: bool) -> ChildPlan:
        """Return a call, a chain or a group as a child, given what the first calls in it take."""
        if isinstance(step, Call):
            due_ms, like = self._kinds[step._kind]
            data = step._stage_data(due_ms if begins else None, need)
            return replace(like, data=data, group=step._group())
        assert isinstance(step, (Chain, Group))  # noqa: S101 - as `_calls_in` has found
        below: Need = f"<{int(need[1:]) + 1}" if isinstance(need, str) else []
        policy = step._join if isinstance(step, Group) else CHAIN
        parts = []
        for at, part in enumerate(step._parts):
            follows = policy == CHAIN and at > 0
            parts.append(self._plan_of(part, "<0" if follows else below, begins=begins and not follows))
        return ChildPlan("", b"", parts=tuple(parts), policy=policy)

    def _kind_of(self, call: Call[Any]) -> tuple[int, ChildPlan]:
        prepared = call._as_part()._as_call()
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
        return prepared.due_ms, prepared.child([], first=True)

    @overload
    def __getitem__(self, at: int) -> ChildPlan: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ChildPlan]: ...

    def __getitem__(self, at: int | slice) -> ChildPlan | Sequence[ChildPlan]:
        """Return a child, or some."""
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return self._plan_of(self._calls[at], [], begins=True)

    def __len__(self) -> int:
        """Return how many children there are."""
        return len(self._calls)

    def __reduce__(self) -> tuple[type[tuple[ChildPlan, ...]], tuple[list[ChildPlan]]]:
        return tuple, ([*self],)  # calls refer to functions and queues
