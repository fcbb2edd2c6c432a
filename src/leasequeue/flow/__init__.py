"""Flows: stages of work that follow each other, with fan-out and fan-in, built on the tasks of a queue."""

from typing import TYPE_CHECKING

from leasequeue.lazy import lazy_names

if TYPE_CHECKING:
    from leasequeue.flow.flow import Flow, FlowPart
    from leasequeue.flow.stage import Member, Stage

__all__ = ["Flow", "FlowPart", "Member", "Stage"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(__name__, __all__, ("stage", "flow"))
