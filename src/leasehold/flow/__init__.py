"""Flows: stages of work that follow each other, with fan-out and fan-in, built on the tasks of a queue."""

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.flow.flow import Flow, StagesOfFlow
    from leasehold.flow.runs import FlowRuns
    from leasehold.flow.stage import Member, Stage

__all__ = ["Flow", "FlowRuns", "Member", "Stage", "StagesOfFlow"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = lazy_names(__name__, __all__, ("stage", "runs", "flow"))
