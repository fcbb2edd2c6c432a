"""What the function of a stage sees: its stage, steps that are done once, and what it may return."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from leasequeue.errors import InvalidArgument, NotAStage, ResultError
from leasequeue.errors.describing import text_of
from leasequeue.item import MAX_DATA_BYTES, codec
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.stages import read_outcome, store_outcome
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: The longest key of a step, in bytes of UTF-8.
MAX_KEY_BYTES = 256

#: The correlation id of the task or the flow run that the present code works for; None: it has none. What
#: is added has the same one, if it is given no other one.
correlation_id: ContextVar[str | None] = ContextVar("leasequeue correlation id", default=None)


@dataclass(frozen=True)
class FanOut(Generic[R_co]):
    """The children of a stage, which its function returns instead of a value. `fan_out` makes it.

    The stage is done when its children are joined; its result is the list of theirs, in order. A job that is
    no stage of a flow run fails if its function returns one.

    Attributes:
        children: What each child is: a `ChildPlan`.
        join: The text of the policy by which they are joined.
        returned: What the called tasks say that they return, by their names; empty after pickling.
    """

    children: Sequence[Any]
    join: str = "all"
    returned: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[FanOut[Any]], tuple[Any, ...]]:
        return type(self), (self.children, self.join)  # types may not be picklable


@dataclass(frozen=True, init=False)
class Next(Generic[R_co]):
    """A result with the successors that are to be entered, which the function of a choosing stage returns.

        return Next(member, "rewards")

    The other successors are skipped. Without a name, all are skipped.

    Attributes:
        value: The result of the stage.
        stages: The names of its successors that are entered.
    """

    value: R_co
    stages: tuple[str, ...]

    def __init__(self, value: R_co, *stages: str) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "stages", stages)


class StageContext:
    """The stage of a flow run that a function works on.

    Attributes:
        run: The id of the flow run.
        flow: The name of its flow; empty: it has none.
        path: The name of the stage; of a child, `<path of its parent>/<index>`.
        home: The name of the queue whose keys hold the run.
        correlation: The correlation id of the run, or None.
        inputs: What the stage takes of the run, by parameter, in JSON.
    """

    __slots__ = ("_lease", "correlation", "flow", "home", "inputs", "path", "run")

    def __init__(
        self,
        ref: StageRef,
        lease: Lease | None,
        *,
        flow: str,
        correlation: str | None,
        inputs: Mapping[str, bytes],
    ) -> None:
        self.home, self.run, self.path, _ = ref
        self.flow = flow
        self.correlation = correlation
        self.inputs = inputs
        self._lease = lease

    @classmethod
    def of(cls, lease: Lease) -> StageContext:
        """Return that of a lease, before its flow run has been read.

        Raises:
            NotAStage: If the item is for no stage.
        """
        if lease.stage is None:
            raise NotAStage("StageContext")
        return cls(lease.stage, lease, flow="", correlation=None, inputs=lease.inputs)

    @property
    def lease(self) -> Lease:
        """The lease of the stage's item.

        Raises:
            NotAStage: In the separate process of a handler, which has no lease.
        """
        if self._lease is None:
            raise NotAStage(
                "once()",
                "in a separate process, which has no lease: use run_in='thread', or make the part a stage of "
                "its own, before this one",
            )
        return self._lease

    async def once(self, key: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do a step of this stage once, as `once` does; in a batch, for one of its items.

            for lease, amount in zip(current_run().leases, amounts, strict=True):
                receipt = await StageContext.of(lease).once("charge", charge_card, amount)

        Raises:
            NotAStage: In a separate process.
            InvalidArgument, LeaseLost, ResultError, ServerError, BaseException: As `once` does.
        """
        name = _check_key(key)
        lease = self.lease
        read = _reader(function)
        engine = engine_of(cast("AsyncWorkQueue", lease.queue))
        stored = await read_outcome(lease, engine, name)
        if stored is None:
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            stored = await store_outcome(lease, engine, name, _write(lease, key, value, read))
        try:
            return read(stored)
        except Exception as error:
            problem = f"the outcome of its step {key!r} does not fit: {text_of(error)}"
            raise ResultError(lease.id, problem) from error

    def __reduce__(self) -> tuple[Callable[..., StageContext], tuple[object, ...]]:
        return _rebuild, (self.home, self.run, self.path, self.flow, self.correlation, dict(self.inputs))

    def __repr__(self) -> str:
        return f"<stage {self.path} of run {self.run}>"


def _rebuild(
    home: str, run: str, path: str, flow: str, correlation: str | None, inputs: Mapping[str, bytes]
) -> StageContext:
    return StageContext(StageRef(home, run, path), None, flow=flow, correlation=correlation, inputs=inputs)


CURRENT: ContextVar[StageContext | None] = ContextVar("leasequeue stage", default=None)


def current_stage() -> StageContext:
    """Return the stage that calls this: anywhere below its function, also in threads and separate processes.

    Raises:
        NotAStage: Outside of a stage, and in a batch, which has several: see `Lease.stage`.
    """
    stage = CURRENT.get()
    if stage is None:
        raise NotAStage("current_stage()")
    return stage


@overload
async def once(key: str, function: Callable[..., Awaitable[R]], *args: Any, **kwargs: Any) -> R: ...
@overload
async def once(key: str, function: Callable[..., R], *args: Any, **kwargs: Any) -> R: ...
async def once(key: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do a step of a stage once, and return its outcome: in a later run of the stage, the stored one.

        charge = await once("charge", charge_card, amount)

    The outcome is stored in the flow run, as JSON, under the token of the stage's lease: a worker that has
    lost the lease stores nothing. A step that raises is done again in the next run, and so is one whose
    worker died before the outcome was stored: if that matters, use the idempotency keys of the other system.
    In a thread, use `call_sync(once, "charge", charge_card, amount)`.

    Args:
        key: The name of the step in its stage, at most 256 bytes of UTF-8, without NUL.
        function: What to call; what it returns is awaited if it can be. The outcome is read as the type that
            its annotation says, or as plain JSON.
        args: Its arguments.
        kwargs: Its arguments by name.

    Raises:
        InvalidArgument: If the key, or the type of the outcome, cannot be used. Nothing was called.
        NotAStage: Outside of a stage; in a batch, where `StageContext.once` does it; in a separate process.
        LeaseLost: If the lease was lost during the call: the outcome is not stored.
        ResultError: If the outcome cannot be written as JSON, or does not fit the annotation.
        ServerError: If the server cannot be reached. The outcome may not be stored.
        BaseException: What the function raises.
    """
    if (stage := CURRENT.get()) is None:
        _check_key(key)
        raise NotAStage("once()")
    return await stage.once(key, function, *args, **kwargs)


def _write(lease: Lease, key: str, value: Any, read: Callable[[bytes], Any]) -> bytes:
    """Write the outcome of a step; check that it can be read again, so that no later run stumbles over it."""
    try:
        written = codec.encode(value)
        read(written)
    except Exception as error:
        raise ResultError(
            lease.id, f"the outcome of its step {key!r} cannot be kept: {text_of(error)}"
        ) from error
    if len(written) > MAX_DATA_BYTES:
        raise ResultError(lease.id, f"the outcome of its step {key!r} is {len(written)} bytes long")
    return written


def _check_key(key: object) -> bytes:
    allowed = f"a string of 1 to {MAX_KEY_BYTES} bytes in UTF-8, without NUL"
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidArgument("key", key, allowed)
    try:
        written = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("key", key, allowed) from error
    if len(written) > MAX_KEY_BYTES:
        raise InvalidArgument("key", key, allowed)
    return written


def _reader(function: Callable[..., Any]) -> Callable[[bytes], Any]:
    """Return what reads the outcome of a function: as its annotation says, if it says anything."""
    if not callable(function):
        raise InvalidArgument("function", function, "a function")
    try:
        annotation = inspect.signature(function, eval_str=True).return_annotation
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError):
        annotation = inspect.Signature.empty
    try:
        return codec.decoder(Any if annotation is inspect.Signature.empty else annotation)
    except codec.UnknownType as error:
        allowed = f"a function that returns what can be read from JSON ({error})"
        raise InvalidArgument("function", function, allowed) from error
