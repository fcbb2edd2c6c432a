"""A stage of a flow: what its declaration may say, and its definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, TypeVar, cast

from leasequeue.durations import LONGEST_KEPT_SECONDS, check_bool, check_int, check_list, to_ms
from leasequeue.errors import InvalidArgument, InvalidCall, InvalidFlow
from leasequeue.errors.describing import text_of
from leasequeue.item import codec
from leasequeue.keys import check_prefix, hash_tag
from leasequeue.queue.encoding import MAX_LEVEL, check_group
from leasequeue.queue.plans.plan import StagePlan, check_stage_name, join_text
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.tasks.fitting import member_of, name_of
from leasequeue.tasks.task import Task, options_of
from leasequeue.worker.stage_context import FanOut, Next

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.durations import Duration
    from leasequeue.queue.plans.plan import Join
    from leasequeue.tasks.queue import TaskQueue
    from leasequeue.tasks.signals import SignalPlan
    from leasequeue.worker.retry import RetryPolicy

R_co = TypeVar("R_co", covariant=True)

#: What makes a stage a separate task.
_OWN = ("retry", "timeout", "lease_time", "concurrency", "rate")


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
        task: The task that is called; None for a queue with its handler.
        after: The names of the stages that it follows.
        join: The policy of the join of these; that of `AtLeast(2)` is `n:2`.
        output: The type of its result; of one that fans out, a list of its children's results.
        fans: Whether its function says that it returns children.
        chooses: Whether it chooses which of its successors are entered.
        choices: The names among which it says that it does; None: it does not say.
        foreign: Whether clients of other libraries work on its queue.
        sub_flow: The name of the flow whose run it starts and waits for; empty: it waits for none.
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
    sub_flow: str
    #: The queue of a stage without a task.
    own_queue: str | None = field(repr=False)
    #: What its parameters take, where that is not what has their name.
    takes: Mapping[str, InputSource] = field(repr=False)
    #: Parameters with a fixed value.
    constants: Mapping[str, Any] = field(repr=False)
    #: The same in JSON.
    written: bytes = field(repr=False)
    #: The level of its items, as in `StagePlan`.
    level: int = field(repr=False)
    #: The group of its items.
    group: str | None = field(repr=False)
    #: After how many ms its items may begin.
    delay_ms: int = field(repr=False)
    #: When it begins: the name of an attribute, a result, or ms after the start of the run; None: at once.
    at: str | Stage[Any] | Member | int | None = field(repr=False)
    #: After how many ms its items expire.
    expires_ms: int = field(repr=False)
    #: The signal that it waits for; None: it runs a task, or a handler.
    signal: SignalPlan | None = field(repr=False, default=None)
    #: The task queue on whose queue its item is, if it waits for a signal.
    tasks: TaskQueue | None = field(repr=False, default=None)

    @property
    def queue(self) -> str:
        """The name of the queue of its items."""
        if self.tasks is not None:
            return self.tasks.queue.name
        return (self.own_queue or "") if self.task is None else self.task.queue.name

    def planned(self, data: bytes = b"") -> StagePlan:
        """Return the stage as it is stored in a run, with the data of its item."""
        limit = None if self.task is None else self.task.definition.limit
        return StagePlan(
            self.name,
            self.queue,
            data,
            after=self.after,
            join=self.join,
            choice=self.chooses,
            foreign=self.foreign,
            level=self.level,
            group=self.group if limit is None else limit.group,
            delay_ms=self.delay_ms,
            at=self._place_of_time(),
            signal=self.signal is not None,
            expires_ms=self.expires_ms,
            flow=self.sub_flow,
        )

    def _place_of_time(self) -> str | int | None:
        if isinstance(self.at, Stage):
            return self.at.name
        if isinstance(self.at, Member):
            return f"{self.at.stage.name}.{self.at.written}"
        return f"@{self.at}" if isinstance(self.at, str) else self.at

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


#: What a parameter takes: an attribute or a stage, by name; the result of a stage; a member of it; or a list
#: of such.
InputSource: TypeAlias = "str | Stage[Any] | Member | Sequence[InputSource]"


class HandOverSettings(TypedDict, total=False):
    """What a stage may have that is a call of a task. Each may be left out, or None."""

    #: The stages that it follows: one or several, or the names of such, also of later ones. None: it is among
    #: the first.
    after: Stage[Any] | str | Sequence[Stage[Any] | str] | None
    #: How those before it must have ended: `"all"` succeed (the default); `"settled"`: they have
    #: ended, in any way; `"fail"`: the first failure fails the run; `"fail_fast"`: and cancels
    #: the rest; `AtLeast(n)`: n have succeeded, and the others are cancelled.
    join: Join | None
    #: What parameters take that is not named like them: an attribute or a stage, also by name; a member of a
    #: stage's result; or a list of such, which has those that there are.
    takes: Mapping[str, InputSource] | None
    #: Parameters with a fixed value.
    args: Mapping[str, Any] | None
    #: The level of its items, -9 to 9; a run may shift it. None: that of the task's options, or 0.
    priority: int | None
    #: Seconds before it may begin, from when all that it follows is done.
    delay: Duration | None
    #: Or when it begins, unless what it follows is done later: an attribute, by name, a stage, or a member of
    #: one that is a `datetime` with a zone (None: at once); or so many seconds after the start of the run.
    at: str | Stage[Any] | Member | Duration | None
    #: When failed calls are tried again, if not as the task says.
    retry: RetryPolicy | None


class SubFlowSettings(HandOverSettings, total=False):
    """What a stage may have that is another flow. Each may be left out, or None."""

    #: Its name; None: that of the flow.
    name: str | None
    #: Whether its result is that of the run; None: if it is the only stage that nothing follows.
    result: bool | None
    #: How long the run of the other flow may take, in seconds. Then it is cancelled, and the stage fails.
    timeout: Duration | None


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


class SignalSettings(TypedDict, total=False):
    """What a stage may have that waits for a signal. Each may be left out, or None."""

    #: As in `StageSettings`: from then on it waits.
    after: Stage[Any] | str | Sequence[Stage[Any] | str] | None
    #: As in `StageSettings`.
    join: Join | None
    #: How many seconds it waits at most, up to 100 years; None: without limit.
    within: Duration | None
    #: As in `StageSettings`.
    result: bool | None


class FlowDeclaration:
    """A stage that is being declared."""

    def __init__(
        self,
        flow: str,
        tasks: TaskQueue,
        stages: Mapping[str, Stage[Any]],
        task: Task[..., Any] | str,
        settings: StageSettings,
        sub_flow: str = "",
    ) -> None:
        self._flow = flow
        self._sub_flow = sub_flow
        self._tasks = tasks
        self._stages = stages
        self._task = task if isinstance(task, Task) else None
        self._given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        if self._task is None and not isinstance(task, str):
            raise InvalidArgument("task", task, "a task; or the name of a stage, with queue=")
        name = self._given.get("name", task if self._task is None else self._task.name)
        self._name = self._checked_name(name)

    def stage(self) -> Stage[Any]:
        """Return the stage, with the task as it is registered."""
        given = self._given
        output, fans, chooses = self._returned()
        takes = self._takes()
        constants = self._mapping("args")
        if twice := [one for one in takes if one in constants]:
            raise self._error(f"its parameter {twice[0]!r} is both in takes= and in args=")
        return Stage(
            flow=self._flow,
            name=self._name,
            task=self._task,
            own_queue=self._queue(),
            after=self._after(),
            join=join_text(given.get("join", "all")),
            output=output,
            fans=fans,
            chooses=chooses,
            choices=self._choices(),
            foreign=self._is_foreign(),
            sub_flow=self._sub_flow,
            takes=takes,
            constants=constants,
            written=self._written(constants),
            **self._options(),
        )

    def with_own_task(self, stage: Stage[Any]) -> Stage[Any]:
        """Return the stage with a task of its own, if it needs one: with its settings, or its queue."""
        own = {name: self._given[name] for name in _OWN if name in self._given}
        if stage.task is None or not (own or "queue" in self._given):
            return stage
        definition = stage.task.definition
        settings = {
            one.name: getattr(definition.settings, one.name)
            for one in dataclasses.fields(definition.settings)
            if one.name != "timing"
        }
        make = cast("Any", self._tasks.task)
        task = make(
            name=f"{self._flow}.{self._name}",
            **(settings | own | {"queue": self._given.get("queue", definition.queue)}),
        )(definition.function)
        return dataclasses.replace(stage, task=task)

    def _checked_name(self, name: object) -> str:
        try:
            checked = check_stage_name(name)
        except InvalidArgument as error:
            raise InvalidFlow(self._flow, f"stage {name!r}: its name is to be {error.allowed}") from error
        if "." in checked or checked.startswith("@"):
            raise InvalidFlow(
                self._flow, f"stage {name!r}: its name is to be without '.' and no '@' in front: see name="
            )
        return checked

    def _returned(self) -> tuple[Any, bool, bool]:
        """Return the type of the result, whether it may be children, and whether it chooses successors."""
        choose = self._given.get("choose")
        if choose is not None:
            choose = self._choices() is not None or check_bool("choose", choose)
        if self._task is None:
            return Any, False, bool(choose)
        definition = self._task.definition
        output = definition.result_type
        fans, chooses = definition.returns(FanOut), definition.returns(Next)
        if fans and (choose or chooses):
            raise self._error(
                "it cannot fan out and choose its successors, too: let a stage between them choose"
            )
        if choose and not chooses and output is not Any:
            raise self._error(
                f"it is to choose its successors, so its function is to return Next[{name_of(output)}], "
                f"and not {name_of(output)}"
            )
        if choose is False and chooses:
            raise self._error("its function returns Next, which chooses its successors, and choose= is False")
        return output, fans, chooses if choose is None else choose

    def _choices(self) -> tuple[str, ...] | None:
        """Return the names among which it chooses; None: it does not say."""
        choose = self._given.get("choose")
        if choose is None or isinstance(choose, bool):
            return None
        names = check_list("choose", choose, "names of stages")
        if wrong := [one for one in names if not isinstance(one, str)]:
            raise InvalidArgument("choose", wrong[0], "the name of a stage that follows it")
        return (*names,)

    def _after(self) -> tuple[str, ...]:
        after = self._given.get("after", ())
        several = check_list("after", (after,) if isinstance(after, (Stage, str)) else after, "stages")
        names: dict[str, None] = {}
        for one in several:
            if isinstance(one, Stage):
                if self._stages.get(one.name) is not one:
                    raise self._error(f"it follows {one}, which is of another flow: see Flow.then_start")
                names[one.name] = None
            elif isinstance(one, str):
                names[one] = None
            else:
                raise InvalidArgument("after", one, "a stage, the name of one, or several of them")
        return (*names,)

    def _takes(self) -> dict[str, InputSource]:
        takes = self._mapping("takes")
        for name, source in takes.items():
            if any(not isinstance(one, (str, Stage, Member)) for one in _flat(source)):
                raise InvalidArgument(
                    f"takes[{name!r}]",
                    source,
                    "a stage, stage.member(…), or the name of a stage or an attribute",
                )
        self._check_parameters("takes", takes)
        return takes

    def _mapping(self, argument: str) -> dict[str, Any]:
        given = self._given.get(argument, {})
        if not isinstance(given, Mapping) or any(not isinstance(name, str) for name in given):
            raise InvalidArgument(argument, given, "a mapping with names of parameters")
        return dict(given)

    def _check_parameters(self, argument: str, names: Iterable[str]) -> None:
        if self._task is None:
            if "meta" in names:
                raise InvalidArgument(
                    argument, "meta", "other names than this one, under which is what needs what"
                )
            return
        arguments = self._task.definition.arguments
        for name in names:
            if name not in arguments.types:
                has = ", ".join(arguments.types) or "none"
                raise self._error(
                    f"{argument}= names {name!r}, and its function has no such parameter (it has {has})"
                )

    def _written(self, constants: Mapping[str, Any]) -> bytes:
        self._check_parameters("args", constants)
        if self._task is None:
            try:
                return codec.encode(constants)
            except Exception as error:
                raise self._error(f"args= cannot be written as JSON: {text_of(error)}") from error
        arguments = self._task.definition.arguments
        others = [name for name in arguments.types if name not in constants]
        try:
            return arguments.encode((), constants, filled=others)
        except InvalidCall as error:
            raise self._error(f"args= does not fit: {text_of(error)}") from error

    def _queue(self) -> str | None:
        """Return the name of the queue of a stage without a task, after a check of that of any stage."""
        wanted = self._given.get("queue")
        home = self._tasks.queue
        if wanted is None:
            if self._task is None:
                raise self._error("it has neither a task nor a queue: write queue=")
            wanted = self._task.queue
        if not isinstance(wanted, AsyncWorkQueue):
            name = check_prefix(wanted)
            wanted = self._tasks._queues.get(name)  # noqa: SLF001 - of these rooms
        else:
            name = wanted.name
        url = home.url if wanted is None else wanted.url
        if name != home.name and any(isinstance(one, ShardedQueue) for one in (home, wanted)):
            raise self._error(
                f"its queue is {name!r}, and that of the flow {home.name!r}: if one has shards, it has all "
                "stages, as each run is in one of them; or see Flow.then_start"
            )
        if hash_tag(name) != hash_tag(home.name) or url != home.url:
            raise self._error(
                f"its queue {name!r} is not where that of the flow is, {home.name!r}: all keys of a run are "
                "on one server, and in one slot by the same {hash tag} in the names; or see Flow.then_start"
            )
        return name if self._task is None else None

    def _is_foreign(self) -> bool:
        foreign = check_bool("foreign", self._given.get("foreign", False))
        if self._task is not None:
            if foreign:
                raise self._error("foreign= is for a stage without a task, on a queue of another program")
            return False
        if own := [name for name in _OWN if name in self._given]:
            raise self._error(f"{own[0]}= is for a call of a task; here it is for the handler of the queue")
        if foreign and (wrong := [one for one in ("priority", "group", "choose") if one in self._given]):
            raise self._error(f"clients of other libraries know no {wrong[0]}: leave {wrong[0]}= out")
        return foreign

    def _options(self) -> dict[str, Any]:
        given, task = self._given, self._task
        options = None if task is None else options_of(task)[0]
        if options is not None and (
            wrong := [
                name
                for name in (
                    *("id", "content_id", "at", "tags", "weight"),
                    *("dedupe_for", "unique_until_start", "replace"),
                )
                if getattr(options, name) not in (None, False)
            ]
        ):
            raise self._error(f"the task has the option {wrong[0]}, which is for a separate item")

        def chosen(name: str) -> Any:
            return given.get(name, None if options is None else getattr(options, name))

        group = chosen("group")
        limit = None if task is None else task.definition.limit
        if limit is not None or "concurrency" in given or "rate" in given:
            if group is not None:
                raise self._error("it has limits, which are those of a separate group: leave group= out")
        elif group is not None:
            check_group(group)
        delay, expires, at = chosen("delay"), chosen("expires_in"), given.get("at")
        if at is not None and delay:
            raise self._error("it has both at= and delay=: leave one out")
        if at is not None and not isinstance(at, (str, Stage, Member)):
            at = to_ms("at", at, zero=True, longest=LONGEST_KEPT_SECONDS)
        return {
            "level": check_int("priority", chosen("priority") or 0, minimum=-MAX_LEVEL, maximum=MAX_LEVEL),
            "group": group,
            "delay_ms": to_ms("delay", delay, zero=True) if delay else 0,
            "at": at,
            "expires_ms": 0 if expires is None else to_ms("expires_in", expires),
        }

    def _error(self, problem: str) -> InvalidFlow:
        return InvalidFlow(self._flow, f"stage {self._name!r}: {problem}")


def _flat(source: Any) -> Iterable[Any]:
    if not isinstance(source, (list, tuple)):
        return (source,)
    return (one for part in source for one in _flat(part))
