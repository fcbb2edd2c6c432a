"""What the parameters of a stage's function take: constants, attributes, and results of stages before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.errors import InvalidFlow
from leasequeue.flow.graph import ancestors, certain
from leasequeue.flow.stage import Member, Stage
from leasequeue.queue.plan import no_stage
from leasequeue.tasks.fitting import list_of, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasequeue.flow.graph import Node
    from leasequeue.flow.stage import Source


#: A place in the state of a flow run, or a list of places.
Need: TypeAlias = "str | list[Need]"


@dataclass(frozen=True)
class Input:
    """What a parameter takes.

    Attributes:
        need: Its place in the state of a flow run, as the worker reads it; a list of such places.
        type: Its type.
        shown: What it is called in errors.
        stages: The names of the stages whose results it is.
        whole: Whether it is missing if the result of such a stage is; else that is missing in the list.
    """

    need: Need
    type: Any
    shown: str
    stages: tuple[str, ...] = ()
    whole: bool = True


class Inputs:
    """Finds what the parameters of stages take, and refuses what does not fit.

    Args:
        flow: The name of the flow.
        attributes: Its attributes, with their types.
        stages: Its stages.
        nodes: The order of the stages.
    """

    def __init__(
        self,
        flow: str,
        attributes: Mapping[str, Any],
        stages: Mapping[str, Stage[Any]],
        nodes: Mapping[str, Node],
    ) -> None:
        self._flow = flow
        self._attributes = attributes
        self._stages = stages
        self._nodes = nodes

    def of(self, stage: Stage[Any], *, final: bool) -> dict[str, Input]:
        """Return what the parameters of a stage take, without those that have constants or defaults.

        Args:
            stage: The stage.
            final: Whether all stages are declared; else a name that is not known may be that of a later one.

        Raises:
            InvalidFlow: If a parameter takes nothing, or something that does not fit.
        """
        before = ancestors(self._nodes, stage.name)
        found = self._by_name(stage, before, final=final)
        for name, source in stage.takes.items():
            # Whose stages before it are all known takes nothing of a later one.
            if one := self._of_source(stage, name, source, final=final or before is not None):
                found[name] = one
        if before is not None:
            self._check_order(stage, found, before)
        types = _types_of(stage)
        for name, one in found.items():
            if name in types and (problem := misfit(name, types[name], one.shown, one.type)):
                raise self._error(stage, problem)
        return found

    def _by_name(self, stage: Stage[Any], before: frozenset[str] | None, *, final: bool) -> dict[str, Input]:
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

    def _of_source(self, stage: Stage[Any], parameter: str, source: Source, *, final: bool) -> Input | None:
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

    def _check_order(
        self,
        stage: Stage[Any],
        found: Mapping[str, Input],
        before: frozenset[str],
    ) -> None:
        required = _required_by(stage)
        sure = certain(self._nodes, stage.name)
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
