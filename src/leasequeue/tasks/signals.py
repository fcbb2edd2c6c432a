"""Signals as they are declared, in a flow or in a chain: what a stage waits for, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar, get_args, overload

import msgspec

from leasequeue.durations import LONGEST_KEPT_SECONDS, Duration, to_ms
from leasequeue.errors import InvalidArgument
from leasequeue.item import codec
from leasequeue.queue.plans.inputs import AwaitedSignal, signal_data
from leasequeue.queue.plans.plan import StagePlan, check_stage_name
from leasequeue.queue.plans.signals import NOT_GIVEN, write_signal
from leasequeue.tasks.chains import OneCall
from leasequeue.tasks.fitting import is_union, member_of, name_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasequeue.queue.plans.building import End, PlanBuilder

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, eq=False)
class SignalPlan:
    """A signal as it is declared.

    Attributes:
        name: Its name, and that of the stage that waits for it.
        type: The type of its value.
        output: The type of what the stages after it take: also None, if that is what is given otherwise.
        within_ms: How long it is waited for; 0: without limit.
        data: The data of the item that is due when it has not come.
        read: Reads what the stages after it take.
    """

    name: str
    type: Any
    output: Any
    within_ms: int
    data: bytes
    read: Callable[[bytes], Any]

    @classmethod
    def declared(cls, name: str, kind: Any, within: Duration | None, otherwise: Any) -> SignalPlan:
        """Return a signal, checked."""
        check_stage_name(name)
        if "." in name or name[0] in "@?":
            raise InvalidArgument("name", name, "a name without '.', and no '@' and '?' in front")
        within_ms = 0 if within is None else to_ms("within", within, longest=LONGEST_KEPT_SECONDS)
        if within is None and otherwise is not NOT_GIVEN:
            raise InvalidArgument("otherwise", otherwise, "left out if there is no within=")
        output = Optional[kind] if otherwise is None else kind  # noqa: UP045 - known at run time only
        try:
            read = codec.decoder(plain(output))
        except codec.UnknownType as error:
            raise InvalidArgument("type", kind, f"a type of JSON: {error}") from error
        signal = AwaitedSignal(name)
        if otherwise is not NOT_GIVEN:
            signal.otherwise = msgspec.Raw(write_signal("otherwise", otherwise, {}, name_of(kind), read))
        return cls(name, kind, output, within_ms, signal_data(signal), read)

    def write(self, value: Any, values: Mapping[str, Any]) -> bytes:
        """Return in JSON what a caller sends, checked."""
        kinds = get_args(plain(self.type)) if is_union(plain(self.type)) else (self.type,)
        for one in values:
            if not any(member_of(kind, one) for kind in kinds):
                raise InvalidArgument(
                    one, values[one], f"left out, as {name_of(self.type)} has no such member"
                )
        return write_signal(self.name, value, values, name_of(self.type), codec.decoder(plain(self.type)))


class SignalPart(OneCall[R_co]):
    """A part of a chain that waits for a signal. `signal` makes it."""

    def __init__(self, plan: SignalPlan) -> None:
        self._plan = plan

    @property
    def _returns(self) -> Any:
        return self._plan.output

    def _build(self, builder: PlanBuilder, before: End) -> End:
        plan = self._plan
        stage = StagePlan(plan.name, data=plan.data, delay_ms=plan.within_ms, signal=True)
        return builder.signal(stage, before, plan.read, plan.write)

    def __repr__(self) -> str:
        return f"<signal {self._plan.name!r}>"


@overload
def signal(
    name: str, *, type: type[T], within: Duration | None = ..., otherwise: None
) -> SignalPart[T | None]: ...
@overload
def signal(
    name: str, *, type: type[T], within: Duration | None = ..., otherwise: T = ...
) -> SignalPart[T]: ...
@overload
def signal(
    name: str, *, type: Any = ..., within: Duration | None = ..., otherwise: Any = ...
) -> SignalPart[Any]: ...


def signal(
    name: str,
    *,
    type: Any = Any,  # noqa: A002 - as in `Flow.signal`
    within: Duration | None = None,
    otherwise: Any = NOT_GIVEN,
) -> SignalPart[Any]:
    """Return a part of a chain, or of a group after a call, that waits for a signal.

        run = await ask.call(7).then(signal("approved", type=bool, within=86_400)).then(pay).add()
        await run.signal("approved", True)

    Args:
        name: Its name; no other part of the chain has it.
        type: The type of its value, as in `Flow.signal`.
        within: How many seconds it is waited for at most; None: without limit.
        otherwise: What is given if no signal has come in time; left out: the part fails.

    Raises:
        InvalidArgument: As in `Flow.signal`.
    """
    return SignalPart(SignalPlan.declared(name, type, within, otherwise))
