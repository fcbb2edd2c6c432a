"""What `Flow.stage` and `Flow.then_start` take by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.durations import Duration
    from leasequeue.flow.stage import Source, Stage
    from leasequeue.queue.plan import Join
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.retry import RetryPolicy


class HandOverSettings(TypedDict, total=False):
    """What a stage may have that is a call of a task. Each may be left out, or None."""

    #: The stages that it follows: one or several, or the names of such, also of later ones. None: it is among
    #: the first.
    after: Stage[Any] | str | Sequence[Stage[Any] | str] | None
    #: What becomes of those before it is entered: `"all"` succeed (the default); `"settled"`: they have
    #: ended, whatever became of them; `"fail"`: the first failure fails the run; `"fail_fast"`: and cancels
    #: the rest; `AtLeast(n)`: n have succeeded, and the others are cancelled.
    join: Join | None
    #: What parameters take that is not named like them: an attribute or a stage, also by name; a member of a
    #: stage's result; or a list of such, which has those that there are.
    takes: Mapping[str, Source] | None
    #: Parameters with a fixed value.
    args: Mapping[str, Any] | None
    #: The level of its items, -9 to 9; a run may shift it. None: that of the task's options, or 0.
    priority: int | None
    #: Seconds before it may begin.
    delay: Duration | None
    #: When failed calls are tried again, if not as the task says.
    retry: RetryPolicy | None


class StageSettings(HandOverSettings, total=False):
    """What a stage may have. Each may be left out, or None."""

    #: Its name, 1 to 100 bytes of UTF-8; None: that of the task.
    name: str | None
    #: Whether its function chooses which of its successors are entered, by `Next`; None: as it is annotated.
    #: Or the names of those among which it does, which are then compared with those that follow it.
    choose: bool | Sequence[str] | None
    #: Whether its result is that of the run; None: if it is the only stage that nothing follows.
    result: bool | None
    #: The queue of its items, if it is another one than the task's; for a stage without a task, its queue.
    queue: str | AsyncWorkQueue | None
    #: Whether clients of other libraries work on that queue: the stage is done when its item is gone.
    foreign: bool | None
    #: The group of its items.
    group: str | None
    #: Seconds after which it expires, unless a worker has begun with it.
    expires_in: Duration | None
    #: The longest that a call may take, in seconds, if not as the task says.
    timeout: Duration | None
    #: For how long its items are leased, in seconds, if not as the task says.
    lease_time: Duration | None
    #: How many of its calls may be leased at once, by all workers together.
    concurrency: int | None
    #: How many may be leased in a time, such as `"10/s"`.
    rate: str | None
