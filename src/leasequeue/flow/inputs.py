"""What a flow takes: the attributes of a run, and what the parameters of its stages' functions take."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from leasequeue.durations import check_list
from leasequeue.errors import InvalidArgument, InvalidFlow, UnknownAttribute
from leasequeue.errors.describing import text_of
from leasequeue.flow.stage import Member, Stage
from leasequeue.item import codec
from leasequeue.queue.plans.flow_runs import lookup_texts
from leasequeue.queue.plans.plan import certain_before, no_stage, stages_before
from leasequeue.tasks.fitting import accepts_none, fits, list_of, misfit, name_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from leasequeue.flow.stage import InputSource
    from leasequeue.queue.plans.plan import Need, StagePlan

#: What `Flow.start` has arguments for, and what `FlowRuns.find` has.
OF_START = frozenset({"self", "id", "correlation", "priority"})
OF_FIND = frozenset({"fields", "children", "count"})
_DECODE = codec.decoder(Any)


class _Nothing:
    """Stands in an error for an attribute that was not given."""

    def __repr__(self) -> str:
        return "nothing"


class FlowAttributes:
    """The declared attributes of a flow."""

    def __init__(self, flow: str, types: Mapping[str, Any], lookup: Sequence[str]) -> None:
        self._flow = flow
        self.types = dict(types)
        self.lookup = tuple(check_list("lookup", lookup, "names of attributes"))
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        for name, kind in self.types.items():
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise InvalidFlow(flow, f"the attribute {name!r} is to be named like a parameter")
            if name in OF_START or (name in OF_FIND and name in self.lookup):
                call = "start" if name in OF_START else "find"
                raise InvalidFlow(flow, f"the attribute {name!r} has the name of an argument of {call}")
            try:
                self._decoders[name] = codec.decoder(plain(kind))
            except codec.UnknownType as error:
                raise InvalidFlow(flow, f"the attribute {name!r}: {error}") from error
        for name in self.lookup:
            self.check(name)

    def check(self, name: str, *, found_by: bool = False) -> None:
        """Check that an attribute is declared."""
        known = self.lookup if found_by else tuple(self.types)
        if name not in known:
            raise UnknownAttribute(self._flow, name, known, found_by=found_by)

    def encode(self, values: Mapping[str, Any]) -> dict[str, bytes]:
        """Write the attributes of a run as JSON. One that is left out is null, if its type has None."""
        for name in values:
            self.check(name)
        return {name: self._encoded(name, values) for name in self.types}

    def lookups(self, written: Mapping[str, bytes]) -> dict[str, list[str]]:
        """Return the texts by which a run is found, for each attribute of `lookup`."""
        return {name: lookup_texts(_DECODE(written[name])) for name in self.lookup}

    def sought(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values to find runs by, as JSON has them.

        Of an attribute that is an array, a value is one element, and a list is several of them.
        """
        found = {}
        for name, value in values.items():
            self.check(name, found_by=True)
            try:
                found[name] = _DECODE(codec.encode(value))
            except Exception as error:
                raise InvalidArgument(name, value, f"a value for JSON ({text_of(error)})") from error
        return found

    def _encoded(self, name: str, values: Mapping[str, Any]) -> bytes:
        kind = self.types[name]
        if name not in values and not accepts_none(kind):
            raise InvalidArgument(
                name, _Nothing(), f"{name_of(kind)}: the flow {self._flow!r} needs this attribute"
            )
        value = values.get(name)
        try:
            written = codec.encode(value)
            self._decoders[name](written)
        except Exception as error:
            raise InvalidArgument(name, value, f"{name_of(kind)} ({text_of(error)})") from error
        return written


@dataclass(frozen=True)
class Input:
    """What a parameter takes.

    Attributes:
        need: Its place in the state of a flow run, as the worker reads it; a list of such places.
        whole: Whether it is missing if the result of such a stage is; else that is missing in the list.
    """

    need: Need
    type: Any
    shown: str
    stages: tuple[str, ...] = ()
    whole: bool = True


class FlowInputs:
    """Finds what the parameters of stages take, and refuses what does not fit."""

    def __init__(
        self,
        flow: str,
        attributes: Mapping[str, Any],
        stages: Mapping[str, Stage[Any]],
        order: Mapping[str, StagePlan],
    ) -> None:
        self._flow = flow
        self._attributes = attributes
        self._stages = stages
        self._order = order

    def of(self, stage: Stage[Any], *, final: bool) -> dict[str, Input]:
        """Return what the parameters of a stage take, without those that have constants or defaults.

        Until all stages are declared, which is `final`, a name that is not known may be that of a later one.
        """
        before = stages_before(self._order, stage.name)
        found = self._by_name(stage, before, final=final)
        for name, source in stage.takes.items():
            # Whose stages before it are all known takes nothing of a later one.
            if one := self._of_source(stage, name, source, final=final or before is not None):
                found[name] = one
        if before is not None:
            self._check_order(stage, found, before)
        self._check_time(stage, before)
        types = _types_of(stage)
        for name, one in found.items():
            if name in types and (problem := misfit(name, types[name], one.shown, one.type)):
                raise self._error(stage, problem)
        return found

    def _by_name(self, stage: Stage[Any], before: Collection[str] | None, *, final: bool) -> dict[str, Input]:
        """Return what parameters take that `takes` and `args` do not name."""
        found = {}
        required = _required_by(stage)
        for name in _types_of(stage):
            if name in stage.takes or name in stage.constants:
                continue
            if name in self._attributes:
                found[name] = self._of_attribute(name)
            elif name in self._stages and (before is None or name in before):
                found[name] = _result_of(self._stages[name])
            elif name in required and (final or before is not None):
                raise self._error(
                    stage,
                    f"nothing gives its parameter {name!r} a value: declare an attribute of this name, or "
                    "write takes= or args=",
                )
        return found

    def _of_source(
        self, stage: Stage[Any], parameter: str, source: InputSource, *, final: bool
    ) -> Input | None:
        """Return what is named; None if it may be the name of a later stage."""
        if isinstance(source, (Stage, Member)):
            of = source.stage if isinstance(source, Member) else source
            if self._stages.get(of.name) is not of:
                raise self._error(stage, f"its parameter {parameter!r} takes {of}, which is of another flow")
            if isinstance(source, Member):
                shown = f"{source.name!r} of stage {of.name!r}"
                return Input(f"{of.name}.{source.written}", source.type, shown, (of.name,))
            return _result_of(of)
        if isinstance(source, str):
            return self._of_name(stage, parameter, source, final=final)
        parts = [self._of_source(stage, parameter, one, final=final) for one in source]
        known = [one for one in parts if one is not None]
        return _list_of(known) if len(known) == len(parts) else None

    def _of_name(self, stage: Stage[Any], parameter: str, source: str, *, final: bool) -> Input | None:
        if source in self._attributes:
            return self._of_attribute(source)
        if source in self._stages:
            return _result_of(self._stages[source])
        if final:
            there = no_stage(source, {*self._stages, *self._attributes} - {stage.name})
            raise self._error(
                stage,
                f"its parameter {parameter!r} takes {source!r}, which is neither an attribute nor a stage: "
                f"{there}",
            )
        return None

    def _of_attribute(self, name: str) -> Input:
        return Input(f"@{name}", self._attributes[name], f"the attribute {name!r}")

    def _check_time(self, stage: Stage[Any], before: Collection[str] | None) -> None:
        """Check that what says when a stage begins is a time, and known before it."""
        if stage.at is None or isinstance(stage.at, int):
            return
        if isinstance(stage.at, str):
            if stage.at not in self._attributes:
                has = ", ".join(self._attributes) or "none"
                raise self._error(stage, f"at= names {stage.at!r}, which is no attribute (there are {has})")
            one = self._of_attribute(stage.at)
        else:
            of = stage.at.stage if isinstance(stage.at, Member) else stage.at
            if self._stages.get(of.name) is not of or (before is not None and of.name not in before):
                raise self._error(stage, f"at= takes {of}, which does not come before it: see after=")
            kind = stage.at.type if isinstance(stage.at, Member) else of.output
            one = Input(
                of.name, kind, f"{stage.at.name!r} of {of}" if of is not stage.at else f"that of {of}"
            )
        if not fits(one.type, datetime | None):
            raise self._error(stage, f"at= takes datetime, and {one.shown} is {name_of(one.type)}")

    def _check_order(
        self,
        stage: Stage[Any],
        found: Mapping[str, Input],
        before: Collection[str],
    ) -> None:
        required = _required_by(stage)
        sure = certain_before(self._order, stage.name)
        for name, one in found.items():
            if any(name not in before for name in one.stages):
                raise self._error(
                    stage,
                    f"its parameter {name!r} takes {one.shown}, which does not come before it: see after=",
                )
            if name in required and one.whole and not sure.issuperset(one.stages):
                raise self._error(
                    stage,
                    f"its parameter {name!r} takes {one.shown}, which may have been skipped or have failed: "
                    "give it a default",
                )

    def _error(self, stage: Stage[Any], problem: str) -> InvalidFlow:
        return InvalidFlow(self._flow, f"stage {stage.name!r}: {problem}")


def _result_of(stage: Stage[Any]) -> Input:
    need = f"{stage.name}/*" if stage.fans else stage.name
    return Input(need, stage.output, f"what stage {stage.name!r} returns", (stage.name,))


def _list_of(parts: list[Input]) -> Input:
    return Input(
        [one.need for one in parts],
        list_of(one.type for one in parts),
        f"the list of {', '.join(one.shown for one in parts)}",
        tuple(name for one in parts for name in one.stages),
        whole=False,
    )


def _types_of(stage: Stage[Any]) -> Mapping[str, Any]:
    return {} if stage.task is None else stage.task.definition.arguments.types


def _required_by(stage: Stage[Any]) -> tuple[str, ...]:
    return () if stage.task is None else stage.task.definition.arguments.required
