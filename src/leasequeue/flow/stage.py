"""A stage of a flow as it was declared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from leasequeue.errors import InvalidFlow
from leasequeue.tasks.fitting import member_of, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.tasks.task import Task

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Member:
    """A member of a stage's result. `Stage.member` makes it.

    Attributes:
        stage: The stage.
        name: The name of the member.
        written: Its name in JSON.
        type: Its type.
    """

    stage: Stage[Any]
    name: str
    written: str
    type: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(Generic[R_co]):
    """A stage of a flow. `Flow.stage` makes it; pass it as `after=`, or in `takes=`, to later ones.

    Attributes:
        flow: The name of the flow.
        name: Its name.
        task: The task that is called; None for a queue with a handler of its own.
        after: The names of the stages that it follows.
        join: The policy of the join of these; that of `AtLeast(2)` is `n:2`.
        output: The type of its result; of one that fans out, a list of its children's results.
        fans: Whether its function says that it returns children.
        chooses: Whether it chooses which of its successors are entered.
        choices: The names among which it says that it does; None: it does not say.
        foreign: Whether clients of other libraries work on its queue.
    """

    flow: str
    name: str
    task: Task[..., Any] | None
    after: tuple[str, ...]
    join: str
    output: Any
    fans: bool
    chooses: bool
    choices: tuple[str, ...] | None
    foreign: bool
    #: The queue of a stage without a task.
    own_queue: str | None = field(repr=False)
    #: What its parameters take, where that is not what has their name.
    takes: Mapping[str, Source] = field(repr=False)
    #: Parameters with a fixed value.
    constants: Mapping[str, Any] = field(repr=False)
    #: The same in JSON.
    written: bytes = field(repr=False)
    options: StageOptions = field(repr=False)

    @property
    def queue(self) -> str:
        """The name of the queue of its items."""
        return (self.own_queue or "") if self.task is None else self.task.queue.name

    def member(self, name: str) -> Member:
        """Return a member of the result, for `takes`.

            access.stage(greet, after=check, takes={"name": check.member("user_name")})

        Raises:
            InvalidFlow: If the results of the stage have no such member.
        """
        found = None if self.fans else member_of(self.output, name)
        if found is None:
            raise InvalidFlow(
                self.flow, f"what stage {self.name!r} returns, {name_of(self.output)}, has no member {name!r}"
            )
        written, kind = found
        if not written or any(mark in written for mark in "./"):
            raise InvalidFlow(
                self.flow,
                f"the member {name!r} of stage {self.name!r} is {written!r} in JSON: no . or / there",
            )
        return Member(self, name, written, kind)

    def __repr__(self) -> str:
        return f"<stage {self.name!r} of flow {self.flow!r}>"


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """How the items of a stage are added.

    Attributes:
        priority: The level, -9 to 9.
        group: The group; None: none, or that of the task's limits.
        delay_ms: How long an item waits before it may be leased.
        expires_ms: After how long it is discarded if no worker has begun with it; 0: never.
    """

    priority: int = 0
    group: str | None = None
    delay_ms: int = 0
    expires_ms: int = 0


#: What a parameter takes: an attribute or a stage, by name; the result of a stage; a member of it; or a list
#: of such.
Source: TypeAlias = "str | Stage[Any] | Member | Sequence[Source]"
